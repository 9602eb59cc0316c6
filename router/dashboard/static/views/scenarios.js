// What kinds of work came, how fast each was, and how sure the router was of it.

import { cls, html, useState } from "../dom.js";
import { about } from "../about.js";
import { useData } from "../data.js";
import { go, href, after, route, scope } from "../route.js";
import { rangeWords } from "../range.js";
import { Table, sorted } from "../table.js";
import { Answer, Go, Histogram, Meter, Panel, Split, colourOf, requestsOf } from "../parts.js";
import { compact, count, duration, percent, said, t } from "../words.js";
import { Nothing } from "./nothing.js";

const SOURCES = ["header", "alias", "structure", "keyword", "pattern", "learned", "sticky", "default"];
const sourceParts = (sources) => Object.entries(sources)
  .sort(([a], [b]) => SOURCES.indexOf(a) - SOURCES.indexOf(b))
  .map(([name, value]) => ({ label: said("source", name), value, color: colourOf(name, SOURCES) }));

const times = (p50, p95) => html`<span class="pair">${duration(p50)}<small>${duration(p95)}</small></span>`;
/** A count, and which part of its row it is. */
const part = (value, row, tone) => html`<span class=${cls("pair", value ? tone : "zero")}>${count(value)}<small>${value ? percent(value / row.requests) : ""}</small></span>`;

const columns = () => [
  { id: "scenario", label: t("scenario"), cell: (row) => html`<span class="name"><i class="dot" style=${{ background: colourOf(row.scenario, about.value.scenarios) }}></i>${said("scenario", row.scenario)}</span>` },
  { id: "requests", label: t("requests"), num: true, cell: (row) => count(row.requests), total: (row) => count(row.requests) },
  { id: "share", label: t("share"), num: true, cell: (row) => html`<${Meter} share=${row.share} color=${colourOf(row.scenario, about.value.scenarios)} />` },
  { id: "ttft_p50", label: t("ttft"), title: t("p50-p95"), num: true, cell: (row) => times(row.ttft_p50, row.ttft_p95) },
  { id: "total_p50", label: t("total-time"), title: t("p50-p95"), num: true, cell: (row) => times(row.total_p50, row.total_p95) },
  { id: "input_tokens", label: t("tokens-in"), num: true, cell: (row) => html`<span title=${count(row.input_tokens)}>${compact(row.input_tokens)}</span>`, total: (row) => compact(row.input_tokens) },
  { id: "output_tokens", label: t("tokens-out"), num: true, cell: (row) => html`<span title=${count(row.output_tokens)}>${compact(row.output_tokens)}</span>`, total: (row) => compact(row.output_tokens) },
  { id: "thinking_share", label: t("thinking"), title: t("thinking.share"), num: true, cell: (row) => percent(row.thinking_share) },
  { id: "truncated", label: t("truncated"), title: t("truncated.title"), num: true, cell: (row) => part(row.truncated, row, "warn"), total: (row) => count(row.truncated) },
  { id: "rescued", label: t("rescued"), title: t("rescued.title"), num: true, cell: (row) => part(row.rescued, row), total: (row) => count(row.rescued) },
  { id: "empty", label: t("empty-answers"), title: t("empty-answers.title"), num: true, cell: (row) => part(row.empty, row, "warn"), total: (row) => count(row.empty) },
  { id: "errors", label: t("errors"), num: true, cell: (row) => part(row.errors, row, "bad"), total: (row) => count(row.errors) },
];

const SUMMED = ["requests", "input_tokens", "output_tokens", "truncated", "rescued", "empty", "errors"];
const summed = (rows) => Object.fromEntries(SUMMED.map((name) => [name, rows.reduce((sum, row) => sum + (row[name] || 0), 0)]));

const Sure = ({ row }) => html`
  <section class="card" data-scenario=${row.scenario}>
    <header class="card-head"><h3><i class="dot" style=${{ background: colourOf(row.scenario, about.value.scenarios) }}></i>${said("scenario", row.scenario)}</h3>
      <${Go} class="link" href=${href(after(requestsOf({ scenario: [row.scenario ?? "(none)"] })))} to=${() => go(requestsOf({ scenario: [row.scenario ?? "(none)"] }))}>${t("see-requests")}<//></header>
    <h4>${t("confidence")}</h4>
    <${Histogram} counts=${row.confidence} name=${t("confidence")} tall />
    <div class="scale note num" aria-hidden="true"><span>0</span><span>0.5</span><span>1</span></div>
    <h4>${t("sources")}</h4>
    <${Split} parts=${sourceParts(row.sources)} name=${t("sources")} legend />
  </section>`;

export const Scenarios = () => {
  const answer = useData("scenarios", scope.value);
  const [all, setAll] = useState(false);
  return html`
    <${Panel} id="scenarios" title=${rangeWords(route.value)} flush>
      <${Answer} of=${answer} height=${380}>
        ${({ rows }) => {
          if (!rows.length) return html`<${Nothing} />`;
          const shown = columns();
          const ordered = sorted(rows, shown, ["requests", "desc"]);
          return html`
            <${Table} caption=${t("by-scenario")} columns=${shown} rows=${ordered} rowKey=${(row) => row.scenario ?? ""} fallback=${["requests", "desc"]}
              to=${(row) => requestsOf({ scenario: [row.scenario ?? "(none)"] })} total=${rows.length > 1 ? summed(rows) : null} />
            <h2 class="inner" id="sure">${t("how-sure")}</h2>
            <p class="note inner">${t("how-sure.note")}</p>
            <div class="card-grid">${(all ? ordered : ordered.slice(0, 8)).map((row) => html`<${Sure} key=${row.scenario ?? ""} row=${row} />`)}</div>
            ${ordered.length > 8 && !all && html`<button type="button" class="button inner" onClick=${() => setAll(true)}>${t("show-all")}</button>`}`;
        }}
      <//>
    <//>`;
};
