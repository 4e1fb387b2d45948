// Candidates for the context of the form above, ranked.

import { call, Refused } from "./api.js";
import { byId, el, say } from "./dom.js";
import { alike, input, mark, sent } from "./fields.js";
import { score } from "./numbers.js";

const FIRST = 5;

export class RankForm {
  constructor(form, { answered }) {
    Object.assign(this, { form, answered, model: null, rows: [], next: 0, asked: 0 });
    byId("candidates").addEventListener("submit", (event) => { event.preventDefault(); this.rank(); });
    byId("add-candidate").addEventListener("click", () => { this.#add(); this.rows.at(-1).fields[0].field.focus(); });
    byId("fill-candidates").addEventListener("click", () => this.fill());
    byId("rank-label").addEventListener("change", () => this.rank());
  }

  show(model) {
    const same = JSON.stringify(this.model?.columns.map((each) => each.name)) === JSON.stringify(model.columns.map((each) => each.name));
    this.model = model;
    const user = new Set(model.user_columns);
    this.columns = model.columns.filter(({ name }) => !user.has(name));
    this.context = model.columns.filter(({ name }) => user.has(name));
    const labels = model.labels.map(({ name }) => name);
    byId("rank-label").replaceChildren(...labels.map((name) => el("option", { value: name }, name)));
    byId("rank-label-box").hidden = labels.length < 2;
    this.contextShown();
    if (same) {
      if (this.ranked) this.rank();
      return;
    }
    byId("candidate-head").replaceChildren(
      ...["rank", "score", ...this.columns.map(({ name }) => name)].map((name) => el("th", { scope: "col" }, name)),
      el("th", { scope: "col" }, el("span", { class: "hidden" }, "remove")));
    this.fill();
  }

  /** Says which values of the form all candidates share. */
  contextShown() {
    if (!this.model) return;
    const values = this.form.row();
    say("rank-hint", this.context.length
      ? `All candidates share these values of the form above: ${this.context.map(({ name }) => `${name} ${JSON.stringify(values[name])}`).join(", ")}.`
      : "The model does not say which columns are the user's: each candidate has all of them.");
  }

  fill() {
    byId("candidate-rows").replaceChildren();
    [this.rows, this.next, this.ranked] = [[], 0, false];
    const distinct = new Set(this.model.samples.map((row) => JSON.stringify(this.columns.map(({ name }) => row[name]))));
    for (let at = 0; at < Math.min(FIRST, Math.max(2, distinct.size)); at++) this.#add();
    say("ranked", "");
  }

  async rank() {
    const asked = ++this.asked;
    this.#clear();
    if (!this.rows.length) {
      say("rank-error", "There are no candidates. Add one.");
      return;
    }
    const values = this.form.row();
    const context = Object.fromEntries(this.context.map(({ name }) => [name, values[name]]));
    const candidates = alike(this.columns, this.rows.map(({ fields }) => Object.fromEntries(fields.map(({ column, field }) => [column.name, sent(column, field.value)]))));
    let found;
    try {
      found = await call("/v1/rank", { context, candidates, label: byId("rank-label").value });
    } catch (error) {
      if (asked === this.asked && error instanceof Refused) this.#refused(error);
      return;
    }
    if (asked !== this.asked) return;
    const focused = document.activeElement;
    const order = found.candidates.map((at) => this.rows[at]);
    order.forEach((row, at) => {
      row.place.textContent = String(at + 1);
      row.score.textContent = score(found.scores[at]);
      row.element.classList.toggle("best", at === 0);
      byId("candidate-rows").append(row.element);
    });
    this.rows = order;
    this.ranked = true;
    if (focused && byId("candidate-rows").contains(focused)) focused.focus();
    this.#number();
    const best = order[0].fields.map(({ column, field }) => `${column.name} ${field.value || "missing"}`).join(", ");
    say("ranked", `${order.length} candidates ranked by ${found.label}. First: ${best}, ${score(found.scores[0])}. Version ${found.model.version}.`);
    this.answered(found.model);
  }

  #add() {
    const row = this.model.samples[this.next++ % this.model.samples.length];
    const made = { place: el("td", { class: "place" }, "–"), score: el("td", { class: "score" }, "–"), fields: [] };
    made.fields = this.columns.map((column) => ({ column, field: input(column, row[column.name], { class: column.is_list ? "wide" : null }), error: el("div", { class: "error" }) }));
    made.remove = el("button", { type: "button", onclick: () => this.#remove(made) }, "Remove");
    made.element = el("tr", {}, made.place, made.score, made.fields.map(({ field, error }) => el("td", {}, field, error)), el("td", {}, made.remove));
    for (const { field } of made.fields) field.addEventListener("input", () => { made.place.textContent = made.score.textContent = "–"; });
    this.rows.push(made);
    byId("candidate-rows").append(made.element);
    this.#number();
  }

  #remove(row) {
    const at = this.rows.indexOf(row);
    this.rows.splice(at, 1);
    row.element.remove();
    this.#number();
    (this.rows[Math.min(at, this.rows.length - 1)]?.remove ?? byId("add-candidate")).focus();
    say("ranked", `Removed. ${this.rows.length} candidates are left.`);
  }

  /** Names the fields of each candidate by its place. */
  #number() {
    this.rows.forEach(({ fields, remove }, at) => {
      remove.setAttribute("aria-label", `Remove candidate ${at + 1}`);
      for (const { column, field, error } of fields) {
        field.setAttribute("aria-label", `${column.name} of candidate ${at + 1}`);
        error.id = `candidate-${at}-${this.columns.indexOf(column)}-error`;
        field.setAttribute("aria-describedby", error.id);
      }
    });
  }

  #clear() {
    say("rank-error", "");
    for (const { fields } of this.rows) for (const { field, error } of fields) mark(field, error, "");
  }

  #refused(error) {
    for (const each of error.rows) {
      const cell = this.rows[each.row]?.fields.find(({ column }) => column.name === each.column);
      if (cell) mark(cell.field, cell.error, each.problem);
    }
    say("rank-error", `Not ranked: ${error.message}. ${error.hint}`);
  }
}
