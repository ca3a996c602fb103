/** The text with one token kept: where it looks is shaded blue, who looks at it is underlined in orange. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { number, percent } from "./language";
import { useReport, useValue, useWords } from "./state";
import type { Text, Word } from "./text";
import { largest, type Line } from "./weights";

/** How many tokens of a long text are shown, and how many arcs. */
const TOKENS = 120;
const ARCS = 8;
const FAINTEST = 0.03;
/** The smallest weight that is said. */
const SAID = 0.0005;

interface Arc {
  path: string;
  weight: number;
}

/** Where a token looks, and who looks at it. */
interface Lines {
  row: Line | undefined;
  column: Line | undefined;
}

/** Weights of a line, and what of it lies before and after the part of the text that is shown. */
interface Shares {
  /** By the token that shows them: pieces of one character add up. */
  inside: Map<number, number>;
  before: number;
  after: number;
}

function sharesOf(line: Line | undefined, first: number, past: number, text: Text): Shares {
  const shares: Shares = { inside: new Map(), before: 0, after: 0 };
  line?.weights.forEach((weight, i) => {
    const token = line.tokens?.[i] ?? i;
    if (!(weight > 0)) return;
    if (token < first) shares.before += weight;
    else if (token >= past) shares.after += weight;
    else shares.inside.set(text.owner(token), (shares.inside.get(text.owner(token)) ?? 0) + weight);
  });
  return shares;
}

