/** What is known of a head, drawn onto a canvas: cells, weights, and tiles that are computed in slices. */

import { css, DIFFERENCES, DIVERGING, shading as shadingOf, type Rgb, type Shading } from "./color";
import { Exact } from "./exact";
import { BROKEN, finished, HIDDEN, ofCells, ofWeights, palette, picture, type Part, type Raster } from "./raster";
import { Marks } from "./marks";
import { Remote } from "./remote";
import type { State, Window } from "./state";
import { Dense, isComplete, type Complete } from "./weights";

/** The side of a tile, and the most tokens that a cell of a tile covers. */
const TILE = 128;
const COARSEST = 4;
/** How many pictures of tiles are kept, unless a large screen shows more. */
const KEPT = 400;
/** For how many milliseconds what is wanted is made at a time: at rest, and while the map moves. */
const SLICE = 6;
const SHORT_SLICE = 2;
/** The most pixels of the screen that marks are drawn with for one of the page: finer ones cost more than they show. */
const FINEST = 2;
/** After how many milliseconds without a move a map is at rest. */
const REST = 120;

/** The same head of the other report, where the map is to show the difference and every weight is known. */
export function compared(state: State): Complete | null {
  const { other } = state;
  if (!other || !state.difference.value || !state.text.alike(other.text)) return null;
  const [mine, others] = [state.known.value, other.known.value];
  return isComplete(mine?.weights) && isComplete(others?.weights) ? others.weights : null;
}

export function currentShading(state: State): Shading {
  if (compared(state)) return DIFFERENCES;
  const most = state.report.heads[state.head.value]!.statistics.largest;
  return shadingOf(state.text.length, state.relative.value && most ? Math.min(1, most) : 1);
}

/** Whether a hand moves the map. Then what was drawn before is scaled, and all is drawn exactly when the hand rests. */
class Motion {
  private view: Window | null = null;
  private moved = -Infinity;
  private timer = 0;
  moves = false;

  constructor(private readonly rests: () => void) {}

  /** A single step, as by a key, is no motion. */
  follow(view: Window): void {
    if (view === this.view) return;
    const now = performance.now();
    this.moves = now - this.moved < REST;
    [this.view, this.moved] = [view, now];
    clearTimeout(this.timer);
    if (!this.moves) return;
    this.timer = window.setTimeout(() => {
      this.moves = false;
      this.rests();
    }, REST);
  }
}

/** Draws what is known of a head; keeps pictures of tiles until the head or the colours change. */
export class Painter {
  private readonly pictures = new Map<string, HTMLCanvasElement>();
  private painted = "";
  /** What is in sight and not there yet: steps that make it, or what asks the kernel. The first is being made. */
  private readonly wanted = new Map<string, Generator<void, void> | (() => Promise<Raster>)>();
  private marks: Marks | null = null;
  private colours: Rgb[] = [];
  private working = false;
  private readonly motion: Motion;
  side = 0;

  constructor(
    private readonly state: State,
    private readonly repaint: () => void,
  ) {
    this.motion = new Motion(repaint);
  }

  /** Pixels of a token. */
  get scale(): number {
    return this.side / this.state.window.peek().span;
  }

  paint(context: CanvasRenderingContext2D, side: number, density: number): void {
    const { state } = this;
    this.side = side;
    const known = state.known.value;
    const shading = currentShading(state);
    const view = state.window.value;
    this.motion.follow(view);
    const other = compared(state);
    const name = [known?.head, state.theme.value, state.relative.value, state.cells.value, other && state.other?.head.value].join();
    if (name !== this.painted) {
      this.pictures.clear();
      this.wanted.clear();
      this.marks = null;
      this.painted = name;
      this.colours = palette(state.theme.value, other ? DIVERGING[state.theme.value] : undefined);
    }
    const { colours } = this;
    let paled = false;
    context.imageSmoothingEnabled = false;
    context.fillStyle = css(colours[known && state.report.heads[known.head]!.nan ? BROKEN : HIDDEN]!);
    context.fillRect(0, 0, side, side);
    if (!known) return;
    const n = state.text.length;
    const scale = side / view.span;
    const { map, weights, listed } = known;
    if (map) {
      const step = n / map.side;
      // Without exact weights blocks would look like weights: they step back as soon as they can be told apart.
      paled = !(weights instanceof Exact || weights instanceof Remote) && step > 1 && scale * step > 10;
      context.globalAlpha = paled ? 0.28 : 1;
      const cells = this.remember("map", () => picture(ofCells(map[state.cells.value], map.side, shading), colours));
      context.drawImage(cells, -view.key * scale, -view.query * scale, n * scale, n * scale);
      context.globalAlpha = 1;
    }
    if (weights instanceof Dense) {
      const step = Math.max(1, Math.ceil(1 / (scale * density)));
      const whole = this.remember(`all ${step}`, () =>
        picture(finished(ofWeights(weights, { query: 0, key: 0, side: Math.ceil(n / step), step }, shading, other)), colours),
      );
      const [x, y] = [-view.key * scale, -view.query * scale];
      context.drawImage(whole, x, y, whole.width * step * scale, whole.height * step * scale);
    } else if ((weights instanceof Exact || weights instanceof Remote) && state.cells.value === "maximum") {
      this.tiles(context, weights, other, view, scale, density);
    } else if (listed && (paled || !map)) {
      this.marks ??= new Marks(listed, shading, colours);
      this.marks.paint(context, view, side);
      const fine = Math.min(density, FINEST);
      if (!this.wanted.has("marks") && !this.marks.serves(view, side * fine, this.motion.moves)) {
        this.wanted.set("marks", this.marks.drawing(view, side * fine, fine));
      }
      this.work();
    }
    state.paled.value = paled;
  }

