/** What a report holds. src/headway/inspection/report/README.md defines every field and every chunk. */

export interface Report {
  format: number;
  language: string | null;
  model: { name: string; causal: boolean; encoding: string | null };
  text: string;
  /** UTF-16 offsets of each token in the text; equal where a token has no text of its own. */
  starts: number[];
  ends: number[];
  labels: Record<string, string>;
  /** The first token of each word, then the number of tokens. */
  words: number[];
  open: { layer: number; head: number; token: number };
  heads: Head[];
  /** Ranges of key - query, both ends included. */
  distances: [number, number][];
  /** Absolute errors of a weight, and the threshold above which lists are complete. */
  exactness: { dense: number | null; tau: number | null; exact: number | null };
  chunks: Chunk[];
}

export interface Head {
  layer: number;
  head: number;
  kv: number | null;
  nan: boolean;
  roles: HeadRole[];
  statistics: Record<string, number | null>;
  distances: (number | null)[];
  cap: number | null;
  links: [number, number, number][];
}

export interface HeadRole {
  role: string;
  says: string | null;
  candidate: string | null;
  figure: number;
  low: number;
  high: number;
  baseline: number | null;
  cases: number;
}

export interface Chunk {
  id: string;
  kind: "thumbs" | "dense" | "map" | "edges" | "q" | "k" | "bias" | "ranges" | "profile";
  head: number | null;
  side?: number;
  layer?: number;
  kv?: number;
  width?: number;
  low?: number;
}

/** Where a report comes from: a page, or the kernel behind a widget. */
export interface Source {
  report: Report;
  chunk(id: string): Promise<Uint8Array>;
}
