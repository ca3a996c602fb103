/** The map of a head: it zooms from the whole text to single weights. */

import { batch, effect } from "@preact/signals-core";
import { ticks } from "d3-array";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { css, DIFFERENCES, DIVERGING, RAMPS, shading as shadingOf, type Rgb, type Shading } from "./color";
import { Exact } from "./exact";
import { number } from "./language";
import { BROKEN, finished, HIDDEN, ofCells, ofWeights, palette, picture, shadeOf, type Raster } from "./raster";
import { useReport, useValue, useWords, type State, type Window } from "./state";
import { Dense, isComplete, type Complete } from "./weights";

/** Where axes stand, in CSS pixels: labels of queries at the left, of keys at the top. */
const MARGIN = { left: 68, top: 60 };
/** The side of a tile, the most tokens that a cell of a tile covers, and for how long tiles are computed at a time. */
const TILE = 128;
const COARSEST = 4;
const SLICE = 6;
const SMALLEST_SPAN = 6;

/** The same head of the other report, where the map is to show the difference and every weight is known. */
function compared(state: State): Complete | null {
  const { other } = state;
  if (!other || !state.difference.value || !state.text.alike(other.text)) return null;
  const [mine, others] = [state.known.value, other.known.value];
  return isComplete(mine?.weights) && isComplete(others?.weights) ? others.weights : null;
}

export function currentShading(state: State): Shading {
  if (compared(state)) return DIFFERENCES;
  const most = state.report.heads[state.head.value]!.statistics.largest;
  return shadingOf(state.text.length, state.relative.value && most ? Math.min(1, most) : 1);
}

/** Draws what is known of a head; keeps pictures of tiles until the head or the colours change. */
export class Painter {
  private readonly pictures = new Map<string, HTMLCanvasElement>();
  private painted = "";
  /** Tiles that are in sight and not there yet: the first is being computed. */
  private readonly wanted = new Map<string, Generator<void, Raster>>();
  private colours: Rgb[] = [];
  private working = false;
  side = 0;

  constructor(
    private readonly state: State,
    private readonly repaint: () => void,
  ) {}

  /** Pixels of a token. */
  get scale(): number {
    return this.side / this.state.window.peek().span;
  }

  paint(context: CanvasRenderingContext2D, side: number, density: number): void {
    const { state } = this;
    this.side = side;
    const known = state.known.value;
    const shading = currentShading(state);
    const view = state.window.value;
    const other = compared(state);
    const name = [known?.head, state.theme.value, state.relative.value, state.cells.value, other && state.other?.head.value].join();
    if (name !== this.painted) {
      this.pictures.clear();
      this.wanted.clear();
      this.painted = name;
      this.colours = palette(state.theme.value, other ? DIVERGING[state.theme.value] : undefined);
    }
    const { colours } = this;
    let paled = false;
    context.imageSmoothingEnabled = false;
    context.fillStyle = css(colours[known && state.report.heads[known.head]!.nan ? BROKEN : HIDDEN]!);
    context.fillRect(0, 0, side, side);
    if (!known) return;
    const n = state.text.length;
    const scale = side / view.span;
    const { map, weights, listed } = known;
    if (map) {
      const step = n / map.side;
      // Without exact weights blocks would look like weights: they step back as soon as they can be told apart.
      paled = !(weights instanceof Exact) && step > 1 && scale * step > 10;
      context.globalAlpha = paled ? 0.28 : 1;
      const cells = this.remember("map", () => picture(ofCells(map[state.cells.value], map.side, shading), colours));
      context.drawImage(cells, -view.key * scale, -view.query * scale, n * scale, n * scale);
      context.globalAlpha = 1;
    }
    if (weights instanceof Dense) {
      const step = Math.max(1, Math.ceil(1 / (scale * density)));
      const whole = this.remember(`all ${step}`, () =>
        picture(finished(ofWeights(weights, { query: 0, key: 0, side: Math.ceil(n / step), step }, shading, other)), colours),
      );
      const [x, y] = [-view.key * scale, -view.query * scale];
      context.drawImage(whole, x, y, whole.width * step * scale, whole.height * step * scale);
    } else if (weights instanceof Exact && state.cells.value === "maximum") {
      this.tiles(context, weights, other, view, scale, density);
    } else if (listed && (paled || !map)) {
      const size = Math.max(scale, 2.5);
      const lastQuery = Math.min(n, Math.ceil(view.query + view.span));
      for (let query = Math.max(0, Math.floor(view.query)); query < lastQuery; query++) {
        const line = listed.row(query);
        line.weights.forEach((weight, i) => {
          const key = line.tokens?.[i] ?? i;
          if (key < view.key - 1 || key > view.key + view.span) return;
          context.fillStyle = css(colours[shadeOf(weight, shading)]!);
          const [x, y] = [(key + 0.5 - view.key) * scale, (query + 0.5 - view.query) * scale];
          context.fillRect(x - size / 2, y - size / 2, size, size);
        });
      }
    }
    state.paled.value = paled;
  }