  /** Draws the tiles that are there, and has the others computed one after the other. */
  private tiles(
    context: CanvasRenderingContext2D,
    weights: Exact | Remote,
    other: Complete | null,
    view: Window,
    scale: number,
    density: number,
  ): void {
    let step = 1;
    while (step * scale * density < 0.75) step *= 2;
    const missing = new Set<string>();
    const shading = currentShading(this.state);
    const parts = step > COARSEST ? [] : this.inSight(view, weights.length, step);
    if (parts.some(([name]) => !this.pictures.has(name))) {
      // What was seen before a zoom stands in for what is not there yet.
      for (const near of [2 * step, step / 2]) {
        if (near >= 1) for (const [name, part] of this.inSight(view, weights.length, near)) this.place(context, name, part, view, scale);
      }
    }
    for (const [name, part] of parts) {
      if (this.place(context, name, part, view, scale)) continue;
      missing.add(name);
      if (this.wanted.has(name)) continue;
      if (weights instanceof Remote) this.wanted.set(name, () => weights.raster(part, shading));
      else this.wanted.set(name, this.tile(name, ofWeights(weights, part, shading, other)));
    }
    for (const name of this.pictures.keys()) {
      if (this.pictures.size <= Math.max(KEPT, 4 * parts.length)) break;
      this.pictures.delete(name); // seen longest ago
    }
    for (const name of this.wanted.keys()) if (!missing.has(name)) this.wanted.delete(name);
    this.work();
  }

  /** The tiles of which a part is in sight, with their names. */
  private inSight(view: Window, length: number, step: number): [string, Part][] {
    const covers = TILE * step;
    const from = (edge: number) => covers * Math.floor(edge / covers);
    const last = (edge: number) => Math.min(length - 1, Math.floor(edge + view.span));
    const parts: [string, Part][] = [];
    for (let query = from(view.query); query <= last(view.query); query += covers) {
      for (let key = from(view.key); key <= last(view.key); key += covers) {
        parts.push([`tile ${step} ${query} ${key}`, { query, key, side: TILE, step }]);
      }
    }
    return parts;
  }

  private *tile(name: string, steps: Generator<void, Raster>): Generator<void, void> {
    this.pictures.set(name, picture(yield* steps, this.colours));
  }

  /** Draws a tile if it is there. */
  private place(context: CanvasRenderingContext2D, name: string, { query, key, step }: Part, view: Window, scale: number): boolean {
    const tile = this.pictures.get(name);
    if (!tile) return false;
    this.pictures.delete(name);
    this.pictures.set(name, tile);
    const [x, y] = [(key - view.key) * scale, (query - view.query) * scale];
    context.drawImage(tile, x, y, tile.width * step * scale, tile.height * step * scale);
    return true;
  }

  private remember(name: string, make: () => HTMLCanvasElement): HTMLCanvasElement {
    let made = this.pictures.get(name);
    if (!made) this.pictures.set(name, (made = make()));
    return made;
  }

  /** Makes what is wanted for a slice of time and paints: on this thread, since not every page may have workers. */
  private work(): void {
    if (this.working || this.wanted.size === 0) return;
    this.working = true;
    const [name, ask] = this.wanted.entries().next().value!;
    if (typeof ask === "function") void this.asked(name, ask);
    else this.compute();
  }

  /** A reply for what is no longer painted, such as another head, is dropped. */
  private async asked(name: string, ask: () => Promise<Raster>): Promise<void> {
    const { painted } = this;
    const raster = await ask().catch(() => null);
    this.working = false;
    if (painted === this.painted) {
      this.wanted.delete(name);
      if (raster) this.remember(name, () => picture(raster, this.colours));
    }
    if (raster || painted !== this.painted) this.repaint();
    else this.work(); // a question without an answer is asked again when the map is painted again
  }

  private compute(): void {
    setTimeout(() => {
      this.working = false;
      const until = performance.now() + (this.motion.moves ? SHORT_SLICE : SLICE);
      let more = false;
      for (const [name, steps] of this.wanted) {
        if (typeof steps === "function") break; // of another head, which was chosen meanwhile
        let next = steps.next();
        while (!next.done && performance.now() < until) next = steps.next();
        if (!next.done) break;
        this.wanted.delete(name);
        more = true;
        if (performance.now() > until) break;
      }
      if (more) this.repaint();
      else this.work();
    });
  }
}
