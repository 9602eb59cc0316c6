// Which time is shown: four ranges up to now, or two moments of one's own.

import { html, useEffect, useRef, useState } from "./dom.js";
import { PRESETS, ends, go, route, stamp } from "./route.js";
import { Icon } from "./parts.js";
import { shortMoment, t } from "./words.js";

/** Epoch seconds as a field for local date and time takes them. */
const asField = (seconds) => {
  const date = new Date(seconds * 1000);
  return new Date(seconds * 1000 - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
};

const isPreset = ({ from, to }) => !to && PRESETS.includes(from);

/** The range in words. */
export const rangeWords = (state) => {
  if (isPreset(state)) return t(`range${state.from}`);
  const [from, to] = ends(state, Date.now() / 1000);
  return `${shortMoment(from)} – ${state.to ? shortMoment(to) : t("now")}`;
};

const OwnRange = ({ close }) => {
  // What is typed stays while the page is drawn anew.
  const [fields, setFields] = useState(() => {
    const [from, to] = ends(route.peek(), Date.now() / 1000).map(asField);
    return { from, to };
  });
  const [wrong, setWrong] = useState("");
  const first = useRef(null);
  useEffect(() => first.current.focus(), []);
  const take = (event) => {
    event.preventDefault();
    const [start, end] = [fields.from, fields.to].map((text) => Date.parse(text) / 1000);
    if (!(start < end)) {
      setWrong(t("range.wrong"));
      return;
    }
    go({ from: stamp(start), to: stamp(end) });
    close();
  };
  const field = (name) => ({ type: "datetime-local", name, required: true, value: fields[name], onInput: (event) => setFields({ ...fields, [name]: event.currentTarget.value }) });
  return html`
    <form class="popover" onSubmit=${take} onKeyDown=${(event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
    }}>
      <label>${t("from")}<input ref=${first} ...${field("from")} /></label>
      <label>${t("to")}<input ...${field("to")} /></label>
      ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
      <p class="note">${t("range.zone", { zone: Intl.DateTimeFormat().resolvedOptions().timeZone })}</p>
      <div class="row"><button class="button primary">${t("apply")}</button>
        <button type="button" class="button" onClick=${close}>${t("cancel")}</button></div>
    </form>`;
};

export const RangePicker = () => {
  const [open, setOpen] = useState(false);
  const opener = useRef(null);
  const own = !isPreset(route.value);
  const close = () => {
    setOpen(false);
    opener.current?.focus();
  };
  return html`
    <div class="range" role="group" aria-label=${t("range")}>
      ${PRESETS.map((from) => html`
        <button type="button" key=${from} class="segment" aria-pressed=${route.value.from === from && !route.value.to ? "true" : "false"}
          onClick=${() => go({ from, to: "" })} title=${t(`range${from}`)}>${t(`range${from}.short`)}</button>`)}
      <button type="button" ref=${opener} class="segment" aria-pressed=${own ? "true" : "false"} aria-expanded=${open ? "true" : "false"}
        onClick=${() => setOpen(!open)}><${Icon} name="clock" /> ${own ? rangeWords(route.value) : t("range.own")}</button>
      ${open && html`<${OwnRange} close=${close} />`}
    </div>`;
};
