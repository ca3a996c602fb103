/** Weights of a list as marks on a canvas. A long text has tens of thousands in sight, so pixels are written. */

import { bisectLeft } from "d3-array";
import { WEIGHTS } from "./codes";
import type { Rgb, Shading } from "./color";
import { shadeOf } from "./raster";
import type { Window } from "./state";
import type { Listed } from "./weights";

/** The fewest pixels of the page that a mark is wide and high. */
const SMALLEST = 2.5;

export class Marks {
  readonly canvas = document.createElement("canvas");
  private image: ImageData | null = null;
  private strongest = new Uint8Array(0);
  private readonly shades: Uint8Array;
  private readonly words: Uint32Array;

  constructor(shading: Shading, colours: Rgb[]) {
    this.shades = new Uint8Array(WEIGHTS.length);
    WEIGHTS.forEach((weight, code) => (this.shades[code] = shadeOf(weight, shading)));
    this.words = Uint32Array.from(colours, ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red);
  }

  /** Draws the weights in sight; where marks overlap, the strongest. `side` is that of the map in pixels of the screen. */
  draw(listed: Listed, view: Window, side: number, density: number): HTMLCanvasElement {
    const context = this.canvas.getContext("2d")!;
    if (this.image?.width !== side) {
      this.canvas.width = this.canvas.height = side;
      this.image = context.createImageData(side, side);
      this.strongest = new Uint8Array(side * side);
    }
    const { strongest, shades, words } = this;
    const scale = side / view.span;
    const size = Math.max(scale, SMALLEST * density);
    const edge = (token: number, from: number) => Math.round((token + 0.5 - from) * scale - size / 2);
    const within = (pixel: number) => Math.min(Math.max(pixel, 0), side);
    const { starts, keys, codes } = listed;
    const last = Math.min(starts.length - 1, Math.ceil(view.query + view.span));
    strongest.fill(0);
    for (let query = Math.max(0, Math.floor(view.query)); query < last; query++) {
      const end = starts[query + 1]!;
      const top = edge(query, view.query);
      const [above, below] = [within(top), within(Math.round(top + size))];
      for (let at = bisectLeft(keys, view.key - 1, starts[query]!, end); at < end; at++) {
        if (keys[at]! > view.key + view.span) break;
        const left = edge(keys[at]!, view.key);
        const [before, after] = [within(left), within(Math.round(left + size))];
        const shade = shades[codes[at]!]!;
        for (let y = above; y < below; y++) {
          for (let i = y * side + before; i < y * side + after; i++) if (strongest[i]! < shade) strongest[i] = shade;
        }
      }
    }
    const pixels = new Uint32Array(this.image.data.buffer);
    for (let i = 0; i < pixels.length; i++) pixels[i] = strongest[i] ? words[strongest[i]!]! : 0;
    context.putImageData(this.image, 0, 0);
    return this.canvas;
  }
}
