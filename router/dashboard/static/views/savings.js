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

/** A word of the answer in the person's language; one that this page does not know, as it is. */
const words = (family, value, values) => isKnown(`${family}.${value}`) ? t(`${family}.${value}`, values) : String(value);
const seconds = (value) => value === null ? NOTHING : duration(value * 1000);
const between = ({ tokens_low, tokens_high }) => t("savings.between", { low: compact(tokens_low), high: compact(tokens_high) });

/** What a figure rests on, and why there is none, or not the whole of it. */
const Ground = ({ row, least }) => html`
  <span class="note">${[
    row.basis && words("savings.by", row.basis),
    row.why_not && words("savings.why", row.why_not, { least: count(least), estimated: count(row.estimated), off: count(row.turned_off) }),
  ].filter(Boolean).join("; ")}</span>`;

const columns = (least) => [
  { id: "scenario", label: t("scenario"), cell: (row) => html`<span class="name"><i class="dot" style=${{ background: colourOf(row.scenario, about.value.scenarios) }}></i>${said("scenario", row.scenario)}</span>` },
  { id: "requests", label: t("requests"), num: true, cell: (row) => count(row.requests) },
  { id: "turned_off", label: t("savings.off"), title: t("savings.off.title"), num: true, cell: (row) => count(row.turned_off) },
  { id: "tokens_saved", label: t("savings.tokens"), num: true, cell: (row) => row.tokens_saved === null ? NOTHING
    : html`<span class="pair" title=${`${count(row.tokens_saved)}. ${between(row)}`}>${compact(row.tokens_saved)}<small>${compact(row.tokens_low)}–${compact(row.tokens_high)}</small></span>` },
  { id: "seconds_saved", label: t("savings.seconds"), num: true, cell: (row) => seconds(row.seconds_saved) },
  { id: "n_basis", label: t("savings.n"), title: t("savings.n.title"), num: true, cell: (row) => row.n_basis ? count(row.n_basis) : NOTHING },
  { id: "cut", label: t("savings.cut"), title: t("savings.cut.title"), num: true, cell: (row) => count(row.cut) },
  { id: "basis", label: t("savings.basis"), sorts: false, wide: true, cell: (row) => html`<${Ground} row=${row} least=${least} />` },
];

const Headline = ({ id, label, value, title, note }) => html`
  <div class="headline" data-headline=${id}>
    <p class=${cls("headline-number num", value === NOTHING && "unknown")} title=${title}>${value === NOTHING ? t("savings.unknown") : value}</p>
    <h3>${label}</h3><p class="note">${note}</p>
  </div>`;

export const Savings = () => {
  const answer = useData("savings", scope.value);
  return html`
    <${Panel} id="savings" title=${t("savings.title")} note=${rangeWords(route.value)} flush>
      <${Answer} of=${answer} height=${360}>
        ${({ rows, total, how, details }) => {
          if (!rows.length) return html`<${Nothing} />`;
          const shown = columns(details.least);
          return html`
            <div class="headlines">
              <${Headline} id="tokens" label=${t("savings.tokens.all")} value=${compact(total.tokens_saved)} title=${count(total.tokens_saved)}
                note=${total.tokens_saved === null ? "" : between(total)} />
              <${Headline} id="seconds" label=${t("savings.seconds.all")} value=${seconds(total.seconds_saved)} note=${html`<${Ground} row=${total} least=${details.least} />`} />
            </div>
            <div class="how inner">
              <h3>${t("savings.how")}</h3>
              <p>${words("savings.how", how)} ${details.assumes.map((one) => words("savings.assumes", one)).join(" ")}</p>
              <p class="note">${t("savings.null")} ${t("savings.not-counted", { cut: count(total.cut) })}</p>
            </div>
            <${Table} caption=${t("savings.title")} columns=${shown} rows=${sorted(rows, shown, ["requests", "desc"])} rowKey=${(row) => row.scenario ?? ""}
              fallback=${["requests", "desc"]} to=${(row) => requestsOf({ scenario: [row.scenario ?? "(none)"] })} />`;
        }}
      <//>
    <//>`;
};