export function Sentence() {
  const state = useReport();
  const words = useWords();
  const token = useValue(state.token);
  const kept = useValue(state.kept);
  const anchor = useValue(state.anchor);
  const known = useValue(state.known);
  const { text } = state;
  const area = useRef<HTMLDivElement>(null);
  const [arcs, setArcs] = useState<Arc[]>([]);

  const shown = useMemo(() => {
    const kept = text.around(anchor, TOKENS);
    const [first, past] = [kept.words[0]!.first, kept.words.at(-1)!.past];
    return token === null || (token >= first && token < past) ? kept : text.around(token, TOKENS);
  }, [text, anchor, token]);
  const first = shown.words[0]!.first;
  const past = shown.words.at(-1)!.past;
  const { row, column, to, from, links } = useMemo(() => {
    const row = token === null ? undefined : known?.weights?.row(token);
    const column = token === null ? undefined : known?.weights?.column(token);
    return {
      row,
      column,
      to: sharesOf(row, first, past, text),
      from: sharesOf(column, first, past, text),
      links: row ? largest(row, ARCS).filter(([key, weight]) => weight >= FAINTEST && key !== token) : [],
    };
  }, [known, token, text, first, past]);

  useLayoutEffect(() => {
    const measure = () => setArcs(token === null ? [] : arcsOf(area.current!, text.owner(token), links, (key) => text.owner(key)));
    measure();
    const resized = new ResizeObserver(measure);
    resized.observe(area.current!);
    return () => resized.disconnect();
  }, [links, token, text]);

  // A token that was chosen elsewhere is brought into sight, below some of the lines before it.
  useLayoutEffect(() => {
    const box = area.current!;
    const place = box.querySelector<HTMLElement>(`[data-token="${text.owner(token ?? anchor)}"]`);
    if (!place) return;
    const line = parseFloat(getComputedStyle(box).lineHeight);
    const top = place.getBoundingClientRect().top - box.getBoundingClientRect().top + box.scrollTop;
    if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - line) {
      box.scrollTop = line * Math.max(0, Math.floor(top / line) - Math.floor((0.7 * box.clientHeight) / line));
    }
  }, [shown, anchor, text]);

  const tokenAt = (event: Event) => {
    const place = (event.target as Element).closest<HTMLElement>("[data-token]");
    return place ? Number(place.dataset.token) : null;
  };
  const step = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 };
    const current = token ?? anchor;
    let next = current;
    if (event.key === "Home") next = 0;
    else if (event.key === "End") next = text.length - 1;
    else if (steps[event.key]) {
      next += steps[event.key]!;
      while (next > 0 && next < text.length && text.owner(next) !== next) next += steps[event.key]!;
    } else return;
    event.preventDefault();
    if (next >= 0 && next < text.length) state.keep(text.owner(next));
  };

  const owner = token === null ? null : text.owner(token);
  // Of a list of weights it is the sum of those that are known, and nothing is above all of them.
  const share = (sum: number) => `${known?.weights?.floor && percent(sum) !== percent(1) ? "≥ " : ""}${percent(sum)}`;
  const outside = (from: number, past: number, label: string | false) => (
    <p class="outside">
      <span class="quiet">{label || "\u00a0"}</span>
      <Excerpt row={row} column={column} from={from} past={past} />
    </p>
  );
  return (
    <section class="sentence" aria-label={words.text}>
      <Says token={token} row={row} column={column} floor={known?.weights?.floor || SAID} />
      <div class="legend quiet">
        <span>
          <i class="to" /> {words.legendTo}
        </span>
        <span>
          <i class="from" /> {words.legendFrom}
        </span>
        <span class="hint">{words.wordsHint}</span>
      </div>
      {shown.before && outside(0, first, to.before >= 0.001 && words.earlierText(share(to.before)))}
      <div
        class={`words${shown.before || shown.after ? " cut" : ""}`}
        ref={area}
        dir="auto"
        role="listbox"
        aria-label={words.words}
        tabIndex={0}
        aria-activedescendant={owner === null ? undefined : `${state.id}-${owner}`}
        onKeyDown={step}
        onPointerMove={(event) => {
          const found = tokenAt(event);
          if (found !== state.hover.peek()?.query) state.hover.value = found === null ? null : { query: found, key: null };
        }}
        onPointerLeave={() => (state.hover.value = null)}
        onClick={(event) => {
          const found = tokenAt(event);
          if (found !== null) state.keep(found);
        }}
      >
        {shown.before && <span class="quiet">… </span>}
        {shown.words.map(({ first, past, gap }) => (
          <span key={first}>
            {gap}
            <span class="word">
              {Array.from({ length: past - first }, (_, i) => first + i).map((each) => {
                const label = text.token(each);
                if (!label) return null;
                const [shade, line] = [to.inside.get(each) ?? 0, from.inside.get(each) ?? 0];
                const classes = [each === owner && "on", each === kept && "kept", text.isLabel(each) && "label"];
                return (
                  <span
                    key={each}
                    id={`${state.id}-${each}`}
                    role="option"
                    aria-selected={each === owner}
                    data-token={each}
                    class={classes.filter(Boolean).join(" ") || undefined}
                    aria-label={described(text.name(each), shade, line, words)}
                    style={{
                      "--to": shade > 0.001 ? Math.sqrt(Math.min(shade, 1)).toFixed(3) : 0,
                      "--from": line > 0.001 ? Math.sqrt(Math.min(line, 1)).toFixed(3) : 0,
                    }}
                  >
                    {label}
                  </span>
                );
              })}
            </span>
          </span>
        ))}
        {shown.after && <span class="quiet"> …</span>}
        <svg class="arcs" aria-hidden="true">
          {arcs.map(({ path, weight }, i) => (
            <path key={i} d={path} style={{ "--w": Math.sqrt(weight) }} />
          ))}
        </svg>
      </div>
      {shown.after && outside(past, text.length, to.after >= 0.001 && words.laterText(share(to.after)))}
    </section>
  );
}

