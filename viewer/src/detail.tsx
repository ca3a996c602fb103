/** What is known of the chosen head, and of the token that is kept. */

import { roleColour, useRoleName } from "./heads";
import { number, percent, ROLES } from "./language";
import { Bars } from "./chart";
import { useReport, useValue, useWords } from "./state";
import { largest, type Line } from "./weights";

/** Entries of each list, and the weight from which one is worth a line. */
const LISTED = 8;
const FAINTEST = 0.0005;

export function Detail() {
  const state = useReport();
  const words = useWords();
  const index = useValue(state.head);
  const language = useValue(state.language);
  const theme = useValue(state.theme);
  const roleName = useRoleName();
  const head = state.report.heads[index]!;
  const [role] = head.roles;
  const { entropy, largest: most, distance, first } = head.statistics;
  const numbers: [string, string][] = [
    [words.effective, number(entropy == null ? null : Math.exp(entropy))],
    [words.largest, number(most)],
    [words.distance, number(distance)],
    [words.first, first == null ? "–" : percent(first)],
  ];
  return (
    <aside class="detail" aria-label={words.headName(head.layer, head.head)}>
      <div>
        <h2>{words.headName(head.layer, head.head)}</h2>
        {head.roles.length > 0 && (
          <p class="roles">
            {head.roles.map((each) => (
              <span key={each.role + each.candidate}>
                <i style={{ background: roleColour(each.role, theme) }} />
                {roleName(each.role)}
                {each.candidate && <span class="quiet"> {each.candidate}</span>}
              </span>
            ))}
          </p>
        )}
        <p>{head.nan ? words.nanHead : role ? (ROLES[role.role]?.[language][1] ?? state.report.roles.find((each) => each.role === role.role)?.says) : state.report.roles.length > 0 ? words.noRole : words.unmeasured}</p>
        <dl title={words.means}>
          {numbers.map(([name, value]) => (
            <div key={name}>
              <dd>{value}</dd>
              <dt>{name}</dt>
            </div>
          ))}
        </dl>
        <h3>{words.byDistance}</h3>
        <Bars values={head.distances} ranges={state.report.distances} />
      </div>
      <Lists />
    </aside>
  );
}

function Lists() {
  const state = useReport();
  const words = useWords();
  const token = useValue(state.token);
  const known = useValue(state.known);
  if (token === null) return <p class="quiet">{words.chooseWord}</p>;
  const weights = known?.weights;
  return (
    <div class="lists">
      <Ranked token={token} verb={words.looksAt} line={weights?.row(token)} kind="to" rest />
      <Ranked token={token} verb={words.lookedAtBy} line={weights?.column(token)} kind="from" />
    </div>
  );
}

interface RankedProps {
  token: number;
  verb: string;
  line: Line | undefined;
  kind: "to" | "from";
  rest?: boolean;
}

function Ranked({ token, verb, line, kind, rest }: RankedProps) {
  const state = useReport();
  const words = useWords();
  const known = useValue(state.known);
  const floor = known?.weights?.floor ?? 0;
  const none = !known || (known.weights && !line) ? words.loading : known.weights ? words.nothingKnown(String(floor || FAINTEST)) : words.onlyMap;
  const found = line ? largest(line, LISTED).filter(([, weight]) => weight >= FAINTEST) : [];
  const left = floor > 0 && line ? 1 - line.weights.reduce((sum, weight) => sum + weight, 0) : 0;
  return (
    <section class={kind}>
      <h3>
        <bdi>{state.text.name(token)}</bdi> <span class="quiet">{verb}</span>
      </h3>
      <ol>
        {found.map(([other, weight]) => (
          <li key={other}>
            <button
              type="button"
              data-token={other}
              onClick={() => state.keep(other)}
              style={{ "--share": Math.min(weight, 1) }}
            >
              <i class="bar" />
              <bdi>{state.text.name(other)}</bdi>
              <span class="quiet">{other}</span>
              <span class="weight">{number(weight)}</span>
            </button>
          </li>
        ))}
      </ol>
      {found.length === 0 && <p class="quiet">{none}</p>}
      {rest && left > 0.005 && <p class="quiet">{words.rest(percent(left), String(floor))}</p>}
    </section>
  );
}
