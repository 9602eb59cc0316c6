// Arms side by side: figures of the range from the log, verdicts from the router that counts them.

import { html } from "../dom.js";
import { useData } from "../data.js";
import { go, href, after, route, scope } from "../route.js";
import { rangeWords } from "../range.js";
import { Answer, Badge, Empty, Go, Panel, requestsOf } from "../parts.js";
import { count, decimal, duration, percent, said, shortMoment, t } from "../words.js";

const grouped = (rows) => {
  const found = new Map();
  for (const row of rows) found.set(row.experiment, [...(found.get(row.experiment) || []), row]);
  return [...found];
};

const isKnown = (value) => value !== null && value !== undefined;

/** A change as people say it: a ratio of 0.9 is −10 %. */
const changed = (ratio) => {
  const change = ratio - 1;
  return Math.abs(change) < 0.0005 ? "±0 %" : `${change > 0 ? "+" : "−"}${percent(Math.abs(change))}`;
};

/** How far a figure is from that of the arm it is compared with. */
const Against = ({ value, base }) => isKnown(value) && base ? html`<small>${changed(value / base)}</small>` : null;

const FIGURES = [
  ["requests", count, false], ["errors", count, false], ["ttft_p50", duration, true], ["total_p50", duration, true],
  ["output_tokens_mean", (value) => decimal(value), true], ["truncated_share", percent, false],
];

const VERDICT_TONES = { better: "good", worse: "bad", "no difference": "info" };

/** An effect with its interval, or that too little was seen for one. */
const effectWords = ({ goal, ratio, low, high }) => [ratio, low, high].every(isKnown)
  ? t("effect", { goal: said("goal", goal), ratio: changed(ratio), low: changed(low), high: changed(high) })
  : t("effect.none");

const State = ({ live, isOffline }) => {
  if (!live) return html`<span class="note">${t(isOffline ? "not-live" : "arm.gone")}</span>`;
  const { state, weight, control, stopped_since, stopped_because } = live;
  return html`<div>
    <div class="row wrap"><${Badge} tone=${{ stopped: "bad", running: "good" }[state] || "plain"}>${said("state", state)}<//>
      ${control && html`<${Badge}>${t("arm.control")}<//>`}
      <span class="note num">${t("weight")} ${decimal(weight, Number.isInteger(weight) ? 0 : 2)}</span></div>
    ${state === "stopped" && html`<p class="note stopped">${t("arm.stopped", { since: shortMoment(stopped_since), because: stopped_because ? said("because", stopped_because) : t("arm.stopped.unknown") })}</p>`}</div>`;
};

const Verdict = ({ live }) => {
  if (!live) return "–";
  const { effect, verdict, shadow, requests, sessions } = live;
  return html`<div>
    ${verdict && html`
      <div class="row wrap"><${Badge} tone=${VERDICT_TONES[verdict] || "plain"}>${said("verdict", verdict)}<//>
        <span class="num" title=${t("effect.title")}>${effectWords(effect)}</span></div>`}
    ${shadow && html`<p class="note num">${t("effect.shadow", { pairs: count(shadow.pairs) })} ${effectWords(shadow)}</p>`}
    <p class="note num">${t("experiments.all-time", { requests: count(requests), sessions: decimal(sessions, Number.isInteger(sessions) ? 0 : 1) })}</p></div>`;
};

const Experiment = ({ name, arms }) => {
  const isOffline = !arms.some(({ live }) => live);
  const base = isOffline ? arms[0] : arms.find(({ live }) => live?.control) || arms[0];
  const heading = (label, isNumber) => html`<th scope="col" role="columnheader" class=${isNumber ? "num" : undefined}>${label}</th>`;
  return html`
    <section class="experiment" data-experiment=${name}>
      <h3>${name}</h3>
      <div class="table-box" role="group" aria-label=${name} tabindex="0">
        <table class="cards arms" role="table">
          <caption class="visually-hidden">${name}</caption>
          <thead role="rowgroup"><tr role="row">${heading(t("arm"))}${heading(t("state"))}${heading(t("verdict"))}
            ${FIGURES.map(([id]) => heading(t(`figure.${id}`), true))}</tr></thead>
          <tbody role="rowgroup">${arms.map((row) => {
            const to = requestsOf({ experiment: [row.experiment], arm: [row.arm] });
            return html`
              <tr key=${row.arm} role="row" data-arm=${row.arm}>
                <th scope="row" role="rowheader"><${Go} class="row-link" href=${href(after(to))} to=${() => go(to)}>${row.arm}<//></th>
                <td role="cell" class="wide words" data-label=${t("state")}><${State} live=${row.live} isOffline=${isOffline} /></td>
                <td role="cell" class="wide words" data-label=${t("verdict")}><${Verdict} live=${row.live} /></td>
                ${FIGURES.map(([id, format, compares]) => html`
                  <td role="cell" class="num" data-label=${t(`figure.${id}`)}><span class="pair">${format(row[id])}${compares && row !== base && html`<${Against} value=${row[id]} base=${base[id]} />`}</span></td>`)}
              </tr>`;
          })}</tbody>
        </table>
      </div>
    </section>`;
};

const COMMANDS = `scenario-router experiment stop NAME [ARM]
scenario-router experiment start NAME [ARM]
scenario-router experiment promote NAME [ARM]`;

const Commands = () => html`
  <p class="note inner">${t("experiments.commands")}</p>
  <div class="code-box inner"><pre>${COMMANDS}</pre></div>`;

export const Experiments = () => {
  const answer = useData("experiments", scope.value);
  return html`
    <${Panel} id="experiments" title=${rangeWords(route.value)} flush>
      <${Answer} of=${answer} height=${320}>
        ${({ rows }) => rows.length === 0
          ? html`<${Empty} title=${t("experiments.none")}><p>${t("experiments.none.do")}</p><//>`
          : html`<p class="note inner">${t("experiments.note")}</p>${grouped(rows).map(([name, arms]) => html`<${Experiment} key=${name} name=${name} arms=${arms} />`)}<${Commands} />`}
      <//>
    <//>`;
};
