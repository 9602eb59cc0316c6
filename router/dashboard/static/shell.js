// What stands around every view: the way to the others, time range, filters, export, choices.

import { cls, html, useEffect, useRef } from "./dom.js";
import { about, isReading } from "./about.js";
import { download, keyWanted, pending, useKey } from "./api.js";
import { VIEWS, after, go, href, lastingLink, route, scope } from "./route.js";
import { hidden, interval, paused, refreshNow } from "./refresh.js";
import { THEMES, setTheme, theme } from "./theme.js";
import { FilterBar } from "./filter.js";
import { RangePicker } from "./range.js";
import { Go, Icon, IconButton, copy, say } from "./parts.js";
import { LANGUAGES, bytes, count, lang, percent, setLang, t } from "./words.js";

const NextTheme = () => {
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
  return html`<${IconButton} icon=${theme.value} label=${t("theme", { now: t(`theme.${theme.value}`), next: t(`theme.${next}`) })}
    onClick=${() => setTheme(next)} />`;
};

const LanguageChoice = () => {
  const other = lang.value === "zh" ? "en" : "zh";
  return html`<button type="button" class="icon-button wide" lang=${other} aria-label=${LANGUAGES[other]} title=${LANGUAGES[other]}
    onClick=${() => setLang(other)}>${other === "zh" ? "中" : "EN"}</button>`;
};

