/** Weights that the kernel of a notebook computes when they are looked at. */

import type { Question } from "./format";
import { HIDDEN, shadeOf, type Part, type Raster } from "./raster";
import type { Shading } from "./color";
import type { HeadWeights, Line } from "./weights";

/** How many lines of a head are kept. */
const KEPT = 512;

type Ask = (question: Question) => Promise<Float32Array>;

/** Rows, or columns, by their token. One is asked for at a time, and of those that wait the last. */
class Lines {
  private readonly lines = new Map<number, Line>();
  private asked: number | null = null;
  private wanted: number | null = null;

  constructor(
    private readonly ask: (token: number) => Promise<Float32Array>,
    private readonly arrived: () => void,
  ) {}

  get(token: number): Line | undefined {
    const line = this.lines.get(token);
    if (!line && token !== this.asked) {
      this.wanted = token;
      void this.work();
    }
    return line;
  }

  private async work(): Promise<void> {
    if (this.asked !== null) return;
    while (this.wanted !== null) {
      this.asked = this.wanted;
      this.wanted = null;
      const found = await this.load(this.asked).catch(() => null);
      this.asked = null;
      if (found) this.arrived();
    }
  }

  /** Asks for a line, unless it is there. */
  async load(token: number): Promise<Line> {
    const known = this.lines.get(token);
    if (known) return known;
    const weights = await this.ask(token);
    const line = { tokens: null, weights: weights.map((weight) => (weight < 0 ? 0 : weight)) };
    this.lines.set(token, line);
    if (this.lines.size > KEPT) this.lines.delete(this.lines.keys().next().value!);
    return line;
  }
}

/** A head of which every weight can be asked for. A weight below 0 is hidden by the mask. */
export class Remote implements HeadWeights {
  readonly floor = 0;
  private readonly rows: Lines;
  private readonly columns: Lines;

  /** `arrived` is called when a line that was asked for is there. */
  constructor(
    private readonly ask: Ask,
    private readonly head: number,
    readonly length: number,
    arrived: (weights: Remote) => void,
  ) {
    const there = () => arrived(this);
    this.rows = new Lines((token) => ask({ what: "row", head, token }), there);
    this.columns = new Lines((token) => ask({ what: "column", head, token }), there);
  }

  at(query: number, key: number): number {
    return this.rows.get(query)?.weights[key] ?? NaN;
  }

  row(query: number): Line | undefined {
    return this.rows.get(query);
  }

  /** A row or a column, however many are kept. */
  load(what: "row" | "column", token: number): Promise<Line> {
    return (what === "row" ? this.rows : this.columns).load(token);
  }

  column(key: number): Line | undefined {
    return this.columns.get(key);
  }

  /** The strongest weight of each cell of a part. */
  async raster({ query, key, side, step }: Part, shading: Shading): Promise<Raster> {
    const cells = (from: number) => Math.min(side, Math.ceil((this.length - from) / step));
    const weights = await this.ask({ what: "tile", head: this.head, query, key, side, step });
    const shades = Uint8Array.from(weights, (weight) => (weight < 0 ? HIDDEN : shadeOf(weight, shading)));
    return { width: cells(key), height: cells(query), shades };
  }
}
