// Small parts that all views share.

import { cls, html, signal, useEffect, useState } from "./dom.js";
import { count, percent, t } from "./words.js";
import { refreshNow } from "./refresh.js";
import { route } from "./route.js";

// Outlines on a 16 px grid.
const SHAPES = {
  now: "M1.500 8.500h3l2-5 3 9 2-4h3",
  scenarios: "M2 4h12M2 8h8M2 12h5",
  savings: "M8 1.500v13M11.500 4.500C11 3.500 9.800 3 8 3 6 3 4.500 3.900 4.500 5.500c0 3.500 7.200 1.500 7.200 5 0 1.700-1.500 2.500-3.700 2.500-2 0-3.300-.7-3.800-2",
  backends: "M2.500 2.500h11v4h-11zM2.500 9.500h11v4h-11zM5 4.500h.01M5 11.500h.01",
  sessions: "M2 3h12v8H8l-3.500 3v-3H2z",
  experiments: "M6 1.500h4M7 1.500v5L2.800 13a1 1 0 0 0 .9 1.500h8.600a1 1 0 0 0 .9-1.500L9 6.500v-5M5 10h6",
  requests: "M5 3.500h9M5 8h9M5 12.500h9M2 3.500h.01M2 8h.01M2 12.500h.01",
  pause: "M5.500 3v10M10.500 3v10",
  play: "M5 3l8 5-8 5z",
  refresh: "M13.500 8a5.500 5.500 0 1 1-1.600-3.900M13.500 1.500v3h-3",
  close: "M3.500 3.500l9 9M12.500 3.500l-9 9",
  link: "M6.500 9.500l3-3M7 4.500l1.200-1.200a3 3 0 0 1 4.300 4.300L11 9M9 11.500l-1.200 1.200a3 3 0 0 1-4.300-4.300L5 7",
  save: "M8 2v8M4.500 7L8 10.500 11.500 7M2.500 13.500h11",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.700 10.700L14 14",
  copy: "M5.500 5.500h8v8h-8zM10.500 5.500v-3h-8v8h3",
  prev: "M10 3L5 8l5 5",
  next: "M6 3l5 5-5 5",
  table: "M2 3h12v10H2zM2 6.500h12M6.500 6.500V13",
  chart: "M2.500 2v11.500H14M5.500 10l2.500-3 2 2 3.500-5",
  light: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.500v1M8 13.500v1M1.500 8h1M13.500 8h1M3.400 3.400l.7.7M11.900 11.900l.7.7M12.600 3.400l-.7.7M4.100 11.900l-.7.7",
  dark: "M13.500 9.500A5.800 5.800 0 0 1 6.500 2.500a5.800 5.800 0 1 0 7 7z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
  help: "M8 14.500a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13zM6 6.200C6 5 6.900 4.300 8 4.300s2 .7 2 1.800c0 1.400-2 1.600-2 3M8 11.500h.01",
  warning: "M8 2L1.500 13.500h13zM8 6.500v3.500M8 12h.01",
  clock: "M8 14.500a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13zM8 4.500V8l2.500 1.500",
};

export const Icon = ({ name }) => html`
  <svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${SHAPES[name]} /></svg>`;

/** A button that shows an icon and is named by words. */
export const IconButton = ({ icon, label, onClick, ...rest }) => html`
  <button type="button" class="icon-button" aria-label=${label} title=${label} onClick=${onClick} ...${rest}>
    <${Icon} name=${icon} />
  </button>`;

/** A link within the page: another state in the same window, a new tab where one is asked for. */
export const Go = ({ to, href, children, ...rest }) => html`
  <a href=${href} onClick=${(event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    to(event);
  }} ...${rest}>${children}</a>`;

export const Panel = ({ title, note, aside, children, flush, id }) => html`
  <section class=${cls("panel", flush && "flush")} aria-labelledby=${id}>
    <header class="panel-head">
      <h2 id=${id}>${title}</h2>
      ${note && html`<p class="note">${note}</p>`}
      ${aside && html`<div class="panel-aside">${aside}</div>`}
    </header>
    ${children}
  </section>`;

/** What went wrong, and what to do about it. */
export const Fault = ({ error }) => html`
  <div class="fault" role="alert">
    <${Icon} name="warning" />
    <div>
      <strong>${t(`fault.${error.kind || "server"}`)}</strong>
      ${error.kind !== "network" && html`<p>${error.message}</p>`}
      <p class="note">${t(`fault.${error.kind || "server"}.do`)}</p>
    </div>
    <button type="button" class="button" onClick=${refreshNow}>${t("retry")}</button>
  </div>`;