export const Side = ({ showHelp }) => {
  const views = useRef(null);
  const { view: shown } = route.value;
  // On a phone the way to the views is wider than the screen.
  useEffect(() => views.current.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [shown]);
  return html`
  <header class="side">
    <a class="skip" href="#view" onClick=${(event) => { event.preventDefault(); document.getElementById("view").focus(); }}>${t("skip")}</a>
    <div class="brand"><img src=${new URL("icon.svg", import.meta.url).pathname} alt="" width="22" height="22" /><span>Scenario Router</span></div>
    <nav class="views" ref=${views} aria-label=${t("views")}>
      ${VIEWS.map((view) => html`
        <${Go} key=${view} href=${href(after({ view, open: "" }))} to=${() => go({ view, open: "" })} aria-current=${route.value.view === view ? "page" : undefined}>
          <${Icon} name=${view} /><span>${t(`view.${view}`)}</span><//>`)}
    </nav>
    <div class="side-foot">
      <div class="row"><${LanguageChoice} /><${NextTheme} /><${IconButton} icon="help" label=${t("shortcuts")} onClick=${showHelp} /></div>
      <p class="note about num">${about.value.version && t("version", { version: about.value.version })}${about.value.policy && html`<br />${t("policy", { policy: about.value.policy })}`}</p>
    </div>
  </header>`;
};

const Refreshing = () => {
  const still = paused.value || !interval.value;
  const words = paused.value ? t("refresh.paused") : !interval.value ? t("refresh.over")
    : hidden.value ? t("refresh.hidden") : t("refresh.every", { seconds: interval.value });
  return html`
    <div class="row refresh">
      <${IconButton} icon=${paused.value ? "play" : "pause"} aria-pressed=${paused.value ? "true" : "false"}
        label=${t(paused.value ? "refresh.go-on" : "refresh.pause")} onClick=${() => { paused.value = !paused.value; }} />
      <${IconButton} icon="refresh" label=${t("refresh.now")} onClick=${refreshNow} />
      <span class=${cls("note refresh-words", still && "still")} id="refresh-state">${words}</span>
    </div>`;
};

const EXPORTED = { now: "series", savings: "savings" };

const exportNow = async (format) => {
  const { view, sort, order } = route.value;
  const query = new URLSearchParams(scope.value);
  if (sort) query.set("sort", sort);
  if (order) query.set("order", order);
  try {
    const whole = await download(EXPORTED[view] || view, format, query.toString());
    say(whole ? t("export.cut", { total: count(whole) }) : t("export.done"));
  } catch (error) {
    say(`${t("export.failed")} ${error.message}`);
  }
};

const Share = () => html`
  <div class="row share">
    <${IconButton} icon="link" label=${t("copy-link")} onClick=${() => copy(lastingLink(), t("copy-link.done"))} />
    <button type="button" class="button" title=${t("export.csv")} aria-label=${t("export.csv")} onClick=${() => exportNow("csv")}><${Icon} name="save" /> CSV</button>
    <button type="button" class="button" title=${t("export.json")} aria-label=${t("export.json")} onClick=${() => exportNow("json")}><${Icon} name="save" /> JSON</button>
  </div>`;

/** What must be known before any number is believed. */
const Notices = () => {
  const { log } = about.value;
  return html`
    ${isReading(about.value) && html`
      <div class="notice" role="status"><progress max=${log.reading.total} value=${log.reading.done} aria-label=${t("reading.label")}></progress>
        ${t("reading", { share: percent(log.reading.done / log.reading.total), done: bytes(log.reading.done), total: bytes(log.reading.total) })}</div>`}
    ${log.fault && html`<div class="notice bad"><${Icon} name="warning" />${t("log-fault", { fault: log.fault })}</div>`}
    ${log.skipped_lines > 0 && html`<div class="notice"><${Icon} name="warning" />${t("torn", { lines: count(log.skipped_lines) })}</div>`}
    ${log.dropped > 0 && html`<div class="notice bad"><${Icon} name="warning" />${t("dropped", { lines: count(log.dropped) })}</div>`}`;
};

export const Top = () => html`
  <div class="top">
    <div class="top-row">
      <h1>${t(`view.${route.value.view}`)}</h1>
      <${RangePicker} />
      <${Refreshing} />
      <${Share} />
    </div>
    <${FilterBar} />
    <${Notices} />
    <div class=${cls("loading-bar", pending.value > 0 && "busy")} aria-hidden="true"></div>
  </div>`;

export const KeyForm = () => {
  const field = useRef(null);
  useEffect(() => field.current.focus(), [keyWanted.value]);
  const take = (event) => {
    event.preventDefault();
    const value = field.current.value.trim();
    if (!value) return;
    field.current.value = "";
    useKey(value);
    refreshNow();
  };
  return html`
    <main class="key-page">
      <form class="key-form panel" onSubmit=${take}>
        <div class="brand"><img src=${new URL("icon.svg", import.meta.url).pathname} alt="" width="28" height="28" /><span>Scenario Router</span></div>
        <h1>${t("key.title")}</h1>
        <p>${t("key.why")}</p>
        <label>${t("key.label")}<input ref=${field} type="password" name="key" autocomplete="current-password" required
          aria-invalid=${keyWanted.value === "wrong" ? "true" : "false"} aria-describedby="key-wrong" /></label>
        <p id="key-wrong" class="wrong" role="alert">${keyWanted.value === "wrong" ? t("key.wrong") : ""}</p>
        <button class="button primary">${t("key.go")}</button>
        <p class="note">${t("key.kept")}</p>
      </form>
    </main>`;
};

const SHORTCUTS = ["/", "?", "1 – 7", "r", "p", "↑ ↓", "Enter", "j k", "Esc"];

export const Help = ({ close }) => {
  const box = useRef(null);
  useEffect(() => {
    const opener = document.activeElement;
    box.current.showModal();
    return () => opener?.focus?.();
  }, []);
  return html`
    <dialog ref=${box} class="help" aria-labelledby="help-title" onClose=${close} onClick=${(event) => event.target === box.current && box.current.close()}>
      <div class="help-body">
        <header class="row"><h2 id="help-title">${t("shortcuts")}</h2><${IconButton} icon="close" label=${t("close")} onClick=${() => box.current.close()} /></header>
        <dl>${SHORTCUTS.map((keys) => html`<div><dt>${keys.split(" ").map((key) => key === "–" ? " – " : html`<kbd>${key}</kbd> `)}</dt><dd>${t(`key-of.${keys}`)}</dd></div>`)}</dl>
        <p class="note">${t("shortcuts.drag")}</p>
      </div>
    </dialog>`;
};