/** What is seen, as a sentence: where the chosen token looks most, and who looks at it most. */
function Says({ token, row, column, floor }: Lines & { token: number | null; floor: number }) {
  const { text } = useReport();
  const words = useWords();
  if (token === null) return <p class="says">{words.chooseWord}</p>;
  const name = (of: number) => (
    <b>
      <bdi>{text.name(of)}</bdi>
    </b>
  );
  const [to] = largest(row, 1).filter(([, weight]) => weight >= SAID);
  const [from] = largest(column, 2).filter(([other, weight]) => other !== token && weight >= SAID);
  const first = to
    ? filled(to[0] === token ? words.givesItself : words.gives, { token: name(token), share: percent(to[1]), other: name(to[0]) })
    : row && filled(words.givesNone, { token: name(token), share: percent(floor) });
  return (
    <p class="says">
      {first} {from && filled(words.given, { other: name(from[0]), share: percent(from[1]) })}
    </p>
  );
}

/** A sentence with its gaps filled. */
function filled(sentence: string, gaps: Record<string, ComponentChildren>): ComponentChildren[] {
  return sentence.split(/\{(\w+)\}/).map((part, i) => (i % 2 ? gaps[part] : part));
}

/** The words around the strongest weight in a part of the text that is not shown. A click goes there. */
function Excerpt({ row, column, from, past }: Lines & { from: number; past: number }) {
  const state = useReport();
  const words = useWords();
  const { text } = state;
  const [key, weight] = strongest(row, from, past);
  const [query, other] = strongest(column, from, past);
  if (Math.max(weight, other) < FAINTEST) return null;
  const centre = weight >= other ? key : query;
  const near = text.near(centre, from, past);
  const shares = [row, column].map((line) => sharesOf(line, near[0]!.first, near.at(-1)!.past, text).inside);
  const shade = (each: number) => shares.map((share) => Math.sqrt(Math.min(share.get(each) ?? 0, 1)).toFixed(3));
  return (
    <button type="button" class="excerpt" dir="auto" title={words.goThere} onClick={() => state.keep(text.owner(centre))}>
      {near[0]!.first > 0 && "… "}
      {near.map((word: Word) => (
        <span key={word.first}>
          {word.gap}
          {Array.from({ length: word.past - word.first }, (_, i) => word.first + i).map((each) => {
            const label = text.token(each);
            const [blue, orange] = shade(each);
            return label && <span key={each} class="token" style={{ "--to": blue, "--from": orange }}>{label}</span>;
          })}
        </span>
      ))}
    </button>
  );
}

/** The largest weight of a line in a part of the text, and its token. */
function strongest(line: Line | undefined, from: number, past: number): [token: number, weight: number] {
  let found: [number, number] = [from, 0];
  line?.weights.forEach((weight, i) => {
    const token = line.tokens?.[i] ?? i;
    if (token >= from && token < past && weight > found[1]) found = [token, weight];
  });
  return found;
}

function described(name: string, to: number, from: number, words: ReturnType<typeof useWords>): string {
  const parts = [name];
  if (to >= 0.01) parts.push(`${words.legendTo} ${number(to, 2)}`);
  if (from >= 0.01) parts.push(`${words.legendFrom} ${number(from, 2)}`);
  return parts.join(", ");
}

/** Arcs from the top of a token to the tops of those that it looks at. */
function arcsOf(area: HTMLElement, token: number, links: [number, number][], owner: (token: number) => number): Arc[] {
  const frame = area.getBoundingClientRect();
  const origin = { left: frame.left - area.scrollLeft, top: frame.top - area.scrollTop };
  const top = (of: number) => {
    const box = area.querySelector(`[data-token="${of}"]`)?.getClientRects()[0];
    return box && { x: box.left + box.width / 2 - origin.left, y: box.top - origin.top + 1 };
  };
  const start = top(token);
  if (!start) return [];
  return links.flatMap(([key, weight]) => {
    const end = top(owner(key));
    if (!end || owner(key) === token) return [];
    const rise = Math.min(30, 8 + Math.abs(end.x - start.x) / 14);
    const lift = Math.min(start.y, end.y) - rise;
    const path = `M${start.x} ${start.y}C${start.x} ${lift} ${end.x} ${lift} ${end.x} ${end.y}`;
    return { path, weight };
  });
}
