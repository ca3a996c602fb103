/** The page: tabs, the view, and what is exact. `mount` puts it anywhere; a page that holds a report mounts itself. */

import "./viewer.css";
import { render } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { inflate } from "./codes";
import { Detail } from "./detail";
import { Exact } from "./exact";
import type { Report, Source } from "./format";
import { Heads } from "./heads";
import { number, percent } from "./language";
import { HeadMap } from "./map";
import { Method, Profiles, Roles } from "./pages";
import { Sentence } from "./sentence";
import { csvOf, download, pngOf, svgOf } from "./snapshot";
import { State, StateContext, useReport, useValue, useWords, VIEWS } from "./state";
import { Dense, Listed } from "./weights";

function App({ source, address }: { source: Source; address: boolean }) {
  const state = useMemo(() => new State(source, address), [source, address]);
  const root = useRef<HTMLDivElement>(null);
  const theme = useValue(state.theme);
  const language = useValue(state.language);
  const view = useValue(state.view);
  useEffect(() => {
    const stops = [address ? state.address() : () => {}, state.follow()];
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const follow = () => (state.theme.value = dark.matches ? "dark" : "light");
    dark.addEventListener("change", follow);
    const letGo = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !event.defaultPrevented) state.release();
    };
    const element = root.current!;
    const target: EventTarget = address ? window : element;
    target.addEventListener("keydown", letGo as EventListener);
    return () => {
      stops.forEach((stop) => stop());
      dark.removeEventListener("change", follow);
      target.removeEventListener("keydown", letGo as EventListener);
    };
  }, [state, address]);
  return (
    <StateContext.Provider value={state}>
      <div class="headway" data-theme={theme} lang={language === "zh" ? "zh-Hans" : "en"} ref={root}>
        <Header />
        <main>
          <div class={`view ${view}`} role="tabpanel" id="view" aria-labelledby={`tab-${view}`}>
          {(view === "explore" || view === "map" || view === "profiles") && <Heads />}
          {view === "explore" && (
            <div class="centre">
              <Sentence />
              <HeadMap />
            </div>
          )}
          {view === "map" && <HeadMap />}
          {(view === "explore" || view === "map") && <Detail />}
          {view === "roles" && <Roles />}
          {view === "profiles" && <Profiles />}
          {view === "method" && <Method />}
          </div>
        </main>
        <Foot />
      </div>
    </StateContext.Provider>
  );
}

function Header() {
  const state = useReport();
  const words = useWords();
  const view = useValue(state.view);
  const theme = useValue(state.theme);
  const tabs = useRef<HTMLDivElement>(null);
  const { report } = state;
  const move = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = VIEWS[(VIEWS.indexOf(view) + step + VIEWS.length) % VIEWS.length]!;
    state.view.value = next;
    tabs.current?.querySelector<HTMLElement>(`#tab-${next}`)?.focus();
  };
  return (
    <header>
      <h1>
        <bdi>{report.model.name}</bdi>
        <span class="quiet">
          {words.tokens(state.text.length.toLocaleString("en-US"))} · {words.headCount(String(report.heads.length))}
          {report.model.encoding && ` · ${report.model.encoding}`}
        </span>
      </h1>
      <div class="tabs" role="tablist" ref={tabs} onKeyDown={move}>
        {VIEWS.map((name) => (
          <button
            type="button"
            key={name}
            id={`tab-${name}`}
            role="tab"
            aria-selected={name === view}
            aria-controls="view"
            tabIndex={name === view ? 0 : -1}
            onClick={() => (state.view.value = name)}
          >
            {words[name]}
          </button>
        ))}
      </div>
      <div class="tools">
        <span class="group" role="group" aria-label={words.save}>
          <button type="button" onClick={(event) => save(state, event.currentTarget, "png")}>
            PNG
          </button>
          <button type="button" onClick={(event) => save(state, event.currentTarget, "svg")}>
            SVG
          </button>
          <button type="button" onClick={(event) => save(state, event.currentTarget, "csv")}>
            CSV
          </button>
        </span>
        <button type="button" onClick={() => print()}>
          {words.print}
        </button>
        <button
          type="button"
          title={words.theme}
          onClick={() => (state.theme.value = theme === "dark" ? "light" : "dark")}
        >
          {theme === "dark" ? words.light : words.dark}
        </button>
        <button
          type="button"
          class="language"
          lang={words.languageName === "English" ? "en" : "zh-Hans"}
          onClick={() => (state.language.value = state.language.value === "zh" ? "en" : "zh")}
        >
          {words.languageName}
        </button>
      </div>
    </header>
  );
}

/** What is exact of the head that is shown, and to which error. */
function Foot() {
  const state = useReport();
  const words = useWords();
  const known = useValue(state.known);
  const { exactness, heads } = state.report;
  const weights = known?.weights;
  return (
    <footer class="quiet" aria-live="polite">
      {!known
        ? words.loading
        : heads[known.head]!.nan
          ? words.nanHead
          : weights instanceof Dense
            ? words.exactAll(percent(exactness.dense ?? 0))
            : weights instanceof Exact
              ? words.exactCodes(number(exactness.exact, 4))
              : weights instanceof Listed
                ? words.exactList(number(exactness.tau))
                : words.exactMap}
    </footer>
  );
}

async function save(state: State, button: HTMLElement, form: "png" | "svg" | "csv"): Promise<void> {
  const { layer, head } = state.report.heads[state.head.peek()]!;
  const name = `${state.view.peek()}-layer-${layer}-head-${head}.${form}`;
  if (form === "csv") return download(name, new Blob([csvOf(state)], { type: "text/csv" }));
  const svg = svgOf(button.closest(".headway")!.querySelector<HTMLElement>(".view")!);
  download(name, form === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await pngOf(svg));
}

/** Draws a report into an element; returns what removes it. With `address`, the page's address follows what is chosen. */
export function mount(element: Element, source: Source, address = false): () => void {
  render(<App source={source} address={address} />, element);
  return () => render(null, element);
}

const held = document.getElementById("headway-report");
if (held) {
  const source: Source = {
    report: JSON.parse(held.textContent!) as Report,
    chunk: (id) => inflate(document.getElementById(id)!.textContent!),
  };
  mount(document.getElementById("headway")!, source, true);
}
