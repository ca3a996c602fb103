/** Cells of a map as shades, and their picture. */

import { CELLS } from "./codes";
import { RAMPS, type Rgb, type Shading, type Theme } from "./color";
import type { Complete } from "./weights";

/** Shades of square cells: 0 is hidden by the mask, 1 is not a number, 2 to 255 are shades. */
export interface Raster {
  width: number;
  height: number;
  shades: Uint8Array;
}

export const HIDDEN = 0;
export const BROKEN = 1;

export function shadeOf(weight: number, shading: Shading): number {
  return Number.isNaN(weight) ? BROKEN : 2 + Math.round(253 * shading.shade(weight));
}

/** Colours of all shades. */
export function palette(theme: Theme, ramp = RAMPS[theme]): Rgb[] {
  const paper: Rgb = theme === "light" ? [240, 240, 238] : [36, 37, 41];
  const broken: Rgb = theme === "light" ? [214, 190, 190] : [96, 66, 70];
  return Array.from({ length: 256 }, (_, shade) =>
    shade === HIDDEN ? paper : shade === BROKEN ? broken : ramp[Math.round(((shade - 2) / 253) * 255)]!,
  );
}

/** Colours as the words of pixels. */
export function wordsOf(colours: Rgb[]): Uint32Array {
  return Uint32Array.from(colours, ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red);
}

/** A canvas whose pixels are written, which is quicker where they are in the memory of the processor. */
export function written(canvas = document.createElement("canvas")): CanvasRenderingContext2D {
  return canvas.getContext("2d", { willReadFrequently: true })!;
}

export function picture({ width, height, shades }: Raster, colours: Rgb[], canvas?: HTMLCanvasElement): HTMLCanvasElement {
  const context = written(canvas);
  [context.canvas.width, context.canvas.height] = [width, height];
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const words = wordsOf(colours);
  for (let i = 0; i < shades.length; i++) pixels[i] = words[shades[i]!]!;
  context.putImageData(image, 0, 0);
  return context.canvas;
}

export function ofCells(codes: Uint8Array, side: number, shading: Shading): Raster {
  const shades = Uint8Array.from(CELLS, (weight, code) => (code === 0 ? HIDDEN : shadeOf(weight, shading)));
  return { width: side, height: side, shades: codes.map((code) => shades[code]!) };
}

/** Where a raster of weights begins, and how many tokens each of its cells covers, down and across. */
export interface Part {
  query: number;
  key: number;
  side: number;
  step: number;
}

/** The strongest weight of each cell, or the largest difference to another head. It yields after each row of tokens, so that the page can be drawn in between. */
export function* ofWeights(
  source: Complete,
  part: Part,
  shading: Shading,
  other: Complete | null = null,
): Generator<void, Raster> {
  const { query, key, side, step } = part;
  const width = Math.min(side, Math.ceil((source.length - key) / step));
  const height = Math.min(side, Math.ceil((source.length - query) / step));
  const strongest = new Float32Array(width * height);
  const seen = new Uint8Array(width * height);
  const lastQuery = Math.min(source.length, query + height * step);
  const lastKey = Math.min(source.length, key + width * step);
  for (let i = query; i < lastQuery; i++) {
    const row = Math.floor((i - query) / step) * width;
    const weights = source.part(i, key, lastKey);
    const others = other?.part(i, key, lastKey);
    for (let j = key; j < lastKey; j++) {
      if (!source.sees(i, j) && !other?.sees(i, j)) continue;
      const cell = row + Math.floor((j - key) / step);
      const weight = weights[j - key]! - (others?.[j - key] ?? 0);
      if (!(Math.abs(weight) <= Math.abs(strongest[cell]!))) strongest[cell] = weight;
      seen[cell] = 1;
    }
    yield;
  }
  const shades = new Uint8Array(strongest.length); // hidden
  strongest.forEach((weight, cell) => {
    if (seen[cell]) shades[cell] = shadeOf(weight, shading);
  });
  return { width, height, shades };
}

export function finished<T>(steps: Generator<void, T>): T {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}
