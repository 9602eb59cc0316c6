// A table that sorts, opens its rows by mouse and keyboard, and becomes cards where it is narrow.

import { cls, html } from "./dom.js";
import { go, href, route, after } from "./route.js";
import { Go, Icon } from "./parts.js";
import { t } from "./words.js";

/** Rows in the order that the address asks for; what was not measured comes last either way. */
export const sorted = (rows, columns, fallback) => {
  const { sort, order } = wantedOrder(columns, fallback);
  const column = columns.find(({ id }) => id === sort);
  const sign = order === "asc" ? 1 : -1;
  const value = column.value || ((row) => row[column.id]);
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)].map((one) => one ?? null);
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
  });
};

/** Sort and order of the address where the table has such a column, else its own. */
export const wantedOrder = (columns, [sort, order]) => {
  const asked = route.value.sort;
  const column = columns.find(({ id, sorts = true }) => id === asked && sorts);
  if (!column) return { sort, order };
  return { sort: asked, order: route.value.order || (column.num ? "desc" : "asc") };
};

const moveFocus = (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
  if (!step || !event.target.matches(".row-link")) return;
  const links = [...event.currentTarget.querySelectorAll(".row-link")];
  const at = Math.max(0, Math.min(links.length - 1, links.indexOf(event.target) + step));
  links[at].focus();
  event.preventDefault();
};

/** A click anywhere on a row opens it, but not the end of marking some text. */
const openRow = (event) => {
  if (event.target.closest("a, button, input, select") || String(getSelection())) return;
  event.currentTarget.querySelector(".row-link")?.click();
};

const Heading = ({ column, current }) => {
  const { id, label, num, sorts = true, title } = column;
  const holds = current.sort === id;
  if (!sorts) return html`<th scope="col" class=${cls(num && "num")} title=${title}>${label}</th>`;
  const order = holds ? (current.order === "asc" ? "desc" : "asc") : num ? "desc" : "asc";
  return html`
    <th scope="col" class=${cls(num && "num")} title=${title}
      aria-sort=${holds ? (current.order === "asc" ? "ascending" : "descending") : "none"}>
      <button type="button" class=${cls("sort", holds && "holds")} onClick=${() => go({ sort: id, order })}>
        ${label}<span class="arrow" aria-hidden="true">${holds && current.order === "asc" ? "▲" : "▼"}</span>
      </button>
    </th>`;
};

/** What sorts where there are no headings to click: cards. */
const SortChoice = ({ columns, current }) => html`
  <label class="sort-choice">${t("sort-by")}
    <select value=${`${current.sort} ${current.order}`} onChange=${(event) => {
      const [sort, order] = event.target.value.split(" ");
      go({ sort, order });
    }}>
      ${columns.filter(({ sorts = true }) => sorts).flatMap(({ id, label }) => ["desc", "asc"].map((order) => html`
        <option value=${`${id} ${order}`}>${label} ${order === "asc" ? "▲" : "▼"}</option>`))}
    </select>
  </label>`;

/**
 * `columns`: [{id, label, num, sorts, title, cell(row), value(row)}]. `to(row)`: the change of
 * state that opens a row, its first cell is the link. `fallback`: [sort, order] by itself.
 */
export const Table = ({ caption, columns, rows, rowKey, to, fallback, isChosen = () => false, total }) => {
  const current = wantedOrder(columns, fallback);
  const cell = (column, row, isFirst) => {
    const shown = column.cell ? column.cell(row) : row[column.id];
    if (!isFirst || !to) return shown;
    return html`<${Go} class="row-link" href=${href(after(to(row)))} to=${() => go(to(row))}>${shown}<//>`;
  };
  return html`
    <${SortChoice} columns=${columns} current=${current} />
    <div class="table-box" role="group" aria-label=${caption} tabindex="0">
      <table class="cards" role="table">
        <caption class="visually-hidden">${caption}</caption>
        <thead role="rowgroup"><tr role="row">${columns.map((column) => html`<${Heading} key=${column.id} column=${column} current=${current} />`)}</tr></thead>
        <tbody role="rowgroup" onKeyDown=${moveFocus}>
          ${rows.map((row) => html`
            <tr key=${rowKey(row)} data-key=${rowKey(row)} role="row" class=${cls(to && "opens", isChosen(row) && "chosen")} onClick=${to && openRow}>
              ${columns.map((column, i) => i === 0
                ? html`<th scope="row" role="rowheader">${cell(column, row, true)}</th>`
                : html`<td role="cell" class=${cls(column.num && "num", column.wide && "wide")} data-label=${column.label}>${cell(column, row, false)}</td>`)}
            </tr>`)}
        </tbody>
        ${total && html`<tfoot role="rowgroup"><tr role="row">
          ${columns.map((column, i) => i === 0
            ? html`<th scope="row" role="rowheader">${t("total")}</th>`
            : html`<td role="cell" class=${cls(column.num && "num")} data-label=${column.label}>${column.id in total || column.total ? (column.total || column.cell || ((row) => row[column.id]))(total) : ""}</td>`)}
        </tr></tfoot>`}
      </table>
    </div>`;
};

export const Pages = ({ total, size, shown }) => {
  const { page } = route.value;
  const last = Math.max(1, Math.ceil(total / size));
  const from = total ? (page - 1) * size + 1 : 0;
  const button = (to, icon, label) => html`
    <button type="button" class="button" aria-label=${label} title=${label} disabled=${to < 1 || to > last} onClick=${() => go({ page: to })}>
      <${Icon} name=${icon} />
    </button>`;
  return html`
    <nav class="pages" aria-label=${t("pages")}>
      <span class="note num">${shown(from, Math.min(total, page * size), total)}</span>
      ${button(page - 1, "prev", t("page-before"))}
      <span class="num">${t("page-of", { page, last })}</span>
      ${button(page + 1, "next", t("page-next"))}
    </nav>`;
};
