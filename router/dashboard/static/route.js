// What is shown is in the address: view, time range, filters, sort, page, the request that is open.
// So every state can be sent to a colleague, and Back does what it should.

import { computed, signal } from "./dom.js";

export const VIEWS = [
  "now", "scenarios", "savings", "backends", "sessions", "experiments", "requests",
];
export const PRESETS = ["-15m", "-1h", "-24h", "-7d"];
export const FILTERS = [
  "scenario", "backend", "outcome", "source", "model", "session", "key", "experiment", "arm",
  "stream", "thinking", "shadow", "finish_reason", "slow_ms", "q",
];
/** Filters of which one value holds at a time. */
const SINGLE = new Set(["slow_ms", "q", "stream", "thinking", "shadow"]);
export const PAGE_SIZE = 50;
const DEFAULT_FROM = "-1h";

const read = (search) => {
  const query = new URLSearchParams(search);
  const filters = {};
  for (const name of FILTERS) {
    const values = query.getAll(name).filter(Boolean);
    if (values.length) filters[name] = SINGLE.has(name) ? values.slice(-1) : values;
  }
  const view = query.get("view");
  const page = Number.parseInt(query.get("page"), 10);
  return {
    view: VIEWS.includes(view) ? view : "now",
    from: query.get("from") || DEFAULT_FROM,
    to: query.get("to") || "",
    filters,
    sort: query.get("sort") || "",
    order: query.get("order") === "asc" ? "asc" : query.get("order") === "desc" ? "desc" : "",
    page: page > 1 ? page : 1,
    open: query.get("open") || "",
  };
};

/** The address of a state, as a relative link. */
export const href = (state) => {
  const query = new URLSearchParams();
  if (state.view !== "now") query.set("view", state.view);
  if (state.from !== DEFAULT_FROM) query.set("from", state.from);
  if (state.to) query.set("to", state.to);
  for (const [name, values] of Object.entries(state.filters)) {
    for (const value of values) query.append(name, value);
  }
  if (state.sort) query.set("sort", state.sort);
  if (state.order) query.set("order", state.order);
  if (state.page > 1) query.set("page", String(state.page));
  if (state.open) query.set("open", state.open);
  const text = query.toString();
  return location.pathname + (text ? `?${text}` : "");
};

export const route = signal(read(location.search));

/** The state after a change. What belongs to a view does not follow into another. */
export const after = (change) => {
  const now = route.value;
  const next = { ...now, ...change };
  if (next.view !== now.view) {
    for (const name of ["sort", "order", "open"]) if (!(name in change)) next[name] = "";
    if (!("page" in change)) next.page = 1;
  }
  if (("filters" in change || "from" in change || "sort" in change) && !("page" in change)) next.page = 1;
  return next;
};

export const go = (change, { replace = false } = {}) => {
  const next = after(change);
  const address = href(next);
  if (address === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  route.value = next;
};

addEventListener("popstate", () => {
  route.value = read(location.search);
});

/** Filters with one value more, or in the place of the old one where only one can hold. */
export const withFilter = (name, value, filters = route.value.filters) => {
  const old = SINGLE.has(name) ? [] : (filters[name] || []);
  return { ...filters, [name]: old.includes(value) ? old : [...old, value] };
};

export const withoutFilter = (name, value, filters = route.value.filters) => {
  const left = (filters[name] || []).filter((other) => other !== value);
  const { [name]: _, ...others } = filters;
  return left.length ? { ...others, [name]: left } : others;
};

export const isFiltered = computed(() => Object.keys(route.value.filters).length > 0);

/** Time range and filters as the API takes them. */
export const scope = computed(() => {
  const { from, to, filters } = route.value;
  const query = new URLSearchParams({ from });
  if (to) query.set("to", to);
  for (const [name, values] of Object.entries(filters)) {
    for (const value of values) query.append(name, value);
  }
  return query.toString();
});

const UNITS = { m: 60, h: 3600, d: 86400, s: 1, w: 604800 };

/** A range's two ends in epoch seconds, `now` given likewise. */
export const ends = ({ from, to }, now) => {
  const at = (text, other) => {
    const relative = /^-(\d+)([smhdw])$/.exec(text);
    if (relative) return now - Number(relative[1]) * UNITS[relative[2]];
    const parsed = Date.parse(text) / 1000;
    return Number.isFinite(parsed) ? parsed : other;
  };
  return [at(from, now - 3600), to ? at(to, now) : now];
};

/** RFC 3339 without needless milliseconds. */
export const stamp = (seconds) => new Date(seconds * 1000).toISOString().replace(".000Z", "Z");

/** A link that shows the same to somebody else later: the range's ends are fixed. */
export const lastingLink = () => {
  const state = route.value;
  const [from, to] = ends(state, Math.round(Date.now() / 1000));
  return location.origin + href({ ...state, from: stamp(from), to: stamp(to) });
};
