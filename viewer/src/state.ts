/** What is chosen, and the address that keeps it. */

import { batch, computed, effect, signal, type ReadonlySignal, type Signal } from "@preact/signals-core";
import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import type { Theme } from "./color";
import type { Source } from "./format";
import { LANGUAGES, type Code } from "./language";
import { Loader, type Known } from "./load";
import { Text } from "./text";

export const VIEWS = ["explore", "map", "roles", "profiles", "method"] as const;
export type View = (typeof VIEWS)[number];

/** The part of a map that is seen, in tokens: its left and upper edge, and how many tokens it is wide and high. */
export interface Window {
  key: number;
  query: number;
  span: number;
}

let states = 0;

export class State {
  /** Sets the ids of elements of one report apart from those of another on the same page. */
  readonly id = `headway-${++states}`;
  /** The report beside this one. */
  other: State | null = null;
  readonly text: Text;
  readonly loader: Loader;
  readonly view = signal<View>("explore");
  readonly language: Signal<Code>;
  readonly theme = signal<Theme>("light");
  /** The head that was asked for last. */
  readonly head: Signal<number>;
  /** What is known of the head that is shown: another than `head` only while that one loads. */
  readonly known = signal<Known | null>(null);
  /** The token that a click keeps. */
  readonly kept: Signal<number | null>;
  /** The pair, or the token alone, under the pointer. */
  readonly hover = signal<{ query: number; key: number | null } | null>(null);
  /** The token around which a long text is shown. */
  readonly anchor: Signal<number>;
  readonly cells = signal<"maximum" | "mass">("maximum");
  readonly relative = signal(false);
  /** Whether the map shows this report minus the other. */
  readonly difference = signal(false);
  /** Whether the map is seen from nearer than its cells allow. */
  readonly paled = signal(false);
  readonly window: Signal<Window>;
  readonly token: ReadonlySignal<number | null>;
  private requests = 0;

  /** With `address`, what the address of the page asks for is chosen first. */
  constructor(
    readonly source: Source,
    address: boolean,
  ) {
    const { report } = source;
    this.text = new Text(report);
    this.loader = new Loader(source, (weights) => {
      const known = this.known.peek();
      if (known?.weights === weights) this.known.value = { ...known };
    });
    const asked = report.language ?? navigator.language;
    this.language = signal<Code>(asked.startsWith("zh") ? "zh" : "en");
    this.head = signal(report.open.head);
    this.kept = signal<number | null>(report.open.token);
    this.anchor = signal(report.open.token);
    this.window = signal(this.whole);
    this.token = computed(() => this.hover.value?.query ?? this.kept.value);
    this.theme.value = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    if (address) this.read();
    void this.loader.head(this.head.peek()); // loads while the page is drawn for the first time
  }

  get report() {
    return this.source.report;
  }

  get whole(): Window {
    return { key: 0, query: 0, span: this.text.length };
  }

  /** The place of a head in the report's list. */
  indexOf(layer: number, head: number): number | null {
    const index = this.report.heads.findIndex((entry) => entry.layer === layer && entry.head === head);
    return index < 0 ? null : index;
  }

  keep(token: number): void {
    batch(() => {
      this.kept.value = token;
      this.anchor.value = token;
      this.hover.value = null;
    });
  }

  /** Lets go of the kept token, then of the part of the map that is seen. */
  release(): void {
    batch(() => {
      if (this.hover.value || this.kept.value !== null) this.hover.value = this.kept.value = null;
      else this.window.value = this.whole;
    });
  }

  /** Follows the head that is asked for; replies that come after another was asked for are dropped. */
  follow(): () => void {
    return effect(() => {
      const request = ++this.requests;
      void this.loader.head(this.head.value).then((known) => {
        if (request === this.requests) this.known.value = known;
      });
    });
  }

  /** Keeps the address and the state alike, both ways. */
  address(): () => void {
    const read = () => this.read();
    addEventListener("hashchange", read);
    let first = true;
    const stop = effect(() => {
      const address = this.written();
      // An address that nobody chose is left alone. `replaceState` throws in a srcdoc, where `location.hash` works.
      if (!first && address !== location.hash.slice(1)) {
        try {
          history.replaceState(null, "", `#${address}`);
        } catch {
          location.hash = address;
        }
      }
      first = false;
    });
    return () => {
      removeEventListener("hashchange", read);
      stop();
    };
  }

  private written(): string {
    const { layer, head } = this.report.heads[this.head.value]!;
    const parts: [string, string][] = [
      ["layer", String(layer)],
      ["head", String(head)],
    ];
    if (this.kept.value !== null) parts.push(["token", String(this.kept.value)]);
    if (this.view.value !== "explore") parts.push(["view", this.view.value]);
    return new URLSearchParams(parts).toString();
  }

  private read(): void {
    const address = new URLSearchParams(location.hash.slice(1));
    if (address.size === 0) return;
    const number = (name: string) => (/^\d+$/.test(address.get(name) ?? "") ? Number(address.get(name)) : null);
    const [layer, head, token] = [number("layer"), number("head"), number("token")];
    const view = VIEWS.find((name) => name === (address.get("view") ?? "explore"));
    batch(() => {
      if (layer !== null && head !== null) this.head.value = this.indexOf(layer, head) ?? this.head.peek();
      if (token !== null && token < this.text.length) {
        if (token !== this.kept.peek()) this.keep(token);
      } else if (layer !== null && token === null) this.kept.value = null;
      if (view) this.view.value = view;
    });
  }
}

/** Lets two reports on one text show the same head, word, part of the map and view. Returns what parts them. */
export function follow(a: State, b: State): () => void {
  [a.other, b.other] = [b, a];
  const same = <T>(left: Signal<T>, right: Signal<T>, there = (value: T) => value, back = there) => {
    let last: [T, T] = [left.peek(), there(left.peek())];
    right.value = last[1];
    return effect(() => {
      const now: [T, T] = [left.value, right.value];
      if (now[0] !== last[0]) last = [now[0], there(now[0])];
      else if (now[1] !== last[1]) last = [back(now[1]), now[1]];
      [left.value, right.value] = last;
    });
  };
  const head = (from: State, to: State) => (index: number) => {
    const { layer, head } = from.report.heads[index]!;
    return to.indexOf(layer, head) ?? to.head.peek();
  };
  const token = (from: State, to: State) => (token: number) => to.text.tokenAt(from.text.starts[token]!);
  const kept = (from: State, to: State) => (at: number | null) => (at === null ? null : token(from, to)(at));
  const stops = [
    same(a.view, b.view),
    same(a.language, b.language),
    same(a.theme, b.theme),
    same(a.relative, b.relative),
    same(a.cells, b.cells),
    same(a.difference, b.difference),
    same(a.head, b.head, head(a, b), head(b, a)),
    same(a.kept, b.kept, kept(a, b), kept(b, a)),
    same(a.anchor, b.anchor, token(a, b), token(b, a)),
    ...(a.text.alike(b.text) ? [same(a.window, b.window)] : []),
  ];
  return () => stops.forEach((stop) => stop());
}

export const StateContext = createContext<State>(null!);
export const useReport = () => useContext(StateContext);

/** The value of a signal; the component is drawn again when it changes. */
export function useValue<T>(source: ReadonlySignal<T>): T {
  const [, draw] = useState({});
  useEffect(() => {
    let seen = source.peek();
    return effect(() => {
      if (source.value !== seen) {
        seen = source.value;
        draw({});
      }
    });
  }, [source]);
  return source.peek();
}

export function useWords() {
  return LANGUAGES[useValue(useReport().language)];
}
