// Conversations: did they stay where their cache is?

import { html } from "../dom.js";
import { about } from "../about.js";
import { useData } from "../data.js";
import { PAGE_SIZE, route, scope } from "../route.js";
import { rangeWords } from "../range.js";
import { Pages, Table, wantedOrder } from "../table.js";
import { Answer, Meter, Panel, Split, colourOf, requestsOf } from "../parts.js";
import { ago, compact, count, list, said, shortMoment, t, wholeMoment } from "../words.js";
import { Nothing } from "./nothing.js";

const at = (moment) => html`<time dateTime=${moment} title=${`${wholeMoment(moment)} (${ago(moment)})`}>${shortMoment(moment)}</time>`;
const FIRST = ["last", "desc"];

const columns = () => [
  { id: "session", label: t("session"), sorts: false, cell: (row) => html`<span class="mono">${row.session}</span>` },
  { id: "last", label: t("last-turn"), num: true, cell: (row) => at(row.last) },
  { id: "first", label: t("first-turn"), num: true, cell: (row) => at(row.first) },
  { id: "turns", label: t("turns"), num: true, cell: (row) => count(row.turns) },
  { id: "scenarios", label: t("scenarios"), sorts: false, cell: (row) => html`<${Split} name=${t("scenarios")}
      parts=${Object.entries(row.scenarios).map(([name, value]) => ({ label: said("scenario", name), value, color: colourOf(name, about.value.scenarios) }))} />` },
  { id: "backends", label: t("backends"), sorts: false, cell: (row) => row.backends.join(", ") },
  { id: "moved", label: t("moved"), title: t("moved.title"), num: true, cell: (row) => html`<span title=${list(Object.entries(row.moved_because).map(([why, n]) => `${why} (${n})`))}>${count(row.moved)}</span>` },
  { id: "why", label: t("moved.why"), sorts: false, cell: (row) => html`<span class="note">${Object.keys(row.moved_because).join("; ")}</span>` },
  { id: "cached_share", label: t("cached"), title: t("cached.title"), num: true, cell: (row) => row.cached_share === null ? "–" : html`<${Meter} share=${row.cached_share} color="var(--c2)" />` },
  { id: "output_tokens", label: t("tokens-out"), num: true, cell: (row) => compact(row.output_tokens) },
];

export const Sessions = () => {
  const shown = columns();
  const { sort, order } = wantedOrder(shown, FIRST);
  const { page } = route.value;
  const answer = useData("sessions", `${scope.value}&sort=${sort}&order=${order}&limit=${PAGE_SIZE}&offset=${(page - 1) * PAGE_SIZE}`);
  return html`
    <${Panel} id="sessions" title=${rangeWords(route.value)} flush>
      <${Answer} of=${answer} height=${480}>
        ${({ total, rows }) => total === 0 ? html`<${Nothing} />` : html`
          <${Table} caption=${t("view.sessions")} columns=${shown} rows=${rows} rowKey=${(row) => row.session} fallback=${FIRST}
            to=${(row) => requestsOf({ session: [row.session] })} />
          <${Pages} total=${total} size=${PAGE_SIZE} shown=${(from, to, all) => t("shown.sessions", { from: count(from), to: count(to), all: count(all) })} />`}
      <//>
    <//>`;
};