  /** Draws the tiles that are there, and has the others computed one after the other. */
  private tiles(
    context: CanvasRenderingContext2D,
    weights: Exact,
    other: Complete | null,
    view: Window,
    scale: number,
    density: number,
  ): void {
    let step = 1;
    while (step * scale * density < 0.75) step *= 2;
    const missing = new Set<string>();
    const covers = TILE * step;
    const shading = currentShading(this.state);
    const last = (edge: number) => Math.min(weights.length - 1, Math.floor(edge + view.span));
    const rows = step > COARSEST ? -1 : Math.floor(last(view.query) / covers);
    for (let row = Math.floor(view.query / covers); row <= rows; row++) {
      for (let column = Math.floor(view.key / covers); column * covers <= last(view.key); column++) {
        const name = `tile ${step} ${row} ${column}`;
        const [query, key] = [row * covers, column * covers];
        const tile = this.pictures.get(name);
        if (tile) {
          const [x, y] = [(key - view.key) * scale, (query - view.query) * scale];
          context.drawImage(tile, x, y, tile.width * step * scale, tile.height * step * scale);
        } else {
          missing.add(name);
          if (!this.wanted.has(name)) this.wanted.set(name, ofWeights(weights, { query, key, side: TILE, step }, shading, other));
        }
      }
    }
    for (const name of this.wanted.keys()) if (!missing.has(name)) this.wanted.delete(name);
    this.work();
  }

  private remember(name: string, make: () => HTMLCanvasElement): HTMLCanvasElement {
    let made = this.pictures.get(name);
    if (!made) {
      this.pictures.set(name, (made = make()));
      if (this.pictures.size > 400) this.pictures.delete(this.pictures.keys().next().value!);
    }
    return made;
  }

  /** Computes tiles for a slice of time and paints: on this thread, since not every page may have workers. */
  private work(): void {
    if (this.working || this.wanted.size === 0) return;
    this.working = true;
    setTimeout(() => {
      this.working = false;
      const until = performance.now() + SLICE;
      for (const [name, steps] of this.wanted) {
        let next = steps.next();
        while (!next.done && performance.now() < until) next = steps.next();
        if (!next.done) break;
        this.wanted.delete(name);
        this.remember(name, () => picture(next.value as Raster, this.colours));
        if (performance.now() > until) break;
      }
      this.repaint();
    });
  }
}

/** A window that stays within the text. */
export function clamped(view: Window, length: number): Window {
  const span = Math.min(Math.max(view.span, Math.min(SMALLEST_SPAN, length)), length);
  const within = (edge: number) => Math.min(Math.max(edge, 0), length - span);
  return { key: within(view.key), query: within(view.query), span };
}

/** The window after a zoom about a point, which is given as shares of the window. */
export function zoomed(view: Window, factor: number, length: number, x = 0.5, y = 0.5): Window {
  const span = Math.min(Math.max(view.span / factor, Math.min(SMALLEST_SPAN, length)), length);
  const lost = view.span - span;
  return clamped({ key: view.key + x * lost, query: view.query + y * lost, span }, length);
}

export function HeadMap() {
  const state = useReport();
  const words = useWords();
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const head = state.report.heads[useValue(state.head)]!;

  useEffect(() => {
    const element = frame.current!;
    let request = 0;
    const draw = () => {
      request ||= requestAnimationFrame(() => {
        request = 0;
        if (canvas.current) paintAll(state, painter, canvas.current, element);
      });
    };
    const painter = new Painter(state, draw);
    const resized = new ResizeObserver(draw);
    resized.observe(element);
    const stop = effect(() => {
      void [state.known.value, state.window.value, state.theme.value, state.relative.value, state.cells.value];
      void [state.kept.value, state.hover.value, state.difference.value, state.other?.known.value];
      draw();
    });
    const gone = gestures(state, painter, canvas.current!);
    return () => {
      stop();
      gone();
      resized.disconnect();
      cancelAnimationFrame(request);
    };
  }, [state]);

  return (
    <section class="map" aria-label={words.map}>
      <div class="inner">
        <Controls />
        <div class="plot" ref={frame}>
          <canvas
            ref={canvas}
            tabIndex={0}
            role="application"
            aria-label={words.mapLabel(words.headName(head.layer, head.head))}
            aria-description={words.mapHint}
          />
        </div>
      </div>
    </section>
  );
}

