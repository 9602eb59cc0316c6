// What the presets saved, and against what that is reckoned.

import { cls, html } from "../dom.js";
import { about } from "../about.js";
import { useData } from "../data.js";
import { route, scope } from "../route.js";
import { rangeWords } from "../range.js";
import { Table, sorted } from "../table.js";
import { Answer, Panel, colourOf, requestsOf } from "../parts.js";
import { NOTHING, compact, count, duration, isKnown, said, t } from "../words.js";
import { Nothing } from "./nothing.js";

const words = (family, value) => value && isKnown(`${family}.${value}`) ? t(`${family}.${value}`) : value || "";
const seconds = (value) => value === null || value === undefined ? NOTHING : duration(value * 1000);

const columns = () => [
  { id: "scenario", label: t("scenario"), cell: (row) => html`<span class="name"><i class="dot" style=${{ background: colourOf(row.scenario, about.value.scenarios) }}></i>${said("scenario", row.scenario)}</span>` },
  { id: "requests", label: t("requests"), num: true, cell: (row) => count(row.requests) },
  { id: "tokens_saved", label: t("savings.tokens"), num: true, cell: (row) => html`<span title=${count(row.tokens_saved)}>${compact(row.tokens_saved)}</span>` },
  { id: "seconds_saved", label: t("savings.seconds"), num: true, cell: (row) => seconds(row.seconds_saved) },
  { id: "n_basis", label: t("savings.n"), title: t("savings.n.title"), num: true, cell: (row) => count(row.n_basis) },
  { id: "basis", label: t("savings.basis"), sorts: false, wide: true, cell: (row) => html`<span class="note">${row.why_not ? words("savings.why", row.why_not) : words("savings.by", row.basis)}</span>` },
];

const Headline = ({ id, label, value, title }) => html`
  <div class="headline" data-headline=${id}><p class=${cls("headline-number num", value === NOTHING && "unknown")} title=${title}>${value === NOTHING ? t("savings.unknown") : value}</p><h3>${label}</h3></div>`;

export const Savings = () => {
  const answer = useData("savings", scope.value);
  return html`
    <${Panel} id="savings" title=${t("savings.title")} note=${rangeWords(route.value)} flush>
      <${Answer} of=${answer} height=${360}>
        ${({ rows, total, how, details }) => {
          if (!rows.length) return html`<${Nothing} />`;
          const shown = columns();
          return html`
            <div class="headlines">
              <${Headline} id="tokens" label=${t("savings.tokens.all")} value=${compact(total.tokens_saved)} title=${count(total.tokens_saved)} />
              <${Headline} id="seconds" label=${t("savings.seconds.all")} value=${seconds(total.seconds_saved)} />
            </div>
            <div class="how inner"><h3>${t("savings.how")}</h3><p>${words("savings.how", how)}</p>${typeof details === "string" && details && html`<p class="note">${details}</p>`}<p class="note">${t("savings.null")}</p></div>
            <${Table} caption=${t("savings.title")} columns=${shown} rows=${sorted(rows, shown, ["requests", "desc"])} rowKey=${(row) => row.scenario ?? ""}
              fallback=${["requests", "desc"]} to=${(row) => requestsOf({ scenario: [row.scenario ?? "(none)"] })} />`;
        }}
      <//>
    <//>`;
};
