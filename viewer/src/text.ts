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
  /** UTF-16 offsets of tokens; equal where a token has no text of its own. */
  readonly starts: number[] = [];
  readonly ends: number[] = [];
  /** The first token of each word, then the number of tokens. */
  private readonly words: number[] = [0];

  constructor(private readonly report: Report) {
    this.length = report.n;
    let end = 0;
    report.gaps.forEach((gap, token) => {
      this.starts.push(end + gap);
      this.ends.push((end += gap + report.lengths[token]!));
    });
    for (const count of report.words) this.words.push(this.words.at(-1)! + count);
  }

  /** What a token shows in the running text: empty for the second piece of a character. */
  token(token: number): string {
    return this.report.labels[token] ?? this.report.text.slice(this.starts[token], this.ends[token]);
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

  /** Whether another text has the same tokens. */
  alike(other: Text): boolean {
    return (
      this.length === other.length &&
      this.starts.every((start, i) => start === other.starts[i] && this.ends[i] === other.ends[i])
    );
  }

  /** The token at a place in the text. */
  tokenAt(offset: number): number {
    return Math.max(0, bisectRight(this.starts, offset) - 1);
  }

  wordOf(token: number): number {
    return bisectRight(this.words, token) - 1;
  }

  word(word: number): Word {
    const { starts, ends } = this;
    const { text } = this.report;
    const first = this.words[word]!;
    const gap = first === 0 ? text.slice(0, starts[0]) : text.slice(ends[first - 1], starts[first]);
    return { first, past: this.words[word + 1]!, gap };
  }

  /** The words around a token: the whole text where it is short, else about `count` tokens that begin where a sentence does. */
  around(token: number, count: number): { words: Word[]; before: boolean; after: boolean } {
    let [first, past] = [0, this.length];
    if (this.length > count) {
      first = Math.max(0, Math.min(token - (count >> 1), this.length - count));
      past = first + count;
      // A text without spaces is one word of many thousand tokens: such a word is cut.
      const begins = [first, ...this.words.slice(this.wordOf(Math.max(0, first - 24)), this.wordOf(first) + 1)];
      first = begins.find((each) => each >= first - 24 && this.begins(each)) ?? Math.max(first - 24, begins.at(-1)!);
      past = Math.min(past + 24, this.words[this.wordOf(past - 1) + 1]!);
    }
    const words: Word[] = [];
    for (let word = this.wordOf(first); word < this.words.length - 1 && this.words[word]! < past; word++) {
      const whole = this.word(word);
      words.push({ ...whole, first: Math.max(first, whole.first), past: Math.min(past, whole.past) });
    }
    return { words, before: first > 0, after: past < this.length };
  }

  /** The word of a token with some words on both sides, all from one token to before another. */
  near(token: number, least: number, limit: number): Word[] {
    const words: Word[] = [];
    const own = this.wordOf(token);
    for (let word = Math.max(0, own - 4); word <= Math.min(this.words.length - 2, own + 12); word++) {
      const whole = this.word(word);
      const first = Math.max(whole.first, least, token - 8);
      const past = Math.min(whole.past, limit, token + 24);
      if (first < past) words.push({ first, past, gap: words.length > 0 ? whole.gap.replace(/\s+/g, " ") : "" });
    }
    return words;
  }

  /** Whether a sentence or a line begins with a token. */
  private begins(token: number): boolean {
    const word = this.wordOf(token);
    if (token !== this.words[word]) return false;
    if (word === 0) return true;
    return this.word(word).gap.includes("\n") || /[.!?。！？]["'”’)]*$/.test(this.token(token - 1));
  }
}