function Controls() {
  const state = useReport();
  const words = useWords();
  const view = useValue(state.window);
  const known = useValue(state.known);
  const cells = useValue(state.cells);
  const relative = useValue(state.relative);
  const difference = useValue(state.difference);
  const n = state.text.length;
  const zoom = (factor: number) => (state.window.value = zoomed(state.window.value, factor, n));
  const floor = known?.weights?.floor ?? 0;
  const paled = useValue(state.paled);
  return (
    <div class="controls">
      <ColourBar />
      <div class="row" role="group" aria-label={words.map}>
        <button type="button" class="square" aria-label={words.zoomOut} title={words.zoomOut} onClick={() => zoom(1 / 1.5)}>
          −
        </button>
        <button type="button" class="square" aria-label={words.zoomIn} title={words.zoomIn} onClick={() => zoom(1.5)}>
          +
        </button>
        <button type="button" onClick={() => (state.window.value = state.whole)} disabled={view.span >= n}>
          {words.whole}
        </button>
        <span class="quiet">{words.tokensShown(Math.round(view.span).toLocaleString("en-US"))}</span>
      </div>
      <label>
        <span>{words.colours}</span>
        <select
          value={difference ? "difference" : relative ? "own" : "same"}
          onChange={({ currentTarget: { value } }) =>
            batch(() => {
              state.relative.value = value === "own";
              state.difference.value = value === "difference";
            })
          }
        >
          <option value="same">{words.shadingSame}</option>
          <option value="own">{words.shadingOwn}</option>
          {state.other && state.text.alike(state.other.text) && (
            <option value="difference">{words.shadingDifference(state.other.report.model.name)}</option>
          )}
        </select>
      </label>
      {known?.map && (
        <label>
          <span>{words.cells}</span>
          <select
            value={cells}
            onChange={(event) => (state.cells.value = event.currentTarget.value === "mass" ? "mass" : "maximum")}
          >
            <option value="maximum">{words.cellsMaximum}</option>
            <option value="mass">{words.cellsMass}</option>
          </select>
        </label>
      )}
      <Readout />
      {floor > 0 && <p class={`quiet${paled ? "" : " unsaid"}`}>{words.paled(String(floor))}</p>}
      <p class="quiet hint">{words.mapHint}</p>
    </div>
  );
}

/** The pair under the pointer, and its weight. */
function Readout() {
  const state = useReport();
  const words = useWords();
  const hover = useValue(state.hover);
  const known = useValue(state.known);
  useValue(state.head);
  useValue(state.difference);
  if (!hover || hover.key === null || !known) return <p class="readout" />;
  const { query, key } = hover;
  const weight = known.weights?.at(query, key) ?? NaN;
  const other = compared(state);
  const broken = state.report.heads[known.head]!.nan;
  const unseen = state.report.model.causal && key > query;
  const value = unseen
    ? words.hidden
    : Number.isNaN(weight)
      ? broken
        ? words.broken
        : words.below(String(known.weights?.floor))
      : other
        ? signed(weight - other.at(query, key))
        : number(weight);
  return (
    <p class="readout">
      <bdi>{state.text.name(query)}</bdi>
      <span class="quiet"> {query} → </span>
      <bdi>{state.text.name(key)}</bdi>
      <span class="quiet"> {key} </span>
      <strong>{value}</strong>
    </p>
  );
}

const signed = (value: number) => (value > 0 ? "+" : value < 0 ? "−" : "") + number(Math.abs(value));

