// The form of a row: filled with an example, predicted whenever it changes.

import { call, Refused } from "./api.js";
import { byId, el, say } from "./dom.js";
import { choices, hint, input, mark, sent, shown } from "./fields.js";
import { score } from "./numbers.js";

const WAIT_MS = 250;

export class PredictForm {
  constructor({ answered, changed }) {
    Object.assign(this, { answered, changed, model: null, fields: new Map(), example: 0, asked: 0, last: null, lastRow: null, timer: 0 });
    byId("row").addEventListener("submit", (event) => { event.preventDefault(); this.predict(); });
    byId("next-example").addEventListener("click", () => this.fill(this.example + 1));
  }

  /** Shows the form of a model; what was typed stays where the columns stay. */
  show(model) {
    const same = JSON.stringify(this.model?.columns) === JSON.stringify(model.columns);
    this.model = model;
    if (same) {
      this.predict();
      return;
    }
    const before = new Map([...this.fields].map(([name, { field }]) => [name, field.value]));
    const focused = document.activeElement?.dataset?.column;
    this.fields = new Map();
    byId("fields").replaceChildren(...model.columns.map((column, at) => this.#field(column, at)));
    say("predict-hint", model.samples_are_real
      ? "The values are a row of the log. Change one, and the prediction follows."
      : "The export has no rows of the log; these values were made up. Change one, and the prediction follows.");
    const stays = before.size && model.columns.every(({ name }) => before.has(name));
    if (stays) for (const [name, { field }] of this.fields) field.value = before.get(name);
    else this.#put(model.samples[0]);
    if (focused && this.fields.has(focused)) this.fields.get(focused).field.focus();
    this.predict();
  }

  fill(number) {
    this.example = number % this.model.samples.length;
    this.#put(this.model.samples[this.example]);
    this.predict();
  }

  /** Returns column -> what is sent for it. */
  row() {
    return Object.fromEntries(this.model.columns.map((column) => [column.name, sent(column, this.fields.get(column.name).field.value)]));
  }

  async predict() {
    clearTimeout(this.timer);
    const asked = ++this.asked, row = this.row();
    const texts = Object.fromEntries([...this.fields].map(([name, { field }]) => [name, field.value]));
    const began = performance.now();
    let found;
    try {
      found = await call("/v1/predict", { rows: [row] });
    } catch (error) {
      if (asked === this.asked) this.#refused(error);
      return;
    }
    if (asked !== this.asked) return;
    this.#clear();
    this.#answer(found, texts, performance.now() - began);
    this.answered(found.model);
  }

  #field(column, at) {
    const id = `field-${at}`;
    const error = el("p", { class: "error", id: `${id}-error` });
    const field = input(column, null, { id, name: column.name, "data-column": column.name, "aria-describedby": `${id}-error ${id}-hint` });
    field.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.predict(), WAIT_MS);
      this.changed();
    });
    this.fields.set(column.name, { field, error });
    return el("div", { class: "field" }, el("label", { for: id }, column.name), field, error, choices(column), el("p", { class: "soft", id: `${id}-hint` }, hint(column)));
  }

  #put(row) {
    for (const [name, { field }] of this.fields) field.value = shown(row[name]);
    this.changed();
  }

  #answer(found, texts, took) {
    const version = found.model.version;
    const values = Object.fromEntries(Object.entries(found.predictions).map(([label, each]) => [label, each[0]]));
    const before = this.last;
    const places = Object.entries(values).map(([label, value]) => {
      const by = before && label in before.values ? value - before.values[label] : 0;
      const move = by ? el("small", { class: by > 0 ? "up" : "down" }, `${by > 0 ? "▲ +" : "▼ −"}${score(Math.abs(by))}`) : null;
      const further = Object.entries(found.further?.[label] ?? {}).map(([name, each]) => `${name}: ${score(each[0])}`).join(", ");
      return el("div", {}, el("dt", {}, label), el("dd", { "data-label": label }, score(value), move, further ? el("span", { class: "soft" }, further) : null));
    });
    byId("scores").replaceChildren(...places);
    const parts = Object.entries(values).map(([label, value]) => {
      const was = before?.values[label];
      return was !== undefined && was !== value ? `${label} ${score(value)}, was ${score(was)}` : `${label} ${score(value)}`;
    });
    say("said", `${parts.join("; ")}. ${reason(before, texts, version)} Version ${version}, in ${Math.max(1, Math.round(took))} ms.`);
    this.last = { values, texts, version };
  }

  #clear() {
    say("row-error", "");
    for (const { field, error } of this.fields.values()) mark(field, error, "");
  }

  #refused(error) {
    if (!(error instanceof Refused)) return; // the connection says so above
    this.#clear();
    for (const each of error.rows) {
      const place = this.fields.get(each.column);
      if (place) mark(place.field, place.error, `${each.problem}. ${each.hint ?? ""}`);
    }
    say("row-error", error.rows.length ? `No prediction: ${error.rows.map((each) => each.column ?? each.problem).join(", ")}.` : `${error.message}. ${error.hint}`);
  }
}

/** Says what was changed since the last prediction. */
function reason(before, texts, version) {
  if (!before) return "";
  if (before.version !== version) return `The model is another: ${before.version} before.`;
  const changed = Object.keys(texts).filter((name) => texts[name] !== before.texts[name]);
  if (changed.length === 1) return `You changed ${changed[0]} from ${before.texts[changed[0]] || "missing"} to ${texts[changed[0]] || "missing"}.`;
  return changed.length ? `You changed ${changed.length} values.` : "";
}
