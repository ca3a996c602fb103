/** Weights of a list as marks on a canvas. A long text has tens of thousands in sight, so pixels are written. */

import { bisectLeft } from "d3-array";
import { WEIGHTS } from "./codes";
import type { Rgb, Shading } from "./color";
import { shadeOf, wordsOf } from "./raster";
import type { Window } from "./state";
import type { Listed } from "./weights";

/** The fewest pixels of the page that a mark is wide and high. */
const SMALLEST = 2.5;
/** While the map moves, marks are drawn for this share of the window around it too, and scaled by up to this. */
const AROUND = 0.25;
const STRETCHED = 1.5;

export class Marks {
  private readonly canvas = document.createElement("canvas");
  private readonly context = this.canvas.getContext("2d")!;
  private image: ImageData | null = null;
  private strongest = new Uint8Array(0);
  private readonly shades: Uint8Array;
  private readonly words: Uint32Array;
  /** What is on the canvas. */
  private drawn: Window | null = null;

  constructor(
    private readonly listed: Listed,
    shading: Shading,
    colours: Rgb[],
  ) {
    this.shades = Uint8Array.from(WEIGHTS, (weight) => shadeOf(weight, shading));
    this.words = wordsOf(colours);
  }

  /** Draws the weights in sight, or scales those that were drawn before, as far as the map moves and these reach. */
  paint(context: CanvasRenderingContext2D, view: Window, side: number, density: number, moves: boolean): void {
    if (!moves || !this.drawn || !this.reach(this.drawn, view, side * density)) {
      const around = moves ? AROUND * view.span : 0;
      const span = view.span + 2 * around;
      this.draw({ key: view.key - around, query: view.query - around, span }, (side * density) / view.span, density);
    }
    const { key, query, span } = this.drawn!;
    const scale = side / view.span;
    context.drawImage(this.canvas, (key - view.key) * scale, (query - view.query) * scale, span * scale, span * scale);
  }

  private reach(drawn: Window, view: Window, side: number): boolean {
    const stretched = side / view.span / (this.canvas.width / drawn.span);
    const within = (from: number, to: number) => from <= to && to + view.span <= from + drawn.span;
    return (
      within(drawn.key, view.key) &&
      within(drawn.query, view.query) &&
      stretched <= STRETCHED &&
      stretched >= 1 / STRETCHED
    );
  }

  /** Draws the weights of a part; where marks overlap, the strongest. `scale`: pixels of the screen of a token. */
  private draw(view: Window, scale: number, density: number): void {
    const side = Math.round(view.span * scale);
    if (this.image?.width !== side) {
      this.canvas.width = this.canvas.height = side;
      this.image = this.context.createImageData(side, side);
      this.strongest = new Uint8Array(side * side);
    }
    const { strongest, shades, words, image } = this;
    const { starts, keys, codes } = this.listed;
    const pixels = new Uint32Array(image.data.buffer);
    const size = Math.max(scale, SMALLEST * density);
    const edge = (token: number, from: number) => Math.round((token + 0.5 - from) * scale - size / 2);
    const within = (pixel: number) => Math.min(Math.max(pixel, 0), side);
    const last = Math.min(starts.length - 1, Math.ceil(view.query + view.span));
    strongest.fill(0);
    pixels.fill(0);
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
          for (let i = y * side + before; i < y * side + after; i++) {
            if (strongest[i]! >= shade) continue;
            strongest[i] = shade;
            pixels[i] = words[shade]!;
          }
        }
      }
    }
    this.context.putImageData(image, 0, 0);
    this.drawn = view;
  }
}
