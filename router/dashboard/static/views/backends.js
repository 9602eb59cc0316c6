// Each backend as it is now and as it was in the range; why prompts were read again.

import { cls, html } from "../dom.js";
import { useData } from "../data.js";
import { go, href, after, route, scope } from "../route.js";
import { rangeWords } from "../range.js";
import { Answer, Badge, Go, Meter, Panel, Split, requestsOf } from "../parts.js";
import { compact, count, duration, isKnown, percent, said, t } from "../words.js";
import { Nothing } from "./nothing.js";

const STATE_TONES = { up: "good", "half-open": "warn", waiting: "warn", starting: "warn", down: "bad", open: "bad" };
const AFFINITY = [["hit", "var(--c2)"], ["new", "var(--c1)"], ["moved", "var(--c3)"], ["none", "var(--c0)"]];

const hitShare = ({ hit, moved }) => hit + moved ? hit / (hit + moved) : null;

const Fact = ({ label, title, children }) => html`<div class="fact" title=${title}><dt>${label}</dt><dd class="num">${children}</dd></div>`;

const Present = ({ live }) => {
  if (!live) return html`<p class="note">${t("not-live")}</p>`;
  const { state, breaker, in_flight, max_inflight, weight, draining, reason } = live;
  return html`
    <div class="row wrap">
      <${Badge} tone=${STATE_TONES[state] || "plain"}>${said("state", state)}<//>
      ${breaker && breaker !== state && html`<${Badge} tone=${STATE_TONES[breaker] || "plain"}>${t("breaker")}: ${said("breaker", breaker)}<//>`}
      ${draining && html`<${Badge} tone="warn">${t("draining")}<//>`}
      <span class="note num">${t("weight")} ${weight}</span>
    </div>
    ${reason && reason !== "ok" && html`<p class="note">${reason}</p>`}
    <p class="in-flight"><span>${t("live.in_flight")}</span>
      <${Meter} share=${max_inflight ? in_flight / max_inflight : 0} label=${max_inflight ? `${count(in_flight)} / ${count(max_inflight)}` : count(in_flight)} /></p>`;
};

const Backend = ({ row }) => {
  const to = requestsOf({ backend: [row.backend ?? "(none)"] });
  return html`
    <section class="card" data-backend=${row.backend}>
      <header class="card-head"><h3>${said("backend", row.backend)}</h3>
        <${Go} class="link" href=${href(after(to))} to=${() => go(to)}>${t("see-requests")}<//></header>
      <p class="note">${[row.model, row.dialect].filter(Boolean).join(" · ")}</p>
      <${Present} live=${row.live} />
      <dl class="facts">
        <${Fact} label=${t("requests")}>${count(row.requests)}<//>
        <${Fact} label=${t("errors")}><span class=${cls(row.errors && "bad-text")}>${count(row.errors)}${row.errors ? ` (${percent(row.errors / row.requests)})` : ""}</span><//>
        <${Fact} label=${t("ttft-p50")}>${duration(row.ttft_p50)}<//>
        <${Fact} label=${t("tpot-p50")} title=${t("tpot.title")}>${duration(row.tpot_p50)}<//>
        <${Fact} label=${t("tokens-out")}>${compact(row.output_tokens)}<//>
        <${Fact} label=${t("cached")} title=${t("cached.title")}>${percent(row.cached_share)}<//>
        <${Fact} label=${t("affinity.hit-share")} title=${t("affinity.title")}>${percent(hitShare(row.affinity))}<//>
      </dl>
      <h4>${t("affinity")}</h4>
      <${Split} name=${t("affinity")} legend parts=${AFFINITY.map(([name, color]) => ({ label: t(`affinity.${name}`), value: row.affinity[name], color }))} />
    </section>`;
};

const Misses = ({ misses }) => {
  const rows = Object.entries(misses).filter(([, n]) => n > 0).sort(([, a], [, b]) => b - a);
  const most = Math.max(...rows.map(([, n]) => n));
  return html`
    <h2 class="inner" id="misses">${t("misses")}</h2>
    <p class="note inner">${t("misses.note")}</p>
    ${rows.length === 0 ? html`<p class="inner">${t("misses.none")}</p>` : html`
      <dl class="misses">${rows.map(([cause, n]) => html`
        <div key=${cause} data-cause=${cause}><dt>${said("miss", cause)}</dt>
          <dd><${Meter} share=${n / most} label=${count(n)} color="var(--c3)" />
            ${isKnown(`miss.${cause}.hint`) && html`<p class="note">${t(`miss.${cause}.hint`)}</p>`}</dd></div>`)}</dl>`}`;
};

export const Backends = () => {
  const answer = useData("backends", scope.value);
  return html`
    <${Panel} id="backends" title=${rangeWords(route.value)} flush>
      <${Answer} of=${answer} height=${420}>
        ${({ rows, prefix }) => rows.length === 0 ? html`<${Nothing} />` : html`
          <div class="card-grid wide">${rows.map((row) => html`<${Backend} key=${row.backend ?? ""} row=${row} />`)}</div>
          <${Misses} misses=${prefix} />`}
      <//>
    <//>`;
};
