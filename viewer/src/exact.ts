/** Weights computed in the browser, from the codes of queries and keys. */

import { products, type Products } from "./products";
import type { Complete, Line } from "./weights";

export interface Coded {
  codes: Int16Array;
  /** What a code of each token is worth. */
  scale: Float32Array;
}

export interface Parts {
  width: number;
  query: Coded;
  key: Coded;
  /** The log-sum-exp of each query, of the coded scores: -Infinity where it sees no key. */
  lse: Float32Array;
  /** The bias of key - query, from `from` on; the end values hold beyond. */
  bias: { from: number; values: Float32Array } | null;
  /** Biases of each query and of each key. */
  tokens: { query: Float32Array; key: Float32Array } | null;
  /** The keys that each query sees, in one or two parts without their ends. */
  ranges: { begin: Int32Array; end: Int32Array }[];
  cap: number | null;
}

export class Exact implements Complete {
  readonly floor = 0;
  readonly length: number;
  private readonly products: Products;

  constructor(private readonly parts: Parts) {
    this.length = parts.lse.length;
    this.products = products(parts.query.codes, parts.key.codes, parts.width);
  }

  sees(query: number, key: number): boolean {
    return this.parts.ranges.some(({ begin, end }) => key >= begin[query]! && key < end[query]!);
  }

  at(query: number, key: number): number {
    if (!this.sees(query, key)) return 0;
    return this.weight(query, key, this.products.ofQuery(query, key, key + 1)[0]!);
  }

  part(query: number, from: number, to: number): Float32Array {
    const weights = new Float32Array(to - from);
    for (const { begin, end } of this.parts.ranges) {
      const [first, past] = [Math.max(from, begin[query]!), Math.min(to, end[query]!)];
      if (first >= past) continue;
      const found = this.products.ofQuery(query, first, past);
      for (let key = first; key < past; key++) weights[key - from] = this.weight(query, key, found[key - first]!);
    }
    return weights;
  }

  row(query: number): Line {
    return { tokens: null, weights: this.part(query, 0, this.length) };
  }

  column(key: number): Line {
    const found = this.products.ofKey(key, 0, this.length);
    const weights = Float32Array.from({ length: this.length }, (_, query) =>
      this.sees(query, key) ? this.weight(query, key, found[query]!) : 0,
    );
    return { tokens: null, weights };
  }

  private weight(query: number, key: number, product: number): number {
    const { query: q, key: k, lse, bias, tokens, cap } = this.parts;
    if (lse[query] === -Infinity) return 0;
    let score = product * q.scale[query]! * k.scale[key]!;
    if (bias) score += bias.values[Math.min(Math.max(key - query - bias.from, 0), bias.values.length - 1)]!;
    if (tokens) score += tokens.query[query]! + tokens.key[key]!;
    if (cap) score = cap * Math.tanh(score / cap);
    return Math.exp(score - lse[query]!);
  }
}
