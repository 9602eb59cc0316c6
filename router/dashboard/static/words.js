// The page's words in the person's language, and numbers and dates as people there write them.

import { computed, effect, signal } from "./dom.js";
import { remember } from "./keep.js";
import { en } from "./lang/en.js";
import { zh } from "./lang/zh.js";

const WORDS = { en, zh };
export const LANGUAGES = { en: "English", zh: "中文" };

export const lang = signal(document.documentElement.lang === "zh" ? "zh" : "en");

/** The locale for numbers and dates: the browser's own variety of the language, if it has one. */
const locale = computed(
  () => navigator.languages.find((name) => name.toLowerCase().startsWith(lang.value))
    || (lang.value === "zh" ? "zh-CN" : "en-GB"),
);

effect(() => {
  document.documentElement.lang = lang.value;
  document.title = WORDS[lang.value]["title"];
});

export const setLang = (name) => {
  lang.value = name;
  remember("lang", name);
};

export const isKnown = (key) => key in WORDS.en;

/** A text by its key; `{name}` in it is filled in. */
export const t = (key, values = {}) => {
  const text = WORDS[lang.value][key];
  if (text === undefined) {
    console.error(`no words for ${key}`);
    return key;
  }
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
};

/** A word of the records in the person's language, or as it stands in the record. */
export const said = (family, value) => {
  const key = `${family}.${value}`;
  return isKnown(key) ? t(key) : value === null || value === "" ? t("none") : String(value);
};

// --- numbers ---

export const NOTHING = "–";
const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

const formats = new Map();
const format = (options) => {
  const key = locale.value + JSON.stringify(options);
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat(locale.value, options));
  return formats.get(key);
};

export const count = (value) => isMissing(value) ? NOTHING : format({ maximumFractionDigits: 0 }).format(value);

/** Large counts in few characters; the whole number belongs in a title. */
export const compact = (value) => isMissing(value) ? NOTHING
  : Math.abs(value) < 10_000 ? count(value)
  : new Intl.NumberFormat(lang.value === "zh" ? "zh-CN" : "en-US", { notation: "compact", maximumSignificantDigits: 3 }).format(value);

export const decimal = (value, digits = 1) => isMissing(value) ? NOTHING
  : format({ minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value);

/** A rate: more digits the smaller it is. */
export const rate = (value) => isMissing(value) ? NOTHING
  : value >= 100 ? count(value) : value === 0 ? "0" : decimal(value, value >= 10 ? 1 : 2);

export const percent = (share, digits) => isMissing(share) ? NOTHING
  : format({
    style: "percent",
    maximumFractionDigits: digits ?? (share > 0 && share < 0.1 || share > 0.9 && share < 1 ? 1 : 0),
  }).format(share);

/** A number and its unit, never parted by the end of a line. */
const unit = (value, name, digits) => `${format({
  minimumFractionDigits: digits, maximumFractionDigits: digits,
}).format(value)}\u00a0${t(`unit.${name}`)}`;

/** Milliseconds as what reads best. */
export const duration = (ms) => {
  if (isMissing(ms)) return NOTHING;
  const size = Math.abs(ms);
  if (size < 1) return `${format({ maximumSignificantDigits: 2 }).format(ms)}\u00a0${t("unit.ms")}`;
  if (size < 10) return unit(ms, "ms", 1);
  if (size < 1000) return unit(ms, "ms", 0);
  if (size < 60_000) return unit(ms / 1000, "s", size < 10_000 ? 2 : 1);
  if (size < 3_600_000) return unit(ms / 60_000, "min", 1);
  if (size < 172_800_000) return unit(ms / 3_600_000, "h", 1);
  return unit(ms / 86_400_000, "d", 1);
};

/** A length of time that is whole in its unit more often than not: "30 s", "12 min". */
export const step = (seconds) => {
  for (const [name, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    if (seconds >= size) return unit(seconds / size, name, seconds % size < 0.001 * size ? 0 : 1);
  }
  return unit(seconds * 1000, "ms", 0);
};

export const bytes = (value) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = value > 0 ? Math.min(4, Math.floor(Math.log10(value) / 3)) : 0;
  return unit(value / 1000 ** power, units[power], power > 1 ? 1 : 0);
};

// --- moments ---

const moments = new Map();
const moment = (options) => {
  const key = locale.value + JSON.stringify(options);
  if (!moments.has(key)) moments.set(key, new Intl.DateTimeFormat(locale.value, options));
  return moments.get(key);
};

const asDate = (value) => value instanceof Date ? value
  : new Date(typeof value === "number" ? value * 1000 : value);
const isToday = (date) => date.toDateString() === new Date().toDateString();

const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const DAY = { month: "short", day: "numeric" };

/** Time of day, with the day where it is not today. */
export const shortMoment = (value) => {
  if (isMissing(value)) return NOTHING;
  const date = asDate(value);
  return moment(isToday(date) ? CLOCK : { ...DAY, ...CLOCK }).format(date);
};

export const wholeMoment = (value) => isMissing(value) ? NOTHING
  : moment({ dateStyle: "medium", timeStyle: "medium" }).format(asDate(value));

/** For the axis of a chart whose buckets are `step` seconds. */
export const axisMoment = (seconds, span) => moment(
  span > 3 * 86400 ? DAY
    : span > 86400 ? { ...DAY, hour: "2-digit", minute: "2-digit", hourCycle: "h23" }
    : { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(span < 300 && { second: "2-digit" }) },
).format(asDate(seconds));

/** "3 minutes ago" */
export const ago = (value) => {
  const seconds = (asDate(value).getTime() - Date.now()) / 1000;
  const relative = new Intl.RelativeTimeFormat(locale.value, { numeric: "auto" });
  for (const [name, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(seconds) >= size) return relative.format(Math.round(seconds / size), name);
  }
  return relative.format(Math.round(seconds), "second");
};

/** "a, b and c" */
export const list = (parts) => new Intl.ListFormat(locale.value, { type: "conjunction" }).format(parts);
