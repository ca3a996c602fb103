/** Chunks of the file as things to look at, decoded when they are first needed. */

import { unpack12 } from "./codes";
import { Exact, type Coded } from "./exact";
import type { Chunk, Source } from "./format";
import { Dense, Listed, type HeadWeights } from "./weights";

/** What the file holds of one head. */
export interface Known {
  head: number;
  weights: HeadWeights | null;
  /** Weights from a threshold on, where not every weight is known. */
  listed: Listed | null;
  map: CellMap | null;
  entropy: Float32Array | null;
  received: Float32Array | null;
}

/** Codes of cells, row by row. */
export interface CellMap {
  side: number;
  mass: Uint8Array;
  maximum: Uint8Array;
}

/** Small maps of all heads, side by side. */
export interface Thumbnails {
  side: number;
  codes: Uint8Array;
}

/** How many heads stay decoded. */
const KEPT = 24;

export class Loader {
  private readonly heads = new Map<number, Promise<Known>>();
  private readonly length: number;
  private small: Promise<Thumbnails | null> | null = null;

  constructor(private readonly source: Source) {
    this.length = source.report.starts.length;
  }

  head(index: number): Promise<Known> {
    const known = this.heads.get(index) ?? this.load(index);
    this.heads.delete(index);
    this.heads.set(index, known);
    if (this.heads.size > KEPT) this.heads.delete(this.heads.keys().next().value!);
    return known;
  }

  thumbnails(): Promise<Thumbnails | null> {
    const chunk = this.find("thumbs", null);
    return (this.small ??= chunk
      ? this.source.chunk(chunk.id).then((codes) => ({ side: chunk.side!, codes }))
      : Promise.resolve(null));
  }

  private async load(head: number): Promise<Known> {
    const [dense, exact, listed, map, profile] = await Promise.all([
      this.dense(head),
      this.exact(head),
      this.listed(head),
      this.map(head),
      this.find("profile", head) && this.floats(this.find("profile", head)!),
    ]);
    return {
      head,
      weights: dense ?? exact ?? listed,
      listed,
      map,
      entropy: profile?.subarray(0, this.length) ?? null,
      received: profile?.subarray(this.length, 2 * this.length) ?? null,
    };
  }

  private async dense(head: number): Promise<HeadWeights | null> {
    const chunk = this.find("dense", head);
    if (!chunk) return null;
    const bytes = await this.source.chunk(chunk.id);
    return new Dense(new Uint16Array(bytes.buffer), this.length, this.source.report.model.causal);
  }

  private async listed(head: number): Promise<Listed | null> {
    const chunk = this.find("edges", head);
    if (!chunk) return null;
    const { buffer } = await this.source.chunk(chunk.id);
    const starts = new Uint32Array(buffer, 0, this.length + 1);
    const count = starts[this.length]!;
    const keys = new Uint16Array(buffer, starts.byteLength, count);
    return new Listed(
      this.source.report.exactness.tau!,
      starts,
      keys,
      new Uint16Array(buffer, starts.byteLength + keys.byteLength, count),
    );
  }

  private async map(head: number): Promise<CellMap | null> {
    const chunk = this.find("map", head);
    if (!chunk) return null;
    const bytes = await this.source.chunk(chunk.id);
    const side = chunk.side!;
    return { side, mass: bytes.subarray(0, side * side), maximum: bytes.subarray(side * side) };
  }

  private async exact(head: number): Promise<HeadWeights | null> {
    const { heads, model } = this.source.report;
    const { kv, layer, cap } = heads[head]!;
    const queries = this.find("q", head);
    const keys = this.source.report.chunks.find((chunk) => chunk.kind === "k" && chunk.layer === layer && chunk.kv === kv);
    if (!queries || !keys) return null;
    const [q, k] = await Promise.all([this.source.chunk(queries.id), this.source.chunk(keys.id)]);
    const bias = this.find("bias", head);
    const ranges = this.find("ranges", head);
    const width = queries.width!;
    const limits = ranges && new Int32Array((await this.source.chunk(ranges.id)).buffer);
    const n = this.length;
    return new Exact({
      width,
      query: coded(q, n, width),
      key: coded(k, n, width),
      lse: floats(q, -n),
      bias: bias ? { low: bias.low!, values: await this.floats(bias) } : null,
      begin: limits?.subarray(0, n) ?? new Int32Array(n),
      end: limits?.subarray(n) ?? Int32Array.from({ length: n }, (_, i) => (model.causal ? i + 1 : n)),
      cap,
    });
  }

  private find(kind: Chunk["kind"], head: number | null): Chunk | undefined {
    return this.source.report.chunks.find((chunk) => chunk.kind === kind && chunk.head === head);
  }

  private async floats(chunk: Chunk): Promise<Float32Array> {
    return new Float32Array((await this.source.chunk(chunk.id)).buffer);
  }
}

function coded(bytes: Uint8Array, length: number, width: number): Coded {
  const packed = Math.ceil((length * width * 3) / 2);
  const scale = new Float32Array(bytes.slice(packed, packed + 4 * length).buffer);
  return { codes: unpack12(bytes, length * width), scale };
}

/** The last floats of a chunk. */
function floats(bytes: Uint8Array, count: number): Float32Array {
  return new Float32Array(bytes.slice(4 * count).buffer);
}
