// One request, opened: what was decided and why, what was sent, where the time went.

import { cls, html, useEffect, useRef } from "../dom.js";
import { about } from "../about.js";
import { requestPath } from "../api.js";
import { useData } from "../data.js";
import { go, href, after, route } from "../route.js";
import { Answer, Badge, CopyButton, Go, Icon, IconButton, Split, colourOf, outcomeTone, requestsOf, useMedia } from "../parts.js";
import { Explain } from "./explain.js";
import { Label } from "./label.js";
import { ago, count, decimal, duration, isKnown, percent, said, t, wholeMoment } from "../words.js";

const isSet = (value) => value !== null && value !== undefined && value !== "";
/** A value of any type, as JSON would have it, so that "7" and 7 differ. */
export const literal = (value) => isSet(value) ? JSON.stringify(value) : "–";

const Section = ({ title, children, id }) => html`<section class="part" id=${id}><h3>${title}</h3>${children}</section>`;

const Facts = ({ rows }) => html`
  <dl class="facts">${rows.filter(([, value]) => isSet(value)).map(([label, value, title]) => html`
    <div class="fact" key=${label} title=${title}><dt>${label}</dt><dd>${value}</dd></div>`)}</dl>`;

/** The parts of a request's time, in their order. */
const phases = (record) => {
  const { overhead_ms, queue_ms, ttft_ms, total_ms } = record;
  if (!isSet(total_ms)) return [];
  const before = (overhead_ms ?? 0) + (queue_ms ?? 0);
  const parts = [["overhead", overhead_ms ?? 0], ["queue", queue_ms ?? 0]];
  if (isSet(ttft_ms)) parts.push(["first-token", Math.max(0, ttft_ms - before)], ["generation", Math.max(0, total_ms - ttft_ms)]);
  else parts.push(["waiting", Math.max(0, total_ms - before)]);
  return parts;
};

const PHASE_COLOURS = {
  overhead: "var(--c3)", queue: "var(--c4)", "first-token": "var(--c2)", generation: "var(--c5)", waiting: "var(--c0)",
};

const Timeline = ({ record }) => {
  const parts = phases(record);
  if (!parts.length) return html`<p class="note">${t("nothing-measured")}</p>`;
  const words = parts.map(([name, ms]) => `${t(`phase.${name}`)} ${duration(ms)}`).join(", ");
  return html`
    <div class="timeline" role="img" aria-label=${`${t("timeline")}: ${words}`}>
      ${parts.filter(([, ms]) => ms > 0).map(([name, ms]) => html`<span key=${name} title=${`${t(`phase.${name}`)} ${duration(ms)}`}
        style=${{ flexGrow: ms, background: PHASE_COLOURS[name] }}></span>`)}
    </div>
    <ul class="legend phases">${parts.map(([name, ms]) => html`
      <li key=${name}><i style=${{ background: PHASE_COLOURS[name] }}></i>${t(`phase.${name}`)} <b class="num">${duration(ms)}</b></li>`)}
      <li class="whole">${t("total")} <b class="num">${duration(record.total_ms)}</b></li></ul>
    ${record.retries > 0 && html`<p class="note">${t("retried", { times: count(record.retries) })}</p>`}`;
};

const ORIGIN_TONES = { client: "plain", force: "info", cap: "info", floor: "info", strip: "warn", guard: "warn", rescue: "warn" };

const Params = ({ params, caption }) => {
  const rows = Object.entries(params);
  if (!rows.length) return html`<p class="note">${t("params.none")}</p>`;
  return html`
    <div class="table-box" tabindex="0" role="group" aria-label=${caption}>
      <table class="params">
        <caption class="visually-hidden">${caption}</caption>
        <thead><tr><th scope="col">${t("param")}</th><th scope="col">${t("param.client")}</th><th scope="col">${t("param.sent")}</th><th scope="col">${t("param.origin")}</th></tr></thead>
        <tbody>${rows.map(([name, [client, sent, origin]]) => html`
          <tr key=${name} class=${cls(literal(client) === literal(sent) && "same")}>
            <th scope="row" class="mono plain">${name}</th><td class="mono">${literal(client)}</td><td class="mono sent">${literal(sent)}</td>
            <td><${Badge} tone=${ORIGIN_TONES[origin] || "plain"} title=${isKnown(`origin.${origin}.title`) ? t(`origin.${origin}.title`) : undefined}>${said("origin", origin)}<//></td>
          </tr>`)}</tbody>
      </table>
    </div>`;
};

