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
  /** The log-sum-exp of each query, of the coded scores. */
  lse: Float32Array;
  /** The bias of key - query from `low` on; the end values hold beyond. */
  bias: { low: number; values: Float32Array } | null;
  /** The keys that each query sees: half-open. */
  begin: Int32Array;
  end: Int32Array;
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
    return key >= this.parts.begin[query]! && key < this.parts.end[query]!;
  }

  at(query: number, key: number): number {
    if (!this.sees(query, key)) return 0;
    return this.weight(query, key, this.products.ofQuery(query, key, key + 1)[0]!);
  }

  part(query: number, from: number, to: number): Float32Array {
    const [first, past] = [Math.max(from, this.parts.begin[query]!), Math.min(to, this.parts.end[query]!)];
    const weights = new Float32Array(to - from);
    if (first >= past) return weights;
    const found = this.products.ofQuery(query, first, past);
    for (let key = first; key < past; key++) weights[key - from] = this.weight(query, key, found[key - first]!);
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
    const { query: q, key: k, lse, bias, cap } = this.parts;
    let score = product * q.scale[query]! * k.scale[key]!;
    if (bias) score += bias.values[Math.min(Math.max(key - query - bias.low, 0), bias.values.length - 1)]!;
    if (cap) score = cap * Math.tanh(score / cap);
    return Math.exp(score - lse[query]!);
  }
}
