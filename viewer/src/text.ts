/** Tokens as they are read: what each shows, the words that they form, and the part of a long text around a token. */

import { bisectRight } from "d3-array";
import type { Report } from "./format";

export interface Word {
  first: number;
  past: number;
  /** What stands between this word and the one before: spaces, line breaks. */
  gap: string;
}

export class Text {
  readonly length: number;
  private readonly words: number[];

  constructor(private readonly report: Report) {
    this.length = report.starts.length;
    this.words = report.words;
  }

  /** What a token shows in the running text: empty for the second piece of a character. */
  token(token: number): string {
    return this.report.labels[token] ?? this.report.text.slice(this.report.starts[token], this.report.ends[token]);
  }

  isLabel(token: number): boolean {
    return token in this.report.labels;
  }

  /** The name of a token in lists: visible even where it is a space, a line break, or a piece of a character. */
  name(token: number): string {
    const shown = this.token(token);
    if (shown) return shown.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +$/, (spaces) => "␣".repeat(spaces.length)).trim();
    const owner = this.owner(token);
    return owner === token ? "∅" : `${this.name(owner)}·${token - owner + 1}`;
  }

  /** The token that shows the character of which a token is a later piece. */
  owner(token: number): number {
    const first = this.words[this.wordOf(token)]!;
    let owner = token;
    while (owner > first && !this.token(owner)) owner--;
    return owner;
  }

  wordOf(token: number): number {
    return bisectRight(this.words, token) - 1;
  }

  word(word: number): Word {
    const { starts, ends, text } = this.report;
    const first = this.words[word]!;
    const gap = first === 0 ? text.slice(0, starts[0]) : text.slice(ends[first - 1], starts[first]);
    return { first, past: this.words[word + 1]!, gap };
  }

  /** The words around a token: the whole text where it is short, else some lines that begin and end where sentences do. */
  around(token: number, count: number): { words: Word[]; before: boolean; after: boolean } {
    const total = this.words.length - 1;
    let [from, to] = [0, total];
    if (total > count) {
      from = Math.max(0, Math.min(this.wordOf(token) - (count >> 1), total - count));
      to = Math.min(total, from + count);
      for (let back = 0; back < 12 && from > 0 && !this.begins(from); back++) from--;
    }
    const words = Array.from({ length: to - from }, (_, i) => this.word(from + i));
    return { words, before: from > 0, after: to < total };
  }

  private begins(word: number): boolean {
    if (word === 0) return true;
    const { gap } = this.word(word);
    const last = this.token(this.words[word]! - 1);
    return gap.includes("\n") || /[.!?。！？]["'”’)]*$/.test(last);
  }
}
