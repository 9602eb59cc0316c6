// "This should have been …": a labelled row for `eval` and `suggest`.

import { html, useState } from "../dom.js";
import { about } from "../about.js";
import { getJson, requestPath } from "../api.js";
import { isKnown, said, shortMoment, t } from "../words.js";

/** Why something cannot be done, by the router's word for it. */
export const refused = (code) => t(isKnown(`refused.${code}`) ? `refused.${code}` : "refused.other");

/** A refusal in the person's language where it is one of those we know. */
export const refusal = (error) => isKnown(`refused.${error.code}`) ? t(`refused.${error.code}`) : error.message;

export const Label = ({ id, record, labels, whyNot }) => {
  const [state, setState] = useState({ done: labels, wrong: "", busy: false });
  const choices = about.value.policy_scenarios?.length ? about.value.policy_scenarios : about.value.scenarios;
  const write = async (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const body = { scenario: form.get("scenario") };
    if (form.get("thinking")) body.thinking = form.get("thinking") === "true";
    if (form.get("note").trim()) body.note = form.get("note").trim();
    setState({ ...state, wrong: "", busy: true });
    try {
      await getJson(requestPath(id, "/label"), { body });
      const made = { ts: new Date().toISOString(), ...body };
      setState({ done: [...state.done, made], wrong: "", busy: false });
    } catch (error) {
      setState({ ...state, wrong: refusal(error), busy: false });
    }
  };
  return html`
    ${state.done.length > 0 && html`<ul class="labels">${state.done.map((label, i) => html`
      <li key=${i}><b>${said("scenario", label.scenario)}</b> ${label.note && html`<span>${label.note}</span>`} <span class="note num">${shortMoment(label.ts)}</span></li>`)}</ul>`}
    ${whyNot ? html`<p class="note">${refused(whyNot)}</p>` : html`
      <form class="label-form" onSubmit=${write}>
        <label>${t("label.scenario")}<select name="scenario" required>
          ${choices.map((name) => html`<option value=${name} selected=${name === record.scenario}>${said("scenario", name)}</option>`)}</select></label>
        <label>${t("thinking")}<select name="thinking"><option value="">${t("label.thinking.open")}</option><option value="true">${t("on")}</option><option value="false">${t("off")}</option></select></label>
        <label class="grow">${t("label.note")}<input name="note" maxlength="500" placeholder=${t("label.note.hint")} /></label>
        <button class="button primary" disabled=${state.busy}>${t("label.write")}</button>
      </form>`}
    <p class=${state.wrong ? "wrong" : "note"} role="status">${state.wrong || (state.done.length > labels.length ? t("label.done") : "")}</p>`;
};
