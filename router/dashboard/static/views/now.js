// The present, second by second, above the course of the chosen range.

import { cls, html, useEffect, useMemo } from "../dom.js";
import { about, isAbout } from "../about.js";
import { useData } from "../data.js";
import { Spark, TimeChart } from "../chart.js";
import { beats, followLive, liveState } from "../live.js";
import { isFiltered, route, scope } from "../route.js";
import { rangeWords } from "../range.js";
import { Answer, Panel, colourOf } from "../parts.js";
import { compact, count, duration, percent, rate, said, step as stepWords, t } from "../words.js";
import { Nothing } from "./nothing.js";

const TILES = [
  { id: "requests_per_s", pick: (beat) => beat.requests_per_s, format: rate },
  { id: "in_flight", pick: (beat) => beat.in_flight, format: count, also: (beat) => ["waiting", beat.waiting, count] },
  { id: "errors_per_s", pick: (beat) => beat.errors_per_s, format: rate, color: "var(--bad)" },
  { id: "ttft", pick: (beat) => beat.ttft_ms?.p50 ?? null, format: duration, also: (beat) => ["p95", beat.ttft_ms?.p95, duration], color: "var(--c2)" },
  { id: "total", pick: (beat) => beat.total_ms?.p50 ?? null, format: duration, also: (beat) => ["p95", beat.total_ms?.p95, duration], color: "var(--c5)" },
  { id: "overhead", pick: (beat) => beat.overhead_ms?.p50 ?? null, format: duration, also: (beat) => ["p95", beat.overhead_ms?.p95, duration], color: "var(--c3)" },
  { id: "output_tokens_per_s", pick: (beat) => beat.output_tokens_per_s, format: rate, color: "var(--c6)" },
];

const Tile = ({ tile, times }) => {
  const { id, pick, format, also, color } = tile;
  const all = beats.value;
  const last = all.at(-1);
  const values = useMemo(() => all.map((beat) => pick(beat) ?? null), [all]);
  const [name, value, form] = last && also ? also(last) : [];
  return html`
    <div class="tile" data-tile=${id}>
      <h3>${t(`live.${id}`)}</h3>
      <p class="tile-number num">${last ? format(pick(last)) : "–"}</p>
      <p class="tile-also note num">${also ? (name ? `${t(`live.${name}`)} ${form(value)}` : " ") : " "}</p>
      <${Spark} times=${times} values=${values} color=${color} label=${t("live.spark", { name: t(`live.${id}`) })} />
    </div>`;
};

const Live = () => {
  useEffect(followLive, []);
  const all = beats.value;
  const times = useMemo(() => all.map((beat) => beat.t), [all]);
  const state = liveState.value;
  const window_s = all.at(-1)?.window_s;
  return html`
    <section class="live" aria-labelledby="live-title">
      <header class="panel-head">
        <h2 id="live-title">${t("live.title")}</h2>
        <p class="note">${window_s ? t("live.window", { seconds: count(window_s) }) : " "}${isFiltered.value ? ` ${t("live.unfiltered")}` : ""}</p>
        <p class=${cls("live-state", state)} role="status"><i></i>${t(`live.${state}`)}</p>
      </header>
      <div class=${cls("tiles", state !== "live" && "is-old")}>${TILES.map((tile) => html`<${Tile} key=${tile.id} tile=${tile} times=${times} />`)}</div>
    </section>`;
};

const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);

/** Scenarios in their own order, what belongs to none of them last. */
const place = (name) => about.value.scenarios.indexOf(name) + 1 || Infinity;

const byScenario = (data) => Object.keys(data.by_scenario)
  .sort((a, b) => place(a) - place(b))
  .map((name) => ({
    key: name, label: said("scenario", name || null), values: data.by_scenario[name],
    color: colourOf(name, about.value.scenarios),
  }));

const Course = ({ data }) => {
  const { t: times, step_s: step } = data;
  const curve = (key, label, color, more = {}) => ({ key, label, color, values: data[key], ...more });
  const scenarios = useMemo(() => byScenario(data), [data, about.value.scenarios]);
  const errors = useMemo(() => [curve("errors", t("errors"), "var(--bad)")], [data]);
  const tokens = useMemo(() => [curve("output_tokens", t("output-tokens"), "var(--c6)")], [data]);
  const latency = (name, color) => [
    curve(`${name}_p50`, "p50", color, { filled: true }),
    curve(`${name}_p95`, "p95", color, { dashed: true }),
  ];
  const requests = sum(data.requests);
  const shared = { times, step };
  const perStep = t("per-step", { step: stepWords(step) });
  return html`
    <p class="sum num" data-sum="requests"><b>${count(requests)}</b> ${t("n-requests")} · <b>${count(sum(data.errors))}</b> ${t("n-errors")}${requests ? ` (${percent(sum(data.errors) / requests)})` : ""}${" · "}<b title=${count(sum(data.output_tokens))}>${compact(sum(data.output_tokens))}</b> ${t("output-tokens")}</p>
    <div class="charts">
      <${TimeChart} title=${t("chart.requests")} note=${perStep} ...${shared} series=${scenarios} stacked format=${count} />
      <${TimeChart} title=${t("chart.errors")} note=${perStep} ...${shared} series=${errors} stacked format=${count} />
      <${TimeChart} title=${t("chart.ttft")} ...${shared} series=${latency("ttft", "var(--c2)")} format=${duration} />
      <${TimeChart} title=${t("chart.total")} ...${shared} series=${latency("total", "var(--c5)")} format=${duration} />
      <${TimeChart} title=${t("chart.overhead")} ...${shared} series=${latency("overhead", "var(--c3)")} format=${duration} />
      <${TimeChart} title=${t("chart.output")} note=${perStep} ...${shared} series=${tokens} stacked format=${compact} />
    </div>`;
};

export const Now = () => {
  const series = useData("series", `points=120&${scope.value}`);
  const isEmpty = series.data !== null && !series.isOld && sum(series.data.requests) === 0;
  return html`
    ${isAbout.value && !about.value.offline && html`<${Live} />`}
    <${Panel} id="course" title=${t("course")} note=${rangeWords(route.value)}>
      <${Answer} of=${series} height=${520}>
        ${(data) => isEmpty ? html`<${Nothing} />` : html`<${Course} data=${data} />`}
      <//>
    <//>`;
};
