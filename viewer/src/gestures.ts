/** How a map is moved: by wheel, drag, pinch and keys. */

import { batch } from "@preact/signals-core";
import type { Painter } from "./painter";
import { MARGIN } from "./plot";
import type { State, Window } from "./state";

/** The fewest tokens across. */
const SMALLEST_SPAN = 6;

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

/** Listens to a canvas; returns what takes the listeners off. */
export function gestures(state: State, painter: Painter, canvas: HTMLCanvasElement): () => void {
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
