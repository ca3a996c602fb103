/** What a report holds. src/headway/inspection/report/README.md defines every field and every chunk. */

export interface Report {
  format: number;
  version: string;
  model: { name: string; layers: string[]; heads: number[]; causal: boolean };
  language: string | null;
  n: number;
  text: string;
  gaps: number[];
  lengths: number[];
  labels: Record<string, string>;
  words: number[];
  open: { head: number; token: number; key: number };
  heads: Head[];
  roles: { role: string; says: string; measured: number; missing: string | null }[];
  statistics: { name: string; says: string }[];
  distances: Range[];
  bins: number;
  cells: number;
  thumbs: number;
  exactness: Exactness;
  chunks: Chunk[];
}

/** Two reports on one text. */
export interface Pair {
  reports: [Report, Report];
  names: [string, string];
}

/** From key - query to key - query, both included; null has no bound. */
export type Range = [number | null, number | null];

export interface Head {
  layer: number;
  head: number;
  kv: number;
  nan: boolean;
  roles: HeadRole[];
  statistics: Record<string, number | null>;
  distances: (number | null)[];
  links: [query: number, key: number, weight: number][];
  form: "dense" | "exact" | "list" | "kernel";
  cap: number | null;
  reason: string | null;
}

export interface HeadRole {
  role: string;
  candidate: string;
  figure: number;
  low: number;
  high: number;
  baseline: number | null;
  cases: number;
}

export interface Exactness {
  tau: number | null;
  dense: number | null;
  list: number | null;
  exact: number | null;
  map: number | null;
}

export type Chunk = { id: string } & (
  | { kind: "thumbs" }
  | { kind: "dense"; head: number }
  | { kind: "map" | "profile"; layer: number; heads: number[] }
  | { kind: "list"; head: number; bytes: 1 | 2 }
  | { kind: "q"; head: number; width: number }
  | { kind: "k"; layer: number; kv: number; width: number }
  | { kind: "bias"; heads: number[]; from: number }
  | { kind: "tokens"; head: number }
  | { kind: "ranges"; layers: number[]; parts: number }
);

/** Where a report comes from: a page, or the kernel behind a widget. */
export interface Source {
  report: Report;
  /** The bytes of a chunk, without compression. */
  chunk(id: string): Promise<Uint8Array>;
  /** Weights that the kernel computes, row by row; -1 for what the mask hides. A page has no kernel. */
  ask?(question: Question): Promise<Float32Array>;
}

/** A row or a column of the weights of a head; or the strongest weights of square cells of `step` tokens. */
export type Question =
  | { what: "row" | "column"; head: number; token: number }
  | { what: "tile"; head: number; query: number; key: number; side: number; step: number };