export const Empty = ({ title, children }) => html`
  <div class="empty"><strong>${title}</strong>${children}</div>`;

/** An answer: a quiet place holder before the first, the data, and the fault if there is one. */
export const Answer = ({ of, height = 240, children }) => {
  if (of.data === null && of.error) return html`<${Fault} error=${of.error} />`;
  if (of.data === null) {
    return html`<div class="waiting" style=${{ minHeight: `${height}px` }} role="status">
      <span class="visually-hidden">${t("loading")}</span></div>`;
  }
  return html`
    ${of.error && html`<${Fault} error=${of.error} />`}
    <div class=${cls("answer", of.isOld && "is-old")} aria-busy=${of.isOld ? "true" : "false"}>${children(of.data)}</div>`;
};

export const Badge = ({ tone = "plain", children, title }) => html`
  <span class=${`badge ${tone}`} title=${title}>${children}</span>`;

const OUTCOME_TONES = {
  ok: "good", client_disconnect: "plain", client_error: "warn", rejected: "warn",
  upstream_error: "bad", upstream_timeout: "bad", router_error: "bad",
};
export const outcomeTone = (outcome) => OUTCOME_TONES[outcome] || "plain";

/** A share as a bar behind its number. */
export const Meter = ({ share, label, color = "var(--accent)" }) => html`
  <span class="meter">
    <span class="meter-track"><span class="meter-fill" style=${{ width: `${Math.min(1, share || 0) * 100}%`, background: color }}></span></span>
    <span class="meter-label">${label ?? percent(share)}</span>
  </span>`;

/** Parts of a whole on one line. `parts`: [{label, value, color}] */
export const Split = ({ parts, name, legend = false }) => {
  const shown = parts.filter((part) => part.value > 0);
  const whole = shown.reduce((sum, part) => sum + part.value, 0);
  const words = shown.map((part) => `${part.label} ${count(part.value)} (${percent(part.value / whole)})`);
  return html`
    <div class="split-box">
      <div class="split" role="img" aria-label=${`${name}: ${words.join(", ") || t("none")}`}>
        ${shown.map((part) => html`
          <span key=${part.label} title=${`${part.label}: ${count(part.value)} (${percent(part.value / whole)})`}
            style=${{ flexGrow: part.value, background: part.color }}></span>`)}
      </div>
      ${legend && html`<ul class="legend" aria-hidden="true">
        ${shown.map((part) => html`<li key=${part.label}><i style=${{ background: part.color }}></i>${part.label}
          <b>${percent(part.value / whole)}</b></li>`)}
      </ul>`}
    </div>`;
};

/** Ten counts for 0–0.1 … 0.9–1. */
export const Histogram = ({ counts, name, tall }) => {
  const most = Math.max(...counts, 1);
  const words = counts.map((n, i) => n ? `${i / 10}–${(i + 1) / 10}: ${count(n)}` : "").filter(Boolean);
  return html`
    <span class=${cls("histogram", tall && "tall")} role="img" aria-label=${`${name}: ${words.join(", ") || t("none")}`}>
      ${counts.map((n, i) => html`
        <span title=${`${i / 10}–${(i + 1) / 10}: ${count(n)}`}><i style=${{ height: n ? `max(2px, ${(n / most) * 100}%)` : "0" }}></i></span>`)}
    </span>`;
};

// --- said in passing ---

const toast = signal("");
let toastTimer = 0;
export const say = (text) => {
  clearTimeout(toastTimer);
  toast.value = text;
  toastTimer = setTimeout(() => { toast.value = ""; }, 5000);
};
export const Toast = () => html`<div class=${cls("toast", toast.value && "shown")} role="status">${toast.value}</div>`;

/** To the clipboard, also where the page is not on HTTPS and browsers have none to give. */
export const copy = async (text, done) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(done);
};

export const CopyButton = ({ text, label = t("copy") }) => html`
  <${IconButton} icon="copy" label=${label} onClick=${() => copy(text, t("copied"))} />`;

/** Whether a media query holds, kept true. */
export const useMedia = (query) => {
  const [holds, setHolds] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const update = () => setHolds(media.matches);
    media.addEventListener("change", update);
    return () => media.removeEventListener("change", update);
  }, [query]);
  return holds;
};

// --- colours ---

const PALETTE = 8;
/** A scenario keeps its colour in every view and range: it goes by its place among all known. */
export const colourOf = (name, known) => {
  const index = known.indexOf(name);
  return index < 0 ? "var(--c0)" : `var(--c${index % PALETTE + 1})`;
};

/** Filters of a link to the requests that a row counts. */
export const requestsOf = (filters) => ({ view: "requests", filters: { ...route.value.filters, ...filters } });