function ColourBar() {
  const state = useReport();
  const words = useWords();
  const theme = useValue(state.theme);
  useValue(state.relative);
  useValue(state.head);
  useValue(state.known);
  useValue(state.difference);
  const shading = currentShading(state);
  const ramp = shading === DIFFERENCES ? DIVERGING[theme] : RAMPS[theme];
  const colours = useMemo(() => ramp.filter((_, i) => i % 5 === 0).map(css), [ramp]);
  const label = (tick: number) => (tick === 0 ? "0" : Math.abs(tick) >= 0.01 ? String(Number(tick.toPrecision(2))) : tick.toExponential(0).replace("e-", "e−"));
  return (
    <div class="colourbar" role="img" aria-label={`${words.colours}: 0 – ${label(shading.weight(1))}`}>
      <span class="quiet">{words.weight}</span>
      <svg class="ramp" viewBox={`0 0 ${colours.length} 1`} preserveAspectRatio="none" shape-rendering="crispEdges">
        {colours.map((colour, i) => (
          <rect key={i} x={i} width="1.1" height="1" fill={colour} />
        ))}
      </svg>
      <div class="ticks">
        {shading.ticks
          .filter((tick, i, all) => i === 0 || Math.abs(shading.shade(tick) - shading.shade(all[i - 1]!)) > 0.1)
          .map((tick) => (
            <span key={tick} style={{ "--at": shading.shade(tick) }}>
              {label(tick)}
            </span>
          ))}
      </div>
    </div>
  );
}

