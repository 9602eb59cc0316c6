// Nothing to show: why, and the way on.

import { html } from "../dom.js";
import { about, isAbout, isReading } from "../about.js";
import { go, isFiltered, route } from "../route.js";
import { CopyButton, Empty } from "../parts.js";
import { ago, t } from "../words.js";

const first = () => `curl ${new URL("../../../v1/chat/completions", import.meta.url)} \\
  -d '{"model": "auto", "messages": [{"role": "user", "content": "Where is my parcel?"}]}'`;

/** The shortest of the usual ranges that reaches back to a moment. */
const reaching = (moment) => {
  const seconds = (Date.now() - Date.parse(moment)) / 1000;
  return seconds < 3600 ? "-1h" : seconds < 86400 ? "-24h" : seconds < 7 * 86400 ? "-7d" : "";
};

export const Nothing = () => {
  const { log, offline } = about.value;
  if (!isAbout.value) return html`<${Empty} title=${t("loading")} />`;
  if (isReading(about.value)) return html`<${Empty} title=${t("empty.reading")} />`;
  if (!log.records) {
    if (offline) return html`<${Empty} title=${t("empty.offline")}><p>${t("empty.offline.do", { dir: log.dir })}</p><//>`;
    return html`
      <${Empty} title=${t("empty.first")}>
        <p>${t("empty.first.do")}</p>
        <div class="code-box"><pre>${first()}</pre><${CopyButton} text=${first()} /></div>
      <//>`;
  }
  const back = log.last && reaching(log.last);
  return html`
    <${Empty} title=${t(isFiltered.value ? "empty.filtered" : "empty.range")}>
      ${log.last && html`<p>${t("empty.last", { ago: ago(log.last) })}</p>`}
      <div class="row">
        ${isFiltered.value && html`<button type="button" class="button primary" onClick=${() => go({ filters: {} })}>${t("filter.clear")}</button>`}
        ${back && back !== route.value.from && html`<button type="button" class="button" onClick=${() => go({ from: back, to: "" })}>${t("empty.show", { range: t(`range${back}`) })}</button>`}
        ${log.last && !back && html`<button type="button" class="button" onClick=${() => go({ from: log.first, to: "" })}>${t("empty.show-all")}</button>`}
      </div>
    <//>`;
};
