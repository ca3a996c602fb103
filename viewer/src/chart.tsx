/** Small charts. */

import { max, ticks } from "d3-array";
import { useEffect, useRef } from "preact/hooks";
import type { Range } from "./format";
import { grouped, number } from "./language";
import { useReport, useValue, useWords } from "./state";

interface BarsProps {
  values: (number | null)[];
  ranges: Range[];
  width?: number;
  height?: number;
}

/** The mean weight in ranges of key - query. */
export function Bars({ values, ranges, width = 260, height = 84 }: BarsProps) {
  const words = useWords();
  const all = ranges.map((range, i) => ({ range, value: values[i] ?? 0 }));
  const worth = all.map(({ range: [low, high], value }) => value >= 0.0005 || ((low ?? -Infinity) <= 0 && (high ?? Infinity) >= -3));
  const used = all.slice(worth.indexOf(true), worth.lastIndexOf(true) + 1);
  const top = max(used, ({ value }) => value) || 1;
  const step = width / used.length;
  const name = ([low, high]: Range) =>
    low === high ? sign(low!) : high === null ? `≥ ${sign(low!)}` : low === null ? `≤ ${sign(high)}` : `${sign(low)} … ${sign(high)}`;
  const said = used.map(({ range, value }) => `${name(range)}: ${number(value)}`).join("; ");
  const own = used.findIndex(({ range: [low, high] }) => low === 0 && high === 0);
  return (
    <svg class="bars" viewBox={`0 0 ${width} ${height + 18}`} role="img" aria-label={`${words.byDistance}: ${said}`}>
      {used.map(({ range, value }, i) => (
        <rect
          key={i}
          class={range[0] === 0 && range[1] === 0 ? "own" : undefined}
          x={i * step + 1}
          width={Math.max(1, step - 2)}
          y={height - (value / top) * (height - 12)}
          height={(value / top) * (height - 12)}
        >
          <title>{`${name(range)}: ${number(value)}`}</title>
        </rect>
      ))}
      <line x1="0" x2={width} y1={height + 0.5} y2={height + 0.5} />
      <text x="0" y="9">
        {number(top, 2)}
      </text>
      <text x="0" y={height + 14}>
        {used[0] && (used[0].range[0] ?? -1) < 0 ? name(used[0].range) : ""}
      </text>
      {own >= 0 && (
        <text x={(own + 0.5) * step} y={height + 14} text-anchor="middle">
          0
        </text>
      )}
      <text x={width} y={height + 14} text-anchor="end">
        {used.at(-1) && (used.at(-1)!.range[1] ?? 1) > 0 ? name(used.at(-1)!.range) : ""}
      </text>
    </svg>
  );
}

const sign = (value: number) => String(value).replace("-", "−");

/** Numbers along the text: of each pixel column the largest. A click keeps the token. */
export function Along({ values, label }: { values: Float32Array; label: string }) {
  const state = useReport();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useValue(state.theme);
  const kept = useValue(state.kept);
  useEffect(() => {
    const element = canvas.current!;
    const draw = () => drawAlong(element, values, state.text.length, kept);
    draw();
    const resized = new ResizeObserver(draw);
    resized.observe(element);
    return () => resized.disconnect();
  }, [values, theme, kept]);
  return (
    <figure>
      <figcaption>{label}</figcaption>
      <canvas
        ref={canvas}
        role="img"
        aria-label={label}
        onClick={(event) => {
          const share = (event.offsetX - LEFT) / (event.currentTarget.clientWidth - LEFT);
          const { length } = state.text;
          if (share >= 0) state.keep(Math.min(length - 1, Math.floor(share * length)));
        }}
      />
    </figure>
  );
}

const LEFT = 44;

function drawAlong(canvas: HTMLCanvasElement, values: Float32Array, length: number, kept: number | null): void {
  const density = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  const context = canvas.getContext("2d")!;
  const style = getComputedStyle(canvas);
  context.scale(density, density);
  context.font = `11px ${style.fontFamily}`;
  const top = max(values) || 1;
  const plot = { width: width - LEFT, height: height - 18 };
  const y = (value: number) => 4 + (plot.height - 4) * (1 - value / top);
  context.strokeStyle = style.getPropertyValue("--line");
  context.fillStyle = style.getPropertyValue("--quiet");
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of ticks(0, top, 3)) {
    context.beginPath();
    context.moveTo(LEFT, Math.round(y(tick)) + 0.5);
    context.lineTo(width, Math.round(y(tick)) + 0.5);
    context.stroke();
    context.fillText(number(tick, 2), LEFT - 6, Math.max(7, y(tick)));
  }
  context.textAlign = "center";
  for (const tick of ticks(0, length, plot.width / 90)) {
    const x = LEFT + (tick / length) * plot.width;
    if (x < width - 16) context.fillText(grouped(tick), Math.max(LEFT + 4, x), height - 6);
  }
  context.fillStyle = style.getPropertyValue("--blue");
  const columns = Math.min(values.length, Math.round(plot.width));
  for (let column = 0; column < columns; column++) {
    const from = Math.floor((column * values.length) / columns);
    const part = values.subarray(from, Math.max(from + 1, Math.floor(((column + 1) * values.length) / columns)));
    const highest = max(part) ?? 0;
    const x = LEFT + (column * plot.width) / columns;
    context.fillRect(x, y(highest), Math.max(1, plot.width / columns - 1), plot.height - y(highest));
  }
  if (kept !== null) {
    context.fillStyle = style.getPropertyValue("--orange");
    context.fillRect(LEFT + ((kept + 0.5) / length) * plot.width - 0.75, 0, 1.5, plot.height);
  }
}
