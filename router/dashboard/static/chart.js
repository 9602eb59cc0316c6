// Curves and bars over time, by uPlot. Each can be read as a table, too.
//
// uPlot, as all we draw is over time and much of it anew each second: it is a tenth of the size of
// the libraries that draw everything, and draws on a canvas in a millisecond.

import { cls, html, useEffect, useLayoutEffect, useRef, useState } from "./dom.js";
import uPlot from "./vendor/uplot.js";
import { go, stamp } from "./route.js";
import { isDark } from "./theme.js";
import { IconButton } from "./parts.js";
import { axisMoment, lang, shortMoment, t, wholeMoment } from "./words.js";

const probe = document.createElement("span");
probe.hidden = true;
document.documentElement.append(probe);

/** A colour of the style sheet as a canvas understands it. */
const colour = (name) => {
  probe.style.color = name;
  return getComputedStyle(probe).color;
};

/** Points that stand alone between gaps would not be seen as a line. */
const alone = (plot, index) => {
  const values = plot.data[index];
  const found = [];
  for (let i = 0; i < values.length; i += 1) {
    if (values[i] !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null) found.push(i);
  }
  return found;
};

const stackUp = (series) => {
  const sums = [];
  let below = null;
  for (const { values } of series) {
    below = values.map((value, i) => (value || 0) + (below ? below[i] : 0));
    sums.push(below);
  }
  return sums;
};

/** uPlot's columns. Stacked ones are whole sums, the highest first: each is painted over the last. */
const columns = (times, series, stacked) => stacked
  ? [times, ...stackUp(series).reverse()]
  : [times, ...series.map(({ values }) => values)];

/** Steps of an axis that counts: there are no half requests. */
const WHOLE_STEPS = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();

const options = ({ width, height, series, stacked, format, span, step, onHover }) => {
  const line = colour("var(--line)");
  const faint = colour("var(--faint)");
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: faint, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const drawn = (stacked ? [...series].reverse() : series).map((one) => ({
    label: one.label,
    stroke: stacked ? undefined : colour(one.color),
    fill: stacked ? colour(series.length > 1 ? one.color : `color-mix(in srgb, ${one.color} 72%, var(--surface))`) : one.filled ? colour(`color-mix(in srgb, ${one.color} 16%, transparent)`) : undefined,
    width: stacked ? 0 : 1.5,
    dash: one.dashed ? [4, 3] : undefined,
    paths: stacked ? uPlot.paths.bars({ size: [0.86, 40], align: 1 }) : undefined,
    points: stacked ? { show: false } : { show: true, size: 4, filter: alone },
  }));
  return {
    width,
    height,
    padding: [8, 18, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: "time" },
      drag: { x: true, y: false, setScale: false },
      points: { show: !stacked, size: 6 },
      y: false,
    },
    scales: {
      x: { time: true, range: (plot) => [plot.data[0][0], plot.data[0].at(-1) + step()] },
      y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 28, values: (_, at) => at.map((value) => axisMoment(value, span())), space: 80 },
      { ...axis, size: 62, values: (_, at) => at.map((value) => format(value)), space: 34, incrs: stacked ? WHOLE_STEPS : undefined },
    ],
    series: [{}, ...drawn],
    hooks: {
      setCursor: [(plot) => onHover(plot.cursor.idx ?? null)],
      setSelect: [(plot) => {
        const { left, width: wide } = plot.select;
        if (wide < 6) return;
        const [from, to] = [left, left + wide].map((x) => Math.round(plot.posToVal(x, "x")));
        plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        if (to > from) go({ from: stamp(from), to: stamp(to) });
      }],
    },
  };
};

const Canvas = ({ times, step, series, stacked, format, height, label, onHover }) => {
  const box = useRef(null);
  const plot = useRef(null);
  const latest = useRef({});
  latest.current = { times, step };
  const shape = series.map(({ key, color, label: text }) => `${key} ${color} ${text}`).join();

  useLayoutEffect(() => {
    const made = new uPlot(
      options({
        width: box.current.clientWidth, height, series, stacked, format, onHover,
        step: () => latest.current.step,
        span: () => latest.current.times.at(-1) - latest.current.times[0],
      }),
      columns(times, series, stacked),
      box.current,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => {
      const width = box.current?.clientWidth;
      if (width && width !== made.width) made.setSize({ width, height });
    });
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      plot.current = null;
      made.destroy();
    };
  }, [shape, stacked, height, isDark.value, lang.value]);

  useEffect(() => {
    plot.current?.setData(columns(times, series, stacked));
  }, [times, series]);

  return html`<div class="canvas" ref=${box} style=${{ height: `${height}px` }} role="img" aria-label=${label}></div>`;
};

