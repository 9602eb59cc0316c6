// Arms side by side, each against the first of its experiment.

import { html } from "../dom.js";
import { useData } from "../data.js";
import { go, href, after, route, scope } from "../route.js";
import { rangeWords } from "../range.js";
import { Answer, Badge, Empty, Go, Panel, requestsOf } from "../parts.js";
import { count, decimal, duration, percent, said, t } from "../words.js";

const grouped = (rows) => {
  const found = new Map();
  for (const row of rows) found.set(row.experiment, [...(found.get(row.experiment) || []), row]);
  return [...found];
};

/** How far a figure is from the first arm's. */
const Against = ({ value, base }) => {
  if (value === null || base === null || value === undefined || !base) return null;
  const change = value / base - 1;
  return html`<small>${Math.abs(change) < 0.0005 ? "±0 %" : `${change > 0 ? "+" : "−"}${percent(Math.abs(change))}`}</small>`;
};

const FIGURES = [
  ["requests", count, false], ["errors", count, false], ["ttft_p50", duration, true], ["total_p50", duration, true],
  ["output_tokens_mean", (value) => decimal(value), true], ["truncated_share", percent, false],
];

const Experiment = ({ name, arms }) => html`
  <section class="experiment">
    <h3>${name}</h3>
    <div class="table-box" role="group" aria-label=${name} tabindex="0">
      <table class="cards" role="table">
        <caption class="visually-hidden">${name}</caption>
        <thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">${t("arm")}</th><th scope="col" role="columnheader">${t("state")}</th>
          ${FIGURES.map(([id]) => html`<th scope="col" role="columnheader" class="num">${t(`figure.${id}`)}</th>`)}</tr></thead>
        <tbody role="rowgroup">${arms.map((row, i) => {
          const to = requestsOf({ experiment: [row.experiment], arm: [row.arm] });
          return html`
            <tr key=${row.arm} role="row">
              <th scope="row" role="rowheader"><${Go} class="row-link" href=${href(after(to))} to=${() => go(to)}>${row.arm}<//></th>
              <td role="cell" data-label=${t("state")}>${row.live ? html`<${Badge} tone=${row.live.stopped_because ? "bad" : "good"}>${said("state", row.live.state)}<//>
                ${row.live.weight !== null && row.live.weight !== undefined && html` <span class="note num">${t("weight")} ${decimal(row.live.weight, 0)}</span>`}
                ${row.live.stopped_because && html`<span class="note"> ${row.live.stopped_because}</span>`}` : html`<span class="note">${t("not-live")}</span>`}</td>
              ${FIGURES.map(([id, format, compares]) => html`
                <td role="cell" class="num" data-label=${t(`figure.${id}`)}><span class="pair">${format(row[id])}${compares && i > 0 && html`<${Against} value=${row[id]} base=${arms[0][id]} />`}</span></td>`)}
            </tr>`;
        })}</tbody>
      </table>
    </div>
  </section>`;

export const Experiments = () => {
  const answer = useData("experiments", scope.value);
  return html`
    <${Panel} id="experiments" title=${rangeWords(route.value)} flush>
      <${Answer} of=${answer} height=${320}>
        ${({ rows }) => rows.length === 0
          ? html`<${Empty} title=${t("experiments.none")}><p>${t("experiments.none.do")}</p><//>`
          : html`<p class="note inner">${t("experiments.note")}</p>${grouped(rows).map(([name, arms]) => html`<${Experiment} key=${name} name=${name} arms=${arms} />`)}`}
      <//>
    <//>`;
};
