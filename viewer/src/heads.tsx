/** Layers and heads as thumbnails of their maps, with badges of roles. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { shading, type Rgb, type Theme } from "./color";
import { ROLES } from "./language";
import { ofCells, palette, picture } from "./raster";
import { useReport, useValue, useWords } from "./state";

/** The colours of roles, as hues. Roles of a user's own share the last. */
const HUES: Record<string, number> = {
  coreferential: 350,
  syntactic: 25,
  induction: 265,
  duplicate_token: 300,
  rare_word: 330,
  positional: 215,
  sink: 150,
  delimiter: 95,
  block: 60,
  local: 185,
  broad: 125,
};

export const roleColour = (role: string, theme: Theme) =>
  `oklch(${theme === "light" ? 0.62 : 0.75} 0.15 ${HUES[role] ?? 0})`;

export function useRoleName(): (role: string) => string {
  const language = useValue(useReport().language);
  return (role) => ROLES[role]?.[language][0] ?? role;
}

export function Heads() {
  const state = useReport();
  const words = useWords();
  const theme = useValue(state.theme);
  const chosen = useValue(state.head);
  const [only, setOnly] = useState<string | null>(null);
  const roleName = useRoleName();
  const grid = useRef<HTMLDivElement>(null);
  const { heads } = state.report;
  const layers = useMemo(() => {
    const rows = new Map<number, number[]>();
    heads.forEach(({ layer }, index) => rows.set(layer, [...(rows.get(layer) ?? []), index]));
    return [...rows];
  }, [heads]);
  const across = Math.max(...layers.map(([, row]) => row.length));
  const colours = useMemo(() => palette(theme), [theme]);
  const size = Math.max(14, Math.min(34, Math.floor(276 / across) - 3));

  const move = (event: KeyboardEvent) => {
    const { layer, head } = heads[chosen]!;
    const row = layers.findIndex(([number]) => number === layer);
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
    };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const next = layers[row + step[0]]?.[1].find((index) => heads[index]!.head === head + step[1]);
    if (next === undefined) return;
    state.head.value = next;
    grid.current?.querySelector<HTMLElement>(`[data-head="${next}"]`)?.focus();
  };

  const counts = new Map<string, number>();
  for (const { roles } of heads) if (roles[0]) counts.set(roles[0].role, (counts.get(roles[0].role) ?? 0) + 1);
  return (
    <nav class="heads" aria-label={words.heads}>
      <h2>{words.heads}</h2>
      <p class="quiet lead">{words.headsLead}</p>
      <div class="grid" ref={grid} style={{ "--size": `${size}px` }} onKeyDown={move}>
        <div class="layer quiet" aria-hidden="true">
          <span class="number" />
          {layers[0]![1].map((_, head) => (
            <span key={head} class="column">
              {size >= 18 || head % 5 === 0 ? head : ""}
            </span>
          ))}
        </div>
        {layers.map(([layer, row]) => (
          <div key={layer} class="layer" role="group" aria-label={`${words.layer} ${layer}`}>
            <span class="number quiet" aria-hidden="true">
              {layer}
            </span>
            {row.map((index) => {
              const { head, roles, nan } = heads[index]!;
              const said = nan ? words.broken : roles.map(({ role }) => roleName(role)).join(", ") || words.noRole;
              const dimmed = only !== null && roles[0]?.role !== only;
              return (
                <button
                  type="button"
                  key={index}
                  data-head={index}
                  class={`head${dimmed ? " dimmed" : ""}`}
                  aria-label={`${words.headName(layer, head)}: ${said}`}
                  title={`${words.headName(layer, head)}: ${said}`}
                  aria-pressed={index === chosen}
                  tabIndex={index === chosen ? 0 : -1}
                  onClick={() => (state.head.value = index)}
                >
                  <Thumbnail index={index} colours={colours} />
                  <i style={roles[0] && { background: roleColour(roles[0].role, theme) }} />
                </button>
              );
            })}
          </div>
        ))}
      </div>
      <div class="badges">
        {[...counts].map(([role, count]) => (
          <button
            type="button"
            key={role}
            aria-pressed={only === role}
            onClick={() => setOnly(only === role ? null : role)}
          >
            <i style={{ background: roleColour(role, theme) }} />
            {roleName(role)} <span class="quiet">{count}</span>
          </button>
        ))}
      </div>
    </nav>
  );
}

function Thumbnail({ index, colours }: { index: number; colours: Rgb[] }) {
  const state = useReport();
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    let gone = false;
    void state.loader.thumbnails().then((found) => {
      if (gone || !found || !canvas.current) return;
      const side = state.report.thumbs;
      const cells = found.subarray(index * side * side, (index + 1) * side * side);
      picture(ofCells(cells, side, shading(state.text.length, 1)), colours, canvas.current);
    });
    return () => {
      gone = true;
    };
  }, [index, colours, state]);
  return <canvas ref={canvas} width={1} height={1} aria-hidden="true" />;
}
