/** Weights of a list as marks on a canvas. A long text has tens of thousands in sight, so pixels are written. */

import { bisectLeft } from "d3-array";
import { WEIGHTS } from "./codes";
import type { Rgb, Shading } from "./color";
import { shadeOf, wordsOf, written } from "./raster";
import type { Window } from "./state";
import type { Listed } from "./weights";

/** The fewest pixels of the page that a mark is wide and high. */
const SMALLEST = 2.5;
/** Marks are drawn for this share of the window around it too, and scaled by up to this while the map moves. */
const AROUND = 0.25;
const STRETCHED = 1.5;
/** How many queries, or rows of pixels, are drawn in a step. */
const STEP = 32;

export class Marks {
  /** What is shown, and what the next part is drawn on. */
  private shown = written();
  private next = written();
  private image: ImageData | null = null;
  private strongest = new Uint8Array(0);
  /** Shades of codes, as far as they were needed. */
  private readonly shades = new Uint8Array(WEIGHTS.length);
  private readonly words: Uint32Array;
  /** What is on the canvas that is shown, and its pixels of a token. */
  private drawn: { view: Window; scale: number } | null = null;

  constructor(
    private readonly listed: Listed,
    private readonly shading: Shading,
    colours: Rgb[],
  ) {
    this.words = wordsOf(colours);
  }

  /** Draws what is there, at its place. */
  paint(context: CanvasRenderingContext2D, view: Window, side: number): void {
    if (!this.drawn) return;
    const { key, query, span } = this.drawn.view;
    const scale = side / view.span;
    context.drawImage(this.shown.canvas, (key - view.key) * scale, (query - view.query) * scale, span * scale, span * scale);
  }

  /** Whether what is there may stand for a window of so many pixels: to the pixel, or scaled while the map moves. */
  serves(view: Window, side: number, moves: boolean): boolean {
    if (!this.drawn) return false;
    const { view: drawn, scale } = this.drawn;
    const stretched = side / view.span / scale;
    const most = moves ? STRETCHED : 1 + 1e-9;
    const within = (from: number, to: number) => from <= to && to + view.span <= from + drawn.span;
    return within(drawn.key, view.key) && within(drawn.query, view.query) && stretched <= most && stretched >= 1 / most;
  }

  /** Draws the weights in a window of so many pixels, and around it, in steps; where marks overlap, the strongest. */
  *drawing(view: Window, pixels: number, density: number): Generator<void, void> {
    const scale = pixels / view.span;
    const around = Math.round(AROUND * pixels);
    const side = Math.round(pixels) + 2 * around;
    const from = { key: view.key - around / scale, query: view.query - around / scale };
    const span = side / scale;
    if (this.image?.width !== side) {
      this.image = new ImageData(side, side);
      this.strongest = new Uint8Array(side * side);
    }
    const { strongest, shades, shading, words, image, next } = this;
    const { starts, keys, codes } = this.listed;
    const colours = new Uint32Array(image.data.buffer);
    const size = Math.max(scale, SMALLEST * density);
    const edge = (token: number, first: number) => Math.round((token + 0.5 - first) * scale - size / 2);
    const within = (pixel: number) => Math.min(Math.max(pixel, 0), side);
    const last = Math.min(starts.length - 1, Math.ceil(from.query + span));
    strongest.fill(0);
    colours.fill(0);
    yield;
    for (let query = Math.max(0, Math.floor(from.query)); query < last; query++) {
      const end = starts[query + 1]!;
      const top = edge(query, from.query);
      const [above, below] = [within(top), within(Math.round(top + size))];
      for (let at = bisectLeft(keys, from.key - 1, starts[query]!, end); at < end; at++) {
        if (keys[at]! > from.key + span) break;
        const left = edge(keys[at]!, from.key);
        const [before, after] = [within(left), within(Math.round(left + size))];
        const code = codes[at]!;
        const shade = (shades[code] ||= shadeOf(WEIGHTS[code]!, shading));
        for (let y = above; y < below; y++) {
          for (let i = y * side + before; i < y * side + after; i++) {
            if (strongest[i]! >= shade) continue;
            strongest[i] = shade;
            colours[i] = words[shade]!;
          }
        }
      }
      if (query % STEP === 0) yield;
    }
    if (next.canvas.width !== side) next.canvas.width = next.canvas.height = side;
    for (let y = 0; y < side; y += STEP) {
      next.putImageData(image, 0, 0, 0, y, side, STEP);
      yield;
    }
    [this.shown, this.next] = [next, this.shown];
    this.drawn = { view: { ...from, span }, scale };
  }
}
