/** The weights of one head, whatever the file holds of them. */

import { bisectLeft } from "d3-array";
import { WEIGHTS } from "./codes";

/** The known weights of a query, or of a key: how much, and of which tokens; of all where `tokens` is null. */
export interface Line {
  tokens: Uint32Array | null;
  weights: Float32Array;
}

export interface HeadWeights {
  /** A weight that is not listed is below this: 0 where every weight is known. */
  readonly floor: number;
  /** The weight of a pair; NaN where it is not listed. */
  at(query: number, key: number): number;
  /** What a query gives to each key; undefined until the kernel has said it. */
  row(query: number): Line | undefined;
  /** What each query gives to a key, likewise. */
  column(key: number): Line | undefined;
}

/** A head of which every weight is known. */
export interface Complete extends HeadWeights {
  readonly length: number;
  /** Whether the mask lets a query see a key. */
  sees(query: number, key: number): boolean;
  /** The weights of a query and the keys from one to another. */
  part(query: number, from: number, to: number): Float32Array;
}

export const isComplete = (weights: HeadWeights | null | undefined): weights is Complete => !!weights && "part" in weights;

/** Every weight as a code: the lower triangle where the model is causal, else a square. */
export class Dense implements Complete {
  readonly floor = 0;

  constructor(
    private readonly codes: Uint16Array,
    readonly length: number,
    private readonly causal: boolean,
  ) {}

  sees(query: number, key: number): boolean {
    return this.code(query, key) !== 0;
  }

  private code(query: number, key: number): number {
    if (!this.causal) return this.codes[query * this.length + key]!;
    return key > query ? 0 : this.codes[(query * (query + 1)) / 2 + key]!;
  }

  at(query: number, key: number): number {
    return WEIGHTS[this.code(query, key)]!;
  }

  part(query: number, from: number, to: number): Float32Array {
    const weights = new Float32Array(to - from);
    for (let key = from; key < to; key++) weights[key - from] = this.at(query, key);
    return weights;
  }

  row(query: number): Line {
    return { tokens: null, weights: this.part(query, 0, this.length) };
  }

  column(key: number): Line {
    return { tokens: null, weights: Float32Array.from({ length: this.length }, (_, query) => this.at(query, key)) };
  }
}

/** All weights from a threshold on, sorted by query and key. */
export class Listed implements HeadWeights {
  private queries: { starts: Uint32Array; edges: Uint32Array } | null = null;

  constructor(
    readonly floor: number,
    readonly starts: Uint32Array,
    readonly keys: Uint32Array,
    readonly codes: Uint16Array,
  ) {}

  at(query: number, key: number): number {
    const end = this.starts[query + 1]!;
    const place = bisectLeft(this.keys, key, this.starts[query]!, end);
    return place < end && this.keys[place] === key ? WEIGHTS[this.codes[place]!]! : NaN;
  }

  row(query: number): Line {
    const [from, to] = [this.starts[query]!, this.starts[query + 1]!];
    return {
      tokens: Uint32Array.from(this.keys.subarray(from, to)),
      weights: Float32Array.from(this.codes.subarray(from, to), (code) => WEIGHTS[code]!),
    };
  }

  column(key: number): Line {
    const { starts, edges } = (this.queries ??= this.byKey());
    const found = edges.subarray(starts[key]!, starts[key + 1]!);
    return {
      tokens: Uint32Array.from(found, (edge) => this.queryOf(edge)),
      weights: Float32Array.from(found, (edge) => WEIGHTS[this.codes[edge]!]!),
    };
  }

  private queryOf(edge: number): number {
    let [low, high] = [0, this.starts.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.starts[middle]! <= edge) low = middle;
      else high = middle;
    }
    return low;
  }

  /** The edges of each key in the order of queries: a counting sort, done once. */
  private byKey(): { starts: Uint32Array; edges: Uint32Array } {
    const starts = new Uint32Array(this.starts.length);
    for (const key of this.keys) starts[key + 1]!++;
    for (let key = 1; key < starts.length; key++) starts[key]! += starts[key - 1]!;
    const next = starts.slice();
    const edges = new Uint32Array(this.keys.length);
    this.keys.forEach((key, edge) => (edges[next[key]!++] = edge));
    return { starts, edges };
  }
}

/** The largest weights of a line, largest first; of equal ones the earlier token. */
export function largest(line: Line | undefined, count: number): [token: number, weight: number][] {
  const found: [number, number][] = [];
  line?.weights.forEach((weight, i) => {
    if (!(weight > 0) || (found.length === count && weight <= found[count - 1]![1])) return;
    const place = found.findIndex(([, other]) => other < weight);
    found.splice(place < 0 ? found.length : place, 0, [line.tokens?.[i] ?? i, weight]);
    if (found.length > count) found.pop();
  });
  return found;
}