const Tokens = ({ record }) => {
  const { input_tokens, cached_tokens, output_tokens, reasoning_tokens } = record;
  const parts = [
    { label: t("tokens.cached"), value: cached_tokens ?? 0, color: "var(--c2)" },
    { label: t("tokens.read"), value: (input_tokens ?? 0) - (cached_tokens ?? 0), color: "var(--c1)" },
    { label: t("tokens.thought"), value: reasoning_tokens ?? 0, color: "var(--c5)" },
    { label: t("tokens.answer"), value: (output_tokens ?? 0) - (reasoning_tokens ?? 0), color: "var(--c6)" },
  ];
  return html`
    ${(input_tokens || output_tokens) ? html`<${Split} parts=${parts} name=${t("tokens")} />` : null}
    <${Facts} rows=${[
      [t("tokens-in"), isSet(input_tokens) ? count(input_tokens) : null],
      [t("tokens.cached"), isSet(cached_tokens) ? `${count(cached_tokens)} (${percent(record.cached_share)})` : null],
      [t("tokens-out"), isSet(output_tokens) ? count(output_tokens) : null],
      [t("tokens.thought"), isSet(reasoning_tokens) ? count(reasoning_tokens) : null],
      [t("answer-chars"), isSet(record.answer_chars) ? count(record.answer_chars) : null],
      [t("tpot"), isSet(record.tpot_ms) ? duration(record.tpot_ms) : null, t("tpot.title")],
    ]} />
    ${record.cache_miss && html`<p class="notice"><${Icon} name="warning" /><span><b>${said("miss", record.cache_miss)}</b> ${record.cache_hint}</span></p>`}`;
};

const Message = ({ title, content, parts = [], tone }) => html`
  <div class=${cls("message", tone)}><h4>${title}</h4>
    ${(isSet(content) || !parts.length) && html`<pre class="text">${text(content ?? "")}</pre>`}
    ${parts.length > 0 && html`<p class="note">${t("body.parts", { parts: parts.join(", ") })}</p>`}</div>`;

const text = (content) => typeof content === "string" ? content : JSON.stringify(content, null, 2);

const Body = ({ body }) => {
  if (!body) return html`<p class="note">${t(`body.none.${about.value.bodies}`)}</p>`;
  const redacted = Object.entries(body.redacted || {});
  return html`
    ${redacted.length > 0 && html`<p class="note">${t("body.redacted", { what: redacted.map(([kind, n]) => `${said("redacted", kind)}: ${n}`).join(", ") })}</p>`}
    ${body.cut && html`<p class="note">${t("body.cut")}</p>`}
    ${(body.prompt || []).map(({ role, content, text: told, parts }, i) => html`
      <${Message} key=${i} title=${said("role", role)} content=${content ?? told} parts=${parts} />`)}
    ${isSet(body.reasoning) && html`<${Message} title=${t("thought")} content=${body.reasoning} />`}
    ${[body.answer, ...(body.other_answers || [])].filter(isSet).map((answer, i) => html`
      <${Message} key=${i} title=${t("answer")} content=${answer} tone="answer-text" />`)}
    ${(body.tool_calls || []).map(({ name, arguments: given }, i) => html`
      <${Message} key=${i} title=${t("tool-call", { name })} content=${given} tone="answer-text" />`)}`;
};

const Decision = ({ record }) => html`
  <p class="decision"><span class="name big"><i class="dot" style=${{ background: colourOf(record.scenario, about.value.scenarios) }}></i>${said("scenario", record.scenario)}</span>
    ${record.source && html`<span>${t("decided-by", { source: said("source", record.source) })}</span>`}
    ${isSet(record.confidence) && html`<span class="num">${t("confidence")} ${decimal(record.confidence, 2)}</span>`}</p>
  ${record.signals?.length > 0 && html`<ul class="signals">${record.signals.map((signal, i) => html`<li key=${i}>${signal}</li>`)}</ul>`}
  <${Facts} rows=${[
    [t("thinking"), record.thinking === null ? t("thinking.default") : t(record.thinking ? "on" : "off")],
    [t("lang"), isSet(record.lang) ? said("lang", record.lang) : null], [t("turns"), isSet(record.turns) ? count(record.turns) : null],
    [t("prompt-chars"), isSet(record.prompt_chars) ? count(record.prompt_chars) : null],
    [t("policy.short"), record.policy], [t("experiment"), record.experiment], [t("arm"), record.arm],
  ]} />`;

