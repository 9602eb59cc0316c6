// The log itself, line by line.

import { cls, html, useEffect } from "../dom.js";
import { about } from "../about.js";
import { useData } from "../data.js";
import { PAGE_SIZE, go, route, scope } from "../route.js";
import { rangeWords } from "../range.js";
import { Pages, Table, wantedOrder } from "../table.js";
import { Answer, Badge, Icon, Panel, colourOf, outcomeTone } from "../parts.js";
import { count, decimal, duration, percent, said, shortMoment, t, wholeMoment } from "../words.js";
import { Nothing } from "./nothing.js";

const FIRST = ["ts", "desc"];

const hasMarks = (row) => row.shadow || row.thinking || row.stream || row.rescued || row.warnings?.length > 0;

const Marks = ({ row }) => hasMarks(row) && html`
  <span class="marks">
    ${row.shadow && html`<${Badge} tone="warn" title=${t("repeat.title")}>${t("repeat")}<//>`}
    ${row.thinking && html`<${Badge} tone="info">${t("thinking")}<//>`}
    ${row.stream && html`<${Badge}>${t("stream")}<//>`}
    ${row.rescued && html`<${Badge} tone="warn" title=${t("rescued.title")}>${t("rescued")}<//>`}
    ${row.warnings?.length > 0 && html`<span class="warn-mark" title=${row.warnings.join("; ")}><${Icon} name="warning" />${count(row.warnings.length)}<span class="visually-hidden"> ${t("warnings")}</span></span>`}
  </span>`;

const columns = () => [
  { id: "ts", label: t("time"), cell: (row) => html`<time class="num" dateTime=${row.ts} title=${`${wholeMoment(row.ts)} · ${row.request_id}`}>${shortMoment(row.ts)}</time>` },
  { id: "scenario", label: t("scenario"), cell: (row) => html`<span class="name"><i class="dot" style=${{ background: colourOf(row.scenario, about.value.scenarios) }}></i>${said("scenario", row.scenario)}</span>` },
  { id: "source", label: t("by"), sorts: false, cell: (row) => html`<span class="note">${row.source ? said("source", row.source) : "–"}</span>` },
  { id: "confidence", label: t("confidence.short"), title: t("confidence"), num: true, cell: (row) => decimal(row.confidence, 2) },
  { id: "backend", label: t("backend"), cell: (row) => row.backend ?? "–" },
  { id: "outcome", label: t("outcome"), cell: (row) => html`<span title=${row.error_code || undefined}><${Badge} tone=${outcomeTone(row.outcome)}>${said("outcome", row.outcome)}<//> <span class="note num">${row.status ?? ""}</span></span>` },
  { id: "ttft_ms", label: t("ttft"), num: true, cell: (row) => duration(row.ttft_ms) },
  { id: "total_ms", label: t("total-time"), num: true, cell: (row) => duration(row.total_ms) },
  { id: "input_tokens", label: t("tokens-in"), num: true, cell: (row) => html`<span>${count(row.input_tokens)}${row.cached_share > 0 && html` <small title=${t("cached.title")}>${percent(row.cached_share)}</small>`}</span>` },
  { id: "output_tokens", label: t("tokens-out"), num: true, cell: (row) => count(row.output_tokens) },
  { id: "finish_reason", label: t("finish"), sorts: false, cell: (row) => html`<span class=${cls(row.finish_reason === "length" && "warn-text")}>${row.finish_reason ? said("finish", row.finish_reason) : "–"}</span>` },
  { id: "marks", label: t("marks"), sorts: false, wide: true, cell: (row) => html`<${Marks} row=${row} />` },
];

/** `j` and `k` walk through the rows while one is open. */
const useWalk = (rows) => {
  useEffect(() => {
    const walk = (event) => {
      const step = { j: 1, k: -1 }[event.key];
      if (!step || !route.value.open || event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey) return;
      const next = rows[rows.findIndex((row) => row.request_id === route.value.open) + step];
      if (next) go({ open: next.request_id }, { replace: true });
    };
    addEventListener("keydown", walk);
    return () => removeEventListener("keydown", walk);
  }, [rows]);
};

export const Requests = () => {
  const shown = columns();
  const { sort, order } = wantedOrder(shown, FIRST);
  const { page, open } = route.value;
  const answer = useData("requests", `${scope.value}&sort=${sort}&order=${order}&limit=${PAGE_SIZE}&offset=${(page - 1) * PAGE_SIZE}`);
  useWalk(answer.data?.rows || []);
  return html`
    <${Panel} id="requests" title=${rangeWords(route.value)} flush>
      <${Answer} of=${answer} height=${600}>
        ${({ total, rows }) => total === 0 ? html`<${Nothing} />` : html`
          <${Table} caption=${t("view.requests")} columns=${shown} rows=${rows} rowKey=${(row) => row.request_id} fallback=${FIRST}
            to=${(row) => ({ open: row.request_id })} isChosen=${(row) => row.request_id === open} />
          <${Pages} total=${total} size=${PAGE_SIZE} shown=${(from, to, all) => t("shown.requests", { from: count(from), to: count(to), all: count(all) })} />`}
      <//>
    <//>`;
};
