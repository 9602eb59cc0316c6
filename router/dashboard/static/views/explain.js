// The same request by the policy that is on disk now, beside what it got then.

import { cls, html, useState } from "../dom.js";
import { getJson, requestPath } from "../api.js";
import { refusal, refused } from "./label.js";
import { literal } from "./request.js";
import { Badge } from "../parts.js";
import { decimal, isKnown, said, t } from "../words.js";

const rowsOf = ({ then, now }) => {
  const heads = [
    ["scenario", said("scenario", then.scenario), said("scenario", now.scenario)],
    ["source", said("source", then.source), said("source", now.source)],
    ["thinking", literal(then.thinking), literal(now.thinking)],
    ["confidence", decimal(then.confidence, 2), decimal(now.confidence, 2)],
  ];
  const before = then.params || {};
  const after = now.params || {};
  const sent = (params, name) => name in params ? `${literal(params[name][1])} · ${said("origin", params[name][2])}` : "–";
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return [...heads, ...names.map((name) => [`params.${name}`, sent(before, name), sent(after, name)])];
};

const Compared = ({ found }) => {
  const differs = new Set(found.differs);
  const heads = { scenario: t("scenario"), source: t("sources"), thinking: t("thinking"), confidence: t("confidence") };
  const label = (name) => heads[name] || html`<span class="mono">${name.slice("params.".length)}</span>`;
  return html`
    <p>${differs.size ? t("explain.differs", { number: differs.size }) : t("explain.same")} <span class="note">${t(`explain.basis.${found.basis}`)}</span></p>
    <div class="table-box" tabindex="0" role="group" aria-label=${t("explain.title")}>
      <table class="params explained">
        <thead><tr><th scope="col"></th><th scope="col">${t("explain.then")}</th><th scope="col">${t("explain.now")}</th><th scope="col"><span class="visually-hidden">${t("differs")}</span></th></tr></thead>
        <tbody>${rowsOf(found).map(([name, then, now]) => html`
          <tr key=${name} class=${cls(differs.has(name) ? "differs" : "same")}><th scope="row" class="plain">${label(name)}</th><td>${then}</td><td class="sent">${now}</td>
            <td>${differs.has(name) && html`<${Badge} tone="warn">${t("differs")}<//>`}</td></tr>`)}</tbody>
      </table>
    </div>
    ${found.now.signals?.length > 0 && html`<h4>${t("explain.signals")}</h4><ul class="signals">${found.now.signals.map((signal, i) => html`<li key=${i}>${signal}</li>`)}</ul>`}
    ${(found.notes || []).map((note) => html`<p class="note" key=${note}>${isKnown(`explain.note.${note}`) ? t(`explain.note.${note}`) : note}</p>`)}`;
};

export const Explain = ({ id, whyNot }) => {
  const [state, setState] = useState({ found: null, wrong: "", busy: false });
  if (whyNot) return html`<p class="note">${refused(whyNot)}</p>`;
  const ask = async () => {
    setState({ ...state, wrong: "", busy: true });
    try {
      setState({ found: await getJson(requestPath(id, "/explain"), { body: {} }), wrong: "", busy: false });
    } catch (error) {
      setState({ found: null, wrong: refusal(error), busy: false });
    }
  };
  return html`
    <button type="button" class="button" disabled=${state.busy} onClick=${ask}>${t("explain.go")}</button>
    <p class=${state.wrong ? "wrong" : "visually-hidden"} role="status">${state.wrong || (state.found ? t("explain.done") : "")}</p>
    ${state.found && html`<${Compared} found=${state.found} />`}`;
};
