// One field for all filters: a request's id, or `scenario:faq`, chosen from what the log holds.

import { html, useRef, useState } from "./dom.js";
import { about } from "./about.js";
import { FILTERS, go, isFiltered, route, withFilter, withoutFilter } from "./route.js";
import { Icon } from "./parts.js";
import { duration, said, t } from "./words.js";

const SHOWN = 12;

const choices = () => {
  const { scenarios, backends, outcomes, sources, keys, experiments, finish_reasons } = about.value;
  const known = {
    scenario: scenarios, backend: backends, outcome: outcomes, source: sources, key: keys,
    experiment: experiments, stream: ["true", "false"], thinking: ["true", "false"], shadow: ["true"],
    slow_ms: ["500", "1000", "5000", "30000"], finish_reason: finish_reasons,
  };
  return Object.entries(known).flatMap(([name, values]) =>
    values.filter((value) => value !== null).map((value) => ({ name, value: String(value) })));
};

/** A filter as people read it. */
const filterWords = (name, value) => {
  const shown = name === "slow_ms" ? duration(Number(value))
    : ["outcome", "source"].includes(name) ? said(name, value)
    : ["stream", "thinking", "shadow"].includes(name) ? t(value === "true" ? "yes" : "no")
    : value === "(none)" ? t("none") : value;
  return { label: t(`filter.${name}`), shown };
};

/** What was typed, as a filter: `name:value` of a known name, else a request's id. */
const parsed = (text) => {
  const match = /^\s*([a-z_]+)\s*[:=]\s*(\S.*?)\s*$/.exec(text);
  if (match) {
    const name = match[1] === "slow" ? "slow_ms" : match[1];
    if (FILTERS.includes(name)) return { name, value: match[2] };
  }
  return { name: "q", value: text.trim() };
};

const matching = (text) => {
  const wanted = text.trim().toLowerCase();
  const held = route.value.filters;
  return choices()
    .filter(({ name, value }) => !(held[name] || []).includes(value))
    .filter(({ name, value }) => {
      const { label, shown } = filterWords(name, value);
      return !wanted || `${name}:${value} ${label} ${shown}`.toLowerCase().includes(wanted);
    })
    .slice(0, SHOWN * 3);
};

export const FilterBar = () => {
  const [text, setText] = useState("");
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const field = useRef(null);
  const found = open ? matching(text) : [];

  const take = ({ name, value }) => {
    if (value) go({ filters: withFilter(name, value), ...(name === "q" && { view: "requests" }) });
    setText("");
    setAt(-1);
    setOpen(false);
  };
  const onKey = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setOpen(true);
      const size = Math.max(1, found.length);
      setAt((at + (event.key === "ArrowDown" ? 1 : -1) + size) % size);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (at >= 0 && found[at]) take(found[at]);
      else if (text.trim()) take(parsed(text));
    } else if (event.key === "Escape") {
      event.stopPropagation();
      if (open) setOpen(false);
      else {
        setText("");
        event.currentTarget.blur();
      }
    } else if (event.key === "Backspace" && !text) {
      const last = Object.entries(route.value.filters).at(-1);
      if (last) go({ filters: withoutFilter(last[0], last[1].at(-1)) });
    }
  };

  return html`
    <div class="filters" role="search">
      <div class="filter-field" onFocusOut=${(event) => {
        if (!event.currentTarget.contains(event.relatedTarget)) setOpen(false);
      }}>
        <${Icon} name="search" />
        <input id="filter" ref=${field} type="text" role="combobox" autocomplete="off" spellcheck="false" aria-autocomplete="list"
          aria-expanded=${open && found.length ? "true" : "false"} aria-controls="filter-choices" aria-label=${t("filter.label")}
          aria-activedescendant=${at >= 0 && found[at] ? `choice-${at}` : undefined}
          placeholder=${t("filter.placeholder")} value=${text}
          onInput=${(event) => { setText(event.currentTarget.value); setOpen(true); setAt(-1); }}
          onFocus=${() => setOpen(true)} onClick=${() => setOpen(true)} onKeyDown=${onKey} />
        <kbd aria-hidden="true">/</kbd>
        ${open && found.length > 0 && html`
          <ul id="filter-choices" class="choices" role="listbox" aria-label=${t("filter.label")}>
            ${found.map(({ name, value }, i) => {
              const { label, shown } = filterWords(name, value);
              return html`
                <li key=${`${name}:${value}`} id=${`choice-${i}`} role="option" aria-selected=${i === at ? "true" : "false"}
                  onMouseDown=${(event) => event.preventDefault()} onClick=${() => take({ name, value })}>
                  <span class="note">${label}</span> ${name === "slow_ms" ? "≥ " : ""}${shown}</li>`;
            })}
          </ul>`}
      </div>
      ${isFiltered.value && html`
        <ul class="chips" aria-label=${t("filter.held")}>
          ${Object.entries(route.value.filters).flatMap(([name, values]) => values.map((value) => {
            const { label, shown } = filterWords(name, value);
            return html`
              <li class="chip" key=${`${name}:${value}`}><span class="note">${label}</span> <span class="chip-value">${name === "slow_ms" ? "≥ " : ""}${shown}</span>
                <button type="button" aria-label=${t("filter.drop", { filter: `${label} ${shown}` })} onClick=${() => go({ filters: withoutFilter(name, value) })}><${Icon} name="close" /></button></li>`;
          }))}
          <li><button type="button" class="link" onClick=${() => go({ filters: {} })}>${t("filter.clear")}</button></li>
        </ul>`}
    </div>`;
};
