/** The page: tabs, the view, and what is exact. `mount` puts it anywhere; a page that holds a report mounts itself. */

import "./viewer.css";
import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { decoded, inflate } from "./codes";
import { Detail } from "./detail";
import { Exact } from "./exact";
import type { Pair, Report, Source } from "./format";
import { Heads } from "./heads";
import { bound, grouped } from "./language";
import type { Known } from "./load";
import { HeadMap } from "./map";
import { Method, Profiles, Roles } from "./pages";
import { Sentence } from "./sentence";
import { csvOf, download, pngOf, svgOf } from "./snapshot";
import { follow, State, StateContext, useReport, useValue, useWords, VIEWS } from "./state";
import { Remote } from "./remote";
import { Dense } from "./weights";
import { sourceOf, type Model } from "./widget";

function App({ state, address }: { state: State; address: boolean }) {
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
          <div class={`view ${view}`} role="tabpanel" id={`${state.id}-view`} aria-labelledby={`${state.id}-${view}`}>
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
    tabs.current?.querySelector<HTMLElement>(`[data-view="${next}"]`)?.focus();
  };
  return (
    <header>
      <h1>
        <bdi>{report.model.name}</bdi>
        <span class="quiet">
          {words.tokens(grouped(state.text.length))} · {words.headCount(String(report.heads.length))}
        </span>
      </h1>
      <div class="tabs" role="tablist" ref={tabs} onKeyDown={move}>
        {VIEWS.map((name) => (
          <button
            type="button"
            key={name}
            id={`${state.id}-${name}`}
            data-view={name}
            role="tab"
            aria-selected={name === view}
            aria-controls={`${state.id}-view`}
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
  return (
    <footer class="quiet" aria-live="polite">
      {known ? exactness(state.report, known, words) : words.loading}
    </footer>
  );
}

function exactness({ exactness, heads }: Report, { head, weights }: Known, words: ReturnType<typeof useWords>): string {
  const { nan, reason } = heads[head]!;
  const map = exactness.map === null ? "–" : `${bound(100 * exactness.map)} %`;
  if (nan) return words.nanHead;
  const all = heads.every(({ form }) => form !== "list");
  if (weights instanceof Dense) return words.exact(bound(exactness.dense), all, false);
  if (weights instanceof Exact) return words.exact(bound(exactness.exact), all, true);
  if (weights instanceof Remote) return words.exactKernel;
  const known = weights ? words.exactList(String(exactness.tau), bound(exactness.list), map) : words.exactMap(map);
  return reason ? `${known} ${reason}` : known;
}

async function save(state: State, button: HTMLElement, form: "png" | "svg" | "csv"): Promise<void> {
  const { layer, head } = state.report.heads[state.head.peek()]!;
  const name = `${state.view.peek()}-layer-${layer}-head-${head}.${form}`;
  if (form === "csv") return download(name, new Blob([await csvOf(state)], { type: "text/csv" }));
  const svg = svgOf(button.closest(".headway")!.querySelector<HTMLElement>(".view")!);
  download(name, form === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await pngOf(svg));
}

/**
 * Draws a report into an element, or two side by side; returns what removes them. With `address`, the address of the
 * page follows what is chosen in the first.
 */
export function mount(element: Element, sources: Source | [Source, Source], address = false): () => void {
  const states = (Array.isArray(sources) ? sources : [sources]).map((source, i) => new State(source, address && i === 0));
  const stop = states.length === 2 ? follow(states[0]!, states[1]!) : () => {};
  element.classList.toggle("headway-pair", states.length === 2);
  render(
    states.map((state, i) => (
      <div key={i} class="headway-page">
        <App state={state} address={address && i === 0} />
      </div>
    )),
    element,
  );
  return () => {
    stop();
    render(null, element);
  };
}

/** What anywidget calls to show a report in a notebook. */
function show({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const { source, close } = sourceOf(model);
  el.dataset.lmSuppressShortcuts = "true"; // JupyterLab takes no keys that are meant for the report
  el.style.setProperty("--headway-height", `${model.get("height")}px`);
  const remove = mount(el, source);
  return () => {
    remove();
    close();
  };
}

export default { render: show };

const held = document.getElementById("headway-report");
if (held) {
  const found = JSON.parse(held.textContent!) as Report | Pair;
  const chunk = (id: string) => inflate(decoded(document.getElementById(id)!.textContent!));
  const source = (report: Report): Source => ({ report, chunk });
  const [a, b] = "reports" in found ? found.reports : [found];
  mount(document.getElementById("headway")!, b ? [source(a!), source(b)] : source(a!), true);
}
