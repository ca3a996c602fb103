/** A map with its axes, on one canvas. */

import { ticks } from "d3-array";
import type { Painter } from "./painter";
import { grouped, LANGUAGES } from "./language";
import type { State } from "./state";

/** Where axes stand, in CSS pixels: labels of queries at the left, of keys at the top. */
export const MARGIN = { left: 68, top: 60 };

const NAMES = ["ink", "quiet", "line", "blue"] as const;
type Colours = Record<(typeof NAMES)[number], string>;

export function drawPlot(state: State, painter: Painter, canvas: HTMLCanvasElement, frame: HTMLElement): void {
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
  const colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`)])) as Colours;
  context.save();
  context.translate(MARGIN.left, MARGIN.top);
  context.save();
  context.beginPath();
  context.rect(0, 0, side, side);
  context.clip();
  painter.paint(context, side, density);
  crosshair(context, state, side, colours);
  context.restore();
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.strokeRect(-0.5, -0.5, side + 1, side + 1);
  axes(context, state, side, colours, style.fontFamily);
  context.restore();
}

/** Lines along the kept query and the pair under the pointer. */
function crosshair(context: CanvasRenderingContext2D, state: State, side: number, colours: Colours): void {
  const view = state.window.peek();
  const scale = side / view.span;
  const kept = state.kept.peek();
  const hover = state.hover.peek();
  const band = (at: number, edge: number, down: boolean, name: keyof Colours) => {
    const from = (at - edge) * scale;
    context.strokeStyle = context.fillStyle = colours[name];
    context.lineWidth = 1;
    if (scale < 4) context.fillRect(down ? from + scale / 2 - 0.5 : 0, down ? 0 : from + scale / 2 - 0.5, down ? 1 : side, down ? side : 1);
    else if (down) context.strokeRect(from - 0.5, -2, scale + 1, side + 4);
    else context.strokeRect(-2, from - 0.5, side + 4, scale + 1);
  };
  if (kept !== null) band(kept, view.query, false, "blue");
  if (hover) {
    band(hover.query, view.query, false, "ink");
    if (hover.key !== null) band(hover.key, view.key, true, "ink");
  }
}

function axes(context: CanvasRenderingContext2D, state: State, side: number, colours: Colours, family: string): void {
  const view = state.window.peek();
  const scale = side / view.span;
  const hover = state.hover.peek();
  const kept = state.kept.peek();
  const words = LANGUAGES[state.language.peek()];
  context.font = `11px ${family}`;
  context.fillStyle = colours.quiet;
  context.textAlign = "right";
  context.textBaseline = "alphabetic";
  context.fillText(words.down, -6, -22, MARGIN.left - 8);
  context.fillText(words.across, -6, -8, MARGIN.left - 8);
  context.font = `${scale >= 11 ? Math.min(13, Math.max(10, scale * 0.8)) : 11}px ${family}`;
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
        if (Number.isInteger(tick) && tick < state.text.length) draw((tick + 0.5 - edge) * scale, grouped(tick), false);
      }
    }
  };
  const ink = (strong: boolean) => {
    context.fillStyle = strong ? colours.ink : colours.quiet;
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
      const upright = scale < 11;
      context.translate(upright ? Math.min(place, side - context.measureText(label).width / 2) : place, -6);
      if (!upright) context.rotate(-Math.PI / 2);
      context.textAlign = upright ? "center" : "left";
      context.fillText(label, 0, upright ? -4 : 0, MARGIN.top - 8);
      context.restore();
    },
    hover?.key ?? null,
  );
}

function clipped(name: string): string {
  const letters = Array.from(name);
  return letters.length > 9 ? `${letters.slice(0, 8).join("")}…` : name;
}
