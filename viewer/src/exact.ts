/** Weights computed in the browser, from the codes of queries and keys. */

import { everyToken, type HeadWeights, type Line } from "./weights";

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

export class Exact implements HeadWeights {
  readonly floor = 0;
  readonly length: number;

  constructor(private readonly parts: Parts) {
    this.length = parts.lse.length;
  }

  sees(query: number, key: number): boolean {
    return key >= this.parts.begin[query]! && key < this.parts.end[query]!;
  }

  at(query: number, key: number): number {
    return this.sees(query, key) ? this.weight(query, key) : 0;
  }

  row(query: number): Line {
    return everyToken(this.length, (key) => this.at(query, key));
  }

  column(key: number): Line {
    return everyToken(this.length, (query) => this.at(query, key));
  }

  /** The weight of a pair that the mask allows. */
  private weight(query: number, key: number): number {
    const { query: q, key: k, lse, bias, cap } = this.parts;
    let score = this.product(query, key) * q.scale[query]! * k.scale[key]!;
    if (bias) score += bias.values[Math.min(Math.max(key - query - bias.low, 0), bias.values.length - 1)]!;
    if (cap) score = cap * Math.tanh(score / cap);
    return Math.exp(score - lse[query]!);
  }

  /** The product of codes: 12 bits each, so that 32 bits hold the sum for any width up to 512. */
  private product(query: number, key: number): number {
    const { width } = this.parts;
    const q = this.parts.query.codes;
    const k = this.parts.key.codes;
    let even = 0;
    let odd = 0;
    for (let i = query * width, j = key * width, end = i + width; i < end; i += 2, j += 2) {
      even = (even + Math.imul(q[i]!, k[j]!)) | 0;
      odd = (odd + Math.imul(q[i + 1]!, k[j + 1]!)) | 0;
    }
    return (even + odd) | 0;
  }
}
