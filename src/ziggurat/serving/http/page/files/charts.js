// Small charts over time, each with a text for screen readers and its last values as a table.

import { el, table } from "./dom.js";
import { clock, short } from "./numbers.js";

const WIDTH = 360, HEIGHT = 130, LEFT = 44, RIGHT = 8, TOP = 8, BOTTOM = 20;
const SPAN_S = 300;
const CLASSES = ["first", "second", "third"];

export class LineChart {
  /** lines: names of the lines; unit: of their values; limits: values that are drawn as limits. */
  constructor(title, unit, lines, { format = short, limits = [], least = 1e-6, empty = "no requests yet" } = {}) {
    Object.assign(this, { title, unit, lines, format, limits, least, empty, points: [], marks: [] });
    this.svg = el("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.now = el("p", { class: "now" });
    this.body = el("div");
    this.details = el("details", { ontoggle: () => this.#table() }, el("summary", {}, `${title} as a table`), this.body);
    const legend = lines.length > 1 ? el("p", { class: "legend" }, lines.map((name, at) => el("span", {}, el("span", { class: `key ${CLASSES[at]}` }), name))) : null;
    this.element = el("figure", {}, el("h3", {}, title), this.now, this.svg, legend, this.details);
    this.draw();
  }

  /** Adds a point: a value for each line, null where there is none. */
  add(at, values) {
    this.points.push({ at, values });
    this.points = this.points.filter((point) => point.at > at - SPAN_S);
    this.draw();
  }

  /** Marks a time, such as the arrival of a version. */
  mark(at, name) {
    this.marks.push({ at, name });
    this.draw();
  }

  draw() {
    const end = this.points.at(-1)?.at ?? Date.now() / 1000, start = end - SPAN_S;
    const values = this.points.flatMap((point) => point.values).filter((value) => value !== null);
    const high = Math.max(this.least, ...values, ...(values.length ? this.limits : [])) * 1.08;
    const x = (at) => LEFT + (WIDTH - LEFT - RIGHT) * (at - start) / SPAN_S;
    const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / high;
    const drawn = [];
    for (const share of [0, 0.5, 1]) {
      const value = share * high / 1.08;
      drawn.push(el("line", { class: share ? "grid" : "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
      if (values.length) drawn.push(el("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, this.format(value)));
    }
    drawn.push(el("text", { x: LEFT, y: HEIGHT - 5 }, "5 min ago"), el("text", { x: WIDTH - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, "now"));
    if (values.length) for (const limit of this.limits) drawn.push(el("line", { class: "limit", x1: LEFT, x2: WIDTH - RIGHT, y1: y(limit), y2: y(limit) }));
    for (const { at, name } of this.marks) {
      if (at < start) continue;
      const side = x(at) > WIDTH / 2 ? "end" : "start";
      drawn.push(el("line", { class: "version", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }));
      drawn.push(el("text", { class: "version", x: x(at) + (side === "end" ? -4 : 4), y: TOP + 9, "text-anchor": side }, name));
    }
    this.lines.forEach((name, line) => {
      for (const run of this.#runs(line)) {
        if (run.length === 1) drawn.push(el("circle", { class: `line ${CLASSES[line]}`, cx: x(run[0].at), cy: y(run[0].value), r: 1 }));
        else drawn.push(el("polyline", { class: `line ${CLASSES[line]}`, points: run.map((point) => `${x(point.at).toFixed(1)},${y(point.value).toFixed(1)}`).join(" ") }));
      }
    });
    this.svg.replaceChildren(...drawn);
    const last = this.#last();
    const said = last ? this.lines.map((name, at) => `${this.lines.length > 1 ? `${name} ` : ""}${this.format(last[at])}`).join(", ") + ` ${this.unit}` : this.empty;
    this.now.textContent = said;
    const marked = this.marks.filter(({ at }) => at >= start).map(({ at, name }) => `; version ${name} arrived at ${clock(at)}`).join("");
    this.svg.setAttribute("aria-label", `${this.title} of the last 5 minutes: ${said}${values.length ? `, at most ${this.format(Math.max(...values))}` : ""}${marked}`);
    this.#table();
  }

  /** Returns the last values, if one of the last points has some. */
  #last() {
    for (const { values } of this.points.slice(-5).reverse()) if (values.some((value) => value !== null)) return values;
    return null;
  }

  /** Returns a line's points without its gaps. */
  #runs(line) {
    const runs = [];
    let open = false;
    for (const { at, values } of this.points) {
      if (values[line] === null) open = false;
      else if (open) runs.at(-1).push({ at, value: values[line] });
      else [open] = [true, runs.push([{ at, value: values[line] }])];
    }
    return runs;
  }

  #table() {
    if (!this.details.open || this.body.contains(document.activeElement)) return;
    const rows = this.points.slice(-12).reverse().map(({ at, values }) => [clock(at), ...values.map((value) => (value === null ? "–" : this.format(value)))]);
    this.body.replaceChildren(table(`${this.title}, in ${this.unit}, the latest first`, ["time", ...this.lines], rows));
  }
}

/** Returns a chart of shares in bins: expected ones beside those that were found. */
export function bars(title, edges, expected, found) {
  const total = (counts) => counts.reduce((sum, each) => sum + each, 0) || 1;
  const shares = [expected, found].map((counts) => counts.map((each) => each / total(counts)));
  const high = Math.max(...shares.flat(), 1e-9) * 1.08;
  const step = (WIDTH - LEFT - RIGHT) / expected.length;
  const drawn = [el("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM })];
  shares.forEach((side, which) => side.forEach((share, at) => {
    const height = (HEIGHT - TOP - BOTTOM) * share / high;
    drawn.push(el("rect", { class: which ? "found" : "expected", x: LEFT + step * (at + 0.1 + 0.4 * which), width: 0.38 * step, y: HEIGHT - BOTTOM - height, height }));
  }));
  edges.forEach((edge, at) => {
    if (at % 2 === 0) drawn.push(el("text", { x: LEFT + step * (at + 1), y: HEIGHT - 5, "text-anchor": "middle" }, short(edge)));
  });
  drawn.push(el("text", { x: LEFT - 5, y: TOP + 10, "text-anchor": "end" }, `${(100 * high / 1.08).toFixed(0)} %`));
  const words = shares[1].map((share, at) => `${(100 * share).toFixed(0)} % for ${(100 * shares[0][at]).toFixed(0)} %`).join(", ");
  return el("figure", {}, el("h3", {}, title),
    el("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, from low to high scores, now for the validation: ${words}` }, drawn),
    el("p", { class: "legend" }, el("span", {}, el("span", { class: "key expected" }), "validation"), el("span", {}, el("span", { class: "key first" }), "the last hour")));
}
