/** Chunks of the file as things to look at, decoded when they are first needed. */

import { Reader, RECEIVED, WEIGHTS } from "./codes";
import { Exact } from "./exact";
import type { Chunk, Source } from "./format";
import { Remote } from "./remote";
import { Dense, Listed, type HeadWeights } from "./weights";

/** What the file holds of one head. */
export interface Known {
  head: number;
  weights: HeadWeights | null;
  /** Weights from a threshold on, where the head is not dense. */
  listed: Listed | null;
  map: CellMap | null;
  profile: Profile | null;
}

/** Codes of cells, row by row. */
export interface CellMap {
  side: number;
  mass: Uint8Array;
  maximum: Uint8Array;
}

/** Means along the text, of each bin. */
export interface Profile {
  entropy: Float32Array;
  largest: Float32Array;
  received: Float32Array;
}

/** How many heads stay decoded. */
const KEPT = 24;

type Kind = Chunk["kind"];
type Of<K extends Kind> = Chunk extends infer C ? (C extends { kind: infer T } ? (K extends T ? C : never) : never) : never;

export class Loader {
  private readonly heads = new Map<number, Promise<Known>>();
  private small: Promise<Uint8Array | null> | null = null;

  /** `arrived` is called when weights that the kernel was asked for are there. */
  constructor(
    private readonly source: Source,
    private readonly arrived: (weights: Remote) => void,
  ) {}

  head(index: number): Promise<Known> {
    const known = this.heads.get(index) ?? this.load(index);
    this.heads.delete(index);
    this.heads.set(index, known);
    if (this.heads.size > KEPT) this.heads.delete(this.heads.keys().next().value!);
    return known;
  }

  /** Codes of the small maps of all heads, one after the other. */
  thumbnails(): Promise<Uint8Array | null> {
    const chunk = this.find("thumbs");
    return (this.small ??= chunk ? this.source.chunk(chunk.id) : Promise.resolve(null));
  }

  private async load(head: number): Promise<Known> {
    const [dense, exact, listed, map, profile] = await Promise.all([
      this.dense(head),
      this.exact(head),
      this.listed(head),
      this.map(head),
      this.profile(head),
    ]);
    const { ask, report } = this.source;
    const asked = ask && new Remote(ask, head, report.n, this.arrived);
    return { head, weights: dense ?? exact ?? listed ?? asked ?? null, listed, map, profile };
  }

  private async dense(head: number): Promise<Dense | null> {
    const chunk = this.find("dense", (chunk) => chunk.head === head);
    if (!chunk) return null;
    const { n, model } = this.source.report;
    const reader = await this.read(chunk);
    const codes = reader.planes(model.causal ? (n * (n + 1)) / 2 : n * n);
    return new Dense(new Uint16Array(codes), n, model.causal);
  }

  private async listed(head: number): Promise<Listed | null> {
    const chunk = this.find("list", (chunk) => chunk.head === head);
    if (!chunk) return null;
    const { n, exactness } = this.source.report;
    const reader = await this.read(chunk);
    const counts = chunk.bytes === 1 ? reader.uint8(n) : reader.uint16(n);
    const starts = new Uint32Array(n + 1);
    for (let query = 0; query < n; query++) starts[query + 1] = starts[query]! + counts[query]!;
    const width = n <= 65536 ? 2 : 4;
    const keys = reader.planes(starts[n]!, width);
    const limit = 256 ** width;
    for (let query = 0; query < n; query++) {
      for (let edge = starts[query]!; edge < starts[query + 1]!; edge++) keys[edge] = (query - keys[edge]! + limit) % limit;
    }
    return new Listed(exactness.tau!, starts, keys, new Uint16Array(reader.planes(starts[n]!)));
  }

  private async map(head: number): Promise<CellMap | null> {
    const chunk = this.find("map", ({ heads }) => heads.includes(head));
    if (!chunk) return null;
    const side = this.source.report.cells;
    const bytes = (await this.read(chunk)).uint8(2 * side * side * chunk.heads.length);
    const from = 2 * side * side * chunk.heads.indexOf(head);
    const middle = from + side * side;
    return { side, mass: bytes.subarray(from, middle), maximum: bytes.subarray(middle, middle + side * side) };
  }

  private async profile(head: number): Promise<Profile | null> {
    const chunk = this.find("profile", ({ heads }) => heads.includes(head));
    if (!chunk) return null;
    const { bins } = this.source.report;
    const reader = await this.read(chunk);
    reader.skip(6 * bins * chunk.heads.indexOf(head));
    const codes = reader.planes(3 * bins);
    const part = (i: number) => codes.subarray(i * bins, (i + 1) * bins);
    return {
      entropy: Float32Array.from(part(0), (code) => (code === 65535 ? NaN : code / 4096)),
      largest: Float32Array.from(part(1), (code) => WEIGHTS[code]!),
      received: Float32Array.from(part(2), (code) => RECEIVED[code]!),
    };
  }

  private async exact(head: number): Promise<Exact | null> {
    const { heads, model, n } = this.source.report;
    const { kv, layer, cap } = heads[head]!;
    const queries = this.find("q", (chunk) => chunk.head === head);
    const keys = this.find("k", (chunk) => chunk.layer === layer && chunk.kv === kv);
    if (!queries || !keys) return null;
    const bias = this.find("bias", (chunk) => chunk.heads.includes(head));
    const tokens = this.find("tokens", (chunk) => chunk.head === head);
    const ranges = this.find("ranges", ({ layers }) => layers.includes(layer));
    const [q, k, biases, added, limits] = await Promise.all(
      [queries, keys, bias, tokens, ranges].map((chunk) => chunk && this.source.chunk(chunk.id)),
    );
    const { width } = queries;
    const [query, key] = [new Reader(q!), new Reader(k!)];
    const own = added && new Reader(added);
    const seen = limits && new Reader(limits);
    return new Exact({
      width,
      query: { codes: query.codes12(n * width), scale: query.float32(n) },
      lse: query.float32(n),
      key: { codes: key.codes12(n * width), scale: key.float32(n) },
      cap,
      bias: biases ? { from: bias!.from, values: new Reader(biases).float32(biases.length / 4) } : null,
      tokens: own ? { query: own.float32(n), key: own.float32(n) } : null,
      ranges: seen
        ? Array.from({ length: ranges!.parts }, () => ({ begin: seen.int32(n), end: seen.int32(n) }))
        : [{ begin: new Int32Array(n), end: Int32Array.from({ length: n }, (_, i) => (model.causal ? i + 1 : n)) }],
    });
  }

  private find<K extends Kind>(kind: K, fits: (chunk: Of<K>) => boolean = () => true): Of<K> | undefined {
    return this.source.report.chunks.find((chunk) => chunk.kind === kind && fits(chunk as Of<K>)) as Of<K> | undefined;
  }

  private async read(chunk: Chunk): Promise<Reader> {
    return new Reader(await this.source.chunk(chunk.id));
  }
}