const Where = ({ record }) => {
  const sessionLink = record.session && requestsOf({ session: [record.session] });
  return html`<${Facts} rows=${[
    [t("backend"), record.backend], [t("pool"), record.pool], [t("dialect"), record.dialect], [t("model.client"), record.client_model], [t("model.sent"), record.backend_model],
    [t("endpoint"), record.endpoint], [t("filter.stream"), t(record.stream ? "yes" : "no")],
    [t("finish"), record.finish_reason && said("finish", record.finish_reason)], [t("affinity.one"), isKnown(`affinity.${record.affinity}`) ? t(`affinity.${record.affinity}`) : record.affinity],
    [t("moved.why"), record.moved_because], [t("session"), record.session && html`<${Go} class="link mono" href=${href(after({ ...sessionLink, open: "" }))} to=${() => go({ ...sessionLink, open: "" })}>${record.session}<//>`],
    [t("key-name"), record.key], [t("trace"), record.trace_id && html`<span class="mono">${record.trace_id}</span>`], [t("error-code"), record.error_code && html`<span class="mono">${record.error_code}</span>`],
  ]} />`;
};

const Raw = ({ record }) => {
  const whole = JSON.stringify(record, null, 2);
  return html`<details class="raw"><summary>${t("raw")}</summary><div class="code-box"><pre>${whole}</pre><${CopyButton} text=${whole} /></div></details>`;
};

/** What was asked a second time, in another arm; a record's id ends in `-shadow` then. */
const Repeat = ({ id }) => {
  const to = { open: id.replace(/-shadow$/, "") };
  return html`
    <p class="notice"><${Badge} tone="warn">${t("repeat")}<//><span>${t("repeat.title")}
      <${Go} class="link mono" href=${href(after(to))} to=${() => go(to)}>${to.open}<//></span></p>`;
};

const Opened = ({ id, data }) => {
  const { record, body, labels, why_not } = data;
  return html`
    <p class="row wrap"><${Badge} tone=${outcomeTone(record.outcome)}>${said("outcome", record.outcome)}<//>
      <span class="num">${record.status ?? t("no-status")}</span>
      <time class="note num" dateTime=${record.ts} title=${record.ts}>${wholeMoment(record.ts)} · ${ago(record.ts)}</time></p>
    ${record.warnings?.length > 0 && html`<ul class="warnings" aria-label=${t("warnings")}>${record.warnings.map((warning, i) => html`<li key=${i}><${Icon} name="warning" /><span>${warning}</span></li>`)}</ul>`}
    ${record.rescued && html`<p class="notice"><${Icon} name="warning" />${t("rescued.title")}</p>`}
    ${record.shadow && html`<${Repeat} id=${id} />`}
    <${Section} title=${t("decision")}><${Decision} record=${record} /><//>
    <${Section} title=${t("timeline")}><${Timeline} record=${record} /><//>
    <${Section} title=${t("params")}><${Params} params=${record.params || {}} caption=${t("params")} /><//>
    <${Section} title=${t("tokens")}><${Tokens} record=${record} /><//>
    <${Section} title=${t("where")}><${Where} record=${record} /><//>
    <${Section} title=${t("prompt-and-answer")}><${Body} body=${body} /><//>
    <${Section} title=${t("label.title")} id="label"><${Label} id=${id} record=${record} labels=${labels || []} whyNot=${why_not?.label} /><//>
    <${Section} title=${t("explain.title")} id="explain"><${Explain} id=${id} whyNot=${why_not?.explain} /><//>
    <${Raw} record=${record} />`;
};

const close = () => go({ open: "" });

/** The drawer. Where it covers the page, what is beneath is out of reach. */
export const OneRequest = ({ id }) => {
  const answer = useData(requestPath(id), "", { once: true });
  const heading = useRef(null);
  const covers = useMedia("(max-width: 1100px)");
  useEffect(() => {
    heading.current.focus({ preventScroll: true });
    return () => {
      // Back to the row, if nothing else has been chosen meanwhile.
      if (route.peek().open) return;
      requestAnimationFrame(() => document.querySelector(`tr[data-key="${CSS.escape(id)}"] .row-link`)?.focus());
    };
  }, []);
  useEffect(() => {
    const body = document.getElementById("body");
    body.inert = covers;
    return () => { body.inert = false; };
  }, [covers]);
  return html`
    <div class="drawer" role="dialog" aria-modal=${covers ? "true" : "false"} aria-labelledby="request-title" data-request=${id}>
      <div class="drawer-head">
        <h2 id="request-title" tabindex="-1" ref=${heading}>${t("request")} <span class="mono">${id}</span></h2>
        <${CopyButton} text=${id} label=${t("copy-id")} />
        <${IconButton} icon="close" label=${t("close")} onClick=${close} />
      </div>
      <div class="drawer-body"><${Answer} of=${answer} height=${400}>${(data) => html`<${Opened} id=${id} data=${data} />`}<//></div>
    </div>`;
};
