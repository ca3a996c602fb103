/** The map of a head with its controls: it zooms from the whole text to single weights. */

import { batch, effect } from "@preact/signals-core";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { css, DIFFERENCES, DIVERGING, RAMPS } from "./color";
import { gestures, zoomed } from "./gestures";
import { grouped, number } from "./language";
import { compared, currentShading, Painter } from "./painter";
import { drawPlot } from "./plot";
import { Remote } from "./remote";
import { useReport, useValue, useWords } from "./state";

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
        if (canvas.current) drawPlot(state, painter, canvas.current, element);
      });
    };
    const painter = new Painter(state, draw);
    const resized = new ResizeObserver(draw);
    resized.observe(element);
    const stop = effect(() => {
      void [state.known.value, state.window.value, state.theme.value, state.relative.value, state.cells.value];
      void [state.kept.value, state.hover.value, state.difference.value, state.other?.known.value, state.language.value];
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
  const known = useValue(state.known);
  const cells = useValue(state.cells);
  const relative = useValue(state.relative);
  const difference = useValue(state.difference);
  const floor = known?.weights?.floor ?? 0;
  const paled = useValue(state.paled);
  return (
    <div class="controls">
      <ColourBar />
      <Zoom />
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

/** How many tokens are in sight. It is drawn again in each frame of a zoom, so it stands alone. */
function Zoom() {
  const state = useReport();
  const words = useWords();
  const { span } = useValue(state.window);
  const n = state.text.length;
  const zoom = (factor: number) => (state.window.value = zoomed(state.window.value, factor, n));
  return (
    <div class="row" role="group" aria-label={words.map}>
      <button type="button" class="square" aria-label={words.zoomOut} title={words.zoomOut} onClick={() => zoom(1 / 1.5)}>
        −
      </button>
      <button type="button" class="square" aria-label={words.zoomIn} title={words.zoomIn} onClick={() => zoom(1.5)}>
        +
      </button>
      <button type="button" onClick={() => (state.window.value = state.whole)} disabled={span >= n}>
        {words.whole}
      </button>
      <span class="quiet">{words.tokensShown(grouped(Math.round(span)))}</span>
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
        : known.weights instanceof Remote
          ? words.loading
          : known.weights
            ? words.below(String(known.weights.floor))
            : words.onlyMap
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
