/** The pages besides Explore and Map: roles, profiles, and how each number is made. */

import { max } from "d3-array";
import { Along, Bars } from "./chart";
import { roleColour, useRoleName } from "./heads";
import { grouped, METHOD, number } from "./language";
import { useReport, useValue, useWords } from "./state";

export function Roles() {
  const state = useReport();
  const words = useWords();
  const theme = useValue(state.theme);
  const roleName = useRoleName();
  const rows = state.report.heads.flatMap((head, index) => head.roles.map((role) => ({ head, index, role })));
  const order = [...new Set(rows.map(({ role }) => role.role))];
  rows.sort((a, b) => order.indexOf(a.role.role) - order.indexOf(b.role.role) || b.role.figure - a.role.figure);
  const missing = state.report.roles.filter(({ missing }) => missing !== null);
  return (
    <div class="page">
      <p class="lead">{rows.length > 0 ? words.rolesLead : state.report.roles.length > 0 ? words.noRoles : words.unmeasured}</p>
      <div class="scroll" tabIndex={0} role="region" aria-label={words.roles}>
        <table>
          <thead>
            <tr>
              <th scope="col">{words.role}</th>
              <th scope="col">{words.heads}</th>
              <th scope="col" class="number">
                {words.figure}
              </th>
              <th scope="col">{words.interval}</th>
              <th scope="col" class="number">
                {words.baseline}
              </th>
              <th scope="col" class="number">
                {words.cases}
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ head, index, role }) => {
              const top = Math.max(1, role.high);
              const at = (value: number) => `${(100 * value) / top}%`;
              return (
                <tr key={`${index} ${role.role} ${role.candidate}`}>
                  <td>
                    <i style={{ background: roleColour(role.role, theme) }} /> {roleName(role.role)}
                    {role.candidate && <span class="quiet"> {role.candidate}</span>}
                  </td>
                  <td>
                    <button
                      type="button"
                      class="link"
                      onClick={() => {
                        state.head.value = index;
                        state.view.value = "explore";
                      }}
                    >
                      {words.headName(head.layer, head.head)}
                    </button>
                  </td>
                  <td class="number">{number(role.figure)}</td>
                  <td>
                    <span class="interval" title={`${number(role.low)} – ${number(role.high)}`}>
                      <b style={{ width: at(role.figure) }} />
                      <u style={{ left: at(role.low), width: at(role.high - role.low) }} />
                      {role.baseline !== null && <em style={{ left: at(role.baseline) }} />}
                    </span>
                    <span class="quiet">
                      {number(role.low, 2)} – {number(role.high, 2)}
                    </span>
                  </td>
                  <td class="number">{number(role.baseline)}</td>
                  <td class="number">{grouped(role.cases)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {missing.length > 0 && (
        <>
          <h2>{words.notMeasured}</h2>
          <ul>
            {missing.map(({ role, missing }) => (
              <li key={role}>
                {roleName(role)} <span class="quiet">{missing}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}

export function Profiles() {
  const state = useReport();
  const words = useWords();
  const index = useValue(state.head);
  const known = useValue(state.known);
  const head = state.report.heads[index]!;
  const most = max(head.links, ([, , weight]) => weight) || 1;
  const open = (query: number) => {
    state.keep(query);
    state.view.value = "explore";
  };
  return (
    <div class="page profiles">
      <p class="lead">{words.profilesLead(words.headName(head.layer, head.head))}</p>
      {known?.profile ? (
        <>
          <Along values={known.profile.entropy} label={words.entropyAlong} />
          <Along values={known.profile.largest} label={words.largestAlong} />
          <Along values={known.profile.received} label={words.receivedAlong} />
        </>
      ) : (
        <p>{words.noProfile}</p>
      )}
      <div class="pair">
        <figure>
          <figcaption>{words.byDistance}</figcaption>
          <Bars values={head.distances} ranges={state.report.distances} width={420} height={150} />
        </figure>
        <figure class="links">
          <figcaption>{words.strongest}</figcaption>
          <ol>
            {head.links.map(([query, key, weight]) => (
              <li key={`${query} ${key}`}>
                <button type="button" onClick={() => open(query)} style={{ "--share": weight / most }}>
                  <i class="bar" />
                  <bdi>{state.text.name(query)}</bdi>
                  <span class="quiet">{query} →</span>
                  <bdi>{state.text.name(key)}</bdi>
                  <span class="quiet">{key}</span>
                  <span class="weight">{number(weight)}</span>
                </button>
              </li>
            ))}
          </ol>
        </figure>
      </div>
    </div>
  );
}

export function Method() {
  const language = useValue(useReport().language);
  return (
    <div class="page method" tabIndex={0}>
      {METHOD[language].map(([heading, text]) => (
        <section key={heading}>
          <h2>{heading}</h2>
          <p>{text}</p>
        </section>
      ))}
    </div>
  );
}