function paintAll(state: State, painter: Painter, canvas: HTMLCanvasElement, frame: HTMLElement): void {
  const box = frame.getBoundingClientRect();
  const side = Math.floor(Math.max(80, Math.min(box.width - MARGIN.left - 2, box.height - MARGIN.top - 2)));
  const density = devicePixelRatio || 1;
  const [width, height] = [side + MARGIN.left + 2, side + MARGIN.top + 2];
  if (canvas.width !== Math.round(width * density) || canvas.height !== Math.round(height * density)) {
    canvas.width = Math.round(width * density);
    canvas.height = Math.round(height * density);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(frame);
  context.save();
  context.translate(MARGIN.left, MARGIN.top);
  context.save();
  context.beginPath();
  context.rect(0, 0, side, side);
  context.clip();
  painter.paint(context, side, density);
  crosshair(context, state, side, style);
  context.restore();
  context.strokeStyle = style.getPropertyValue("--line");
  context.lineWidth = 1;
  context.strokeRect(-0.5, -0.5, side + 1, side + 1);
  axes(context, state, side, style);
  context.restore();
}

/** Lines along the kept query and the pair under the pointer. */
function crosshair(context: CanvasRenderingContext2D, state: State, side: number, style: CSSStyleDeclaration): void {
  const view = state.window.peek();
  const scale = side / view.span;
  const kept = state.kept.peek();
  const hover = state.hover.peek();
  const band = (at: number, edge: number, down: boolean, name: string) => {
    const from = (at - edge) * scale;
    context.strokeStyle = context.fillStyle = style.getPropertyValue(name);
    context.lineWidth = 1;
    if (scale < 4) context.fillRect(down ? from + scale / 2 - 0.5 : 0, down ? 0 : from + scale / 2 - 0.5, down ? 1 : side, down ? side : 1);
    else if (down) context.strokeRect(from - 0.5, -2, scale + 1, side + 4);
    else context.strokeRect(-2, from - 0.5, side + 4, scale + 1);
  };
  if (kept !== null) band(kept, view.query, false, "--blue");
  if (hover) {
    band(hover.query, view.query, false, "--ink");
    if (hover.key !== null) band(hover.key, view.key, true, "--ink");
  }
}

function axes(context: CanvasRenderingContext2D, state: State, side: number, style: CSSStyleDeclaration): void {
  const view = state.window.peek();
  const scale = side / view.span;
  const hover = state.hover.peek();
  const kept = state.kept.peek();
  context.font = `${scale >= 11 ? Math.min(13, Math.max(10, scale * 0.8)) : 11}px ${style.fontFamily}`;
  context.textBaseline = "middle";
  const along = (edge: number, draw: (place: number, label: string, strong: boolean) => void, strong: number | null) => {
    if (scale >= 11) {
      const last = Math.min(state.text.length, Math.ceil(edge + view.span));
      for (let token = Math.max(0, Math.floor(edge)); token < last; token++) {
        const place = (token + 0.5 - edge) * scale;
        if (place >= 0 && place <= side) draw(place, clipped(state.text.name(token)), token === strong);
      }
    } else {
      for (const tick of ticks(edge, edge + view.span, side / 60)) {
        if (Number.isInteger(tick) && tick < state.text.length) draw((tick + 0.5 - edge) * scale, tick.toLocaleString("en-US"), false);
      }
    }
  };
  const ink = (strong: boolean) => {
    context.fillStyle = style.getPropertyValue(strong ? "--ink" : "--quiet");
  };
  along(
    view.query,
    (place, label, strong) => {
      ink(strong);
      context.textAlign = "right";
      context.fillText(label, -6, place, MARGIN.left - 8);
    },
    hover?.query ?? kept,
  );
  along(
    view.key,
    (place, label, strong) => {
      ink(strong);
      context.save();
      context.translate(place, -6);
      if (scale >= 11) context.rotate(-Math.PI / 2);
      context.textAlign = scale >= 11 ? "left" : place > side - 20 ? "right" : "center";
      context.fillText(label, 0, scale >= 11 ? 0 : -4, MARGIN.top - 8);
      context.restore();
    },
    hover?.key ?? null,
  );
}

function clipped(name: string): string {
  const letters = Array.from(name);
  return letters.length > 9 ? `${letters.slice(0, 8).join("")}…` : name;
}

/** Wheel, drag, pinch and keys. Returns what takes the listeners off. */
function gestures(state: State, painter: Painter, canvas: HTMLCanvasElement): () => void {
  const pointers = new Map<number, { x: number; y: number }>();
  const n = state.text.length;
  let moved = 0;
  const listeners = new AbortController();
  const { signal } = listeners;
  const place = (event: { offsetX: number; offsetY: number }) => ({ x: event.offsetX - MARGIN.left, y: event.offsetY - MARGIN.top });
  const pair = (event: MouseEvent) => {
    const { x, y } = place(event);
    const view = state.window.peek();
    const inside = x >= 0 && y >= 0 && x < painter.side && y < painter.side;
    const token = (edge: number, at: number) => Math.min(n - 1, Math.max(0, Math.floor(edge + at / painter.scale)));
    return inside ? { query: token(view.query, y), key: token(view.key, x) } : null;
  };

  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const { x, y } = place(event);
      const factor = Math.exp(-Math.max(-120, Math.min(120, event.deltaY)) / 400);
      state.window.value = zoomed(state.window.peek(), factor, n, x / painter.side, y / painter.side);
    },
    { passive: false, signal },
  );
  canvas.addEventListener(
    "pointerdown",
    (event) => {
      pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      canvas.setPointerCapture(event.pointerId);
      moved = 0;
    },
    { signal },
  );
  canvas.addEventListener(
    "pointermove",
    (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) {
        state.hover.value = pair(event);
        return;
      }
      const now = { x: event.offsetX, y: event.offsetY };
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      const view = state.window.peek();
      if (other) {
        const apart = (point: { x: number; y: number }) => Math.hypot(point.x - other.x, point.y - other.y);
        const factor = apart(now) / Math.max(1, apart(before));
        const [x, y] = [(other.x - MARGIN.left) / painter.side, (other.y - MARGIN.top) / painter.side];
        state.window.value = zoomed(view, factor, n, x, y);
        moved = Infinity;
      } else {
        const [right, down] = [now.x - before.x, now.y - before.y];
        moved += Math.abs(right) + Math.abs(down);
        if (moved > 3) {
          const { key, query, span } = view;
          state.window.value = clamped({ key: key - right / painter.scale, query: query - down / painter.scale, span }, n);
        }
      }
      pointers.set(event.pointerId, now);
    },
    { signal },
  );
  const release = (event: PointerEvent) => {
    pointers.delete(event.pointerId);
    const found = moved <= 3 && event.type === "pointerup" ? pair(event) : null;
    if (found) state.keep(found.query);
  };
  canvas.addEventListener("pointerup", release, { signal });
  canvas.addEventListener("pointercancel", release, { signal });
  canvas.addEventListener("pointerleave", () => (state.hover.value = null), { signal });
  canvas.addEventListener(
    "keydown",
    (event) => {
      const view = state.window.peek();
      const step = view.span / 8;
      const moves: Record<string, () => void> = {
        "+": () => (state.window.value = zoomed(view, 1.5, n)),
        "=": () => (state.window.value = zoomed(view, 1.5, n)),
        "-": () => (state.window.value = zoomed(view, 1 / 1.5, n)),
        "0": () => (state.window.value = state.whole),
        ArrowLeft: () => (state.window.value = clamped({ ...view, key: view.key - step }, n)),
        ArrowRight: () => (state.window.value = clamped({ ...view, key: view.key + step }, n)),
        ArrowUp: () => (state.window.value = clamped({ ...view, query: view.query - step }, n)),
        ArrowDown: () => (state.window.value = clamped({ ...view, query: view.query + step }, n)),
      };
      const move = moves[event.key];
      if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      batch(move);
    },
    { signal },
  );
  return () => listeners.abort();
}