const AsTable = ({ times, series, format, caption }) => {
  const rows = times.map((at, i) => i).filter((i) => series.some(({ values }) => values[i])).reverse();
  return html`
    <div class="table-box chart-table" tabindex="0" role="group" aria-label=${caption}>
      <table>
        <caption class="visually-hidden">${caption}</caption>
        <thead><tr><th scope="col">${t("time")}</th>${series.map((one) => html`<th scope="col" class="num">${one.label}</th>`)}</tr></thead>
        <tbody>${rows.map((i) => html`
          <tr key=${times[i]}><th scope="row" class="plain">${wholeMoment(times[i])}</th>
            ${series.map(({ values }) => html`<td class="num">${format(values[i])}</td>`)}</tr>`)}</tbody>
      </table>
      ${rows.length === 0 && html`<p class="note pad">${t("nothing-here")}</p>`}
    </div>`;
};

const summary = (title, times, series, format) => {
  const parts = series.map(({ label, values }) => {
    const known = values.filter((value) => value !== null);
    if (!known.length) return `${label}: ${t("none")}`;
    return t("chart.summary", { label, last: format(known.at(-1)), most: format(Math.max(...known)) });
  });
  return `${title}, ${shortMoment(times[0])} – ${shortMoment(times.at(-1))}. ${parts.join("; ")}`;
};

/**
 * A chart over time. `series`: [{key, label, color, values, filled, dashed}]; `values` hold null
 * where nothing was measured. `stacked`: counts, as bars upon each other; else curves. Drawing across it chooses that time range.
 */
export const TimeChart = ({ title, note, times, step, series, stacked = false, format, height = 190 }) => {
  const [at, setAt] = useState(null);
  const [asTable, setAsTable] = useState(false);
  const isEmpty = !series.some(({ values }) => values.some((value) => value));
  return html`
    <figure class="chart">
      <figcaption class="chart-head">
        <h3>${title}</h3>
        ${note && html`<span class="note">${note}</span>`}
        <span class="chart-at num">${at === null ? "" : shortMoment(times[at])}</span>
        <${IconButton} icon=${asTable ? "chart" : "table"} aria-pressed=${asTable ? "true" : "false"}
          label=${t(asTable ? "as-chart" : "as-table", { title })} onClick=${() => setAsTable(!asTable)} />
      </figcaption>
      ${asTable
        ? html`<${AsTable} times=${times} series=${series} format=${format} caption=${title} />`
        : html`
          <div class="canvas-box">
            <${Canvas} times=${times} step=${step} series=${series} stacked=${stacked} format=${format}
              height=${height} label=${summary(title, times, series, format)} onHover=${setAt} />
            ${isEmpty && html`<p class="chart-empty note">${t("nothing-here")}</p>`}
          </div>`}
      <ul class="legend" aria-hidden="true">
        ${series.map(({ key, label, color, dashed, values }) => html`
          <li key=${key}><i class=${cls(dashed && "dashed")} style=${dashed ? { borderColor: color } : { background: color }}></i>
            ${label} <b class="num">${at === null ? "" : format(values[at])}</b></li>`)}
      </ul>
    </figure>`;
};

/** The last minutes of one number, without axes. */
export const Spark = ({ times, values, color = "var(--accent)", label }) => {
  const box = useRef(null);
  const plot = useRef(null);
  useLayoutEffect(() => {
    const stroke = colour(color);
    const made = new uPlot({
      width: box.current.clientWidth,
      height: 34,
      padding: [3, 0, 1, 0],
      legend: { show: false },
      cursor: { show: false },
      axes: [{ show: false }, { show: false }],
      scales: {
        x: { time: true, range: (_, __, last) => [(last ?? 120) - 120, last ?? 120] },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] },
      },
      series: [{}, {
        stroke, width: 1.5, fill: colour(`color-mix(in srgb, ${color} 14%, transparent)`),
        points: { show: true, size: 3, filter: alone },
      }],
    }, [times, values], box.current);
    plot.current = made;
    const watch = new ResizeObserver(() => {
      const width = box.current?.clientWidth;
      if (width && width !== made.width) made.setSize({ width, height: 34 });
    });
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      plot.current = null;
      made.destroy();
    };
  }, [color, isDark.value]);
  useEffect(() => {
    plot.current?.setData([times, values]);
  }, [times, values]);
  return html`<div class="spark" ref=${box} role="img" aria-label=${label}></div>`;
};
