// What model this is, and how good it was.

import { byId, el, say, table } from "./dom.js";
import { count, date, short, span } from "./numbers.js";

const SPLITS = ["train", "validation", "test"];
const MAIN = new Set(["auc", "gauc", "log_loss", "ne", "rmse", "mae", "calibration", "pinball", "deviance"]);

export function showModel(model) {
  document.title = `${model.model.name} – ziggurat`;
  say("title", model.model.name);
  subtitle(model, Date.now() / 1000);
  const { training } = model;
  const facts = [["version", model.model.version], ["run", model.model.run], ["predicts", model.labels.map(({ name, kind }) => `${name} (${kind})`).join(", ")]];
  if (training?.finished_at) facts.push(["trained", date(training.finished_at), `${count(training.steps)} steps in ${span(training.seconds)}, best at ${count(model.model.step)}`]);
  if (training) facts.push(["rows", Object.entries(training.rows).map(([split, rows]) => `${count(rows)} ${split}`).join(", ")]);
  facts.push(["exported", date(model.exported_at), `tables in ${model.precision}, ziggurat ${model.made_by.ziggurat}`]);
  byId("facts").replaceChildren(...facts.map(([name, value, more]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, more ? el("small", {}, more) : null))));
  byId("figures").replaceChildren(...figures(model.figures));
}

/** Returns the figures that say most as a table, and the others behind a click. */
function figures(found) {
  const splits = SPLITS.filter((split) => split in found);
  const names = [...new Set(splits.flatMap((split) => Object.keys(found[split])))];
  if (!names.length) return [el("p", { class: "soft" }, "The export holds no figures: it is not of the run's best checkpoint.")];
  const drawn = (caption, some) => table(caption, ["figure", ...splits], some.map((name) => [name, ...splits.map((split) => short(found[split][name]))]));
  const main = names.filter((name) => MAIN.has(name.split("/").at(-1)));
  const others = names.filter((name) => !main.includes(name));
  const more = others.length ? [el("details", {}, el("summary", {}, `${others.length} further figures`), drawn("Further figures", others))] : [];
  return [...(main.length ? [drawn("How good the model was", main)] : []), ...more];
}

export const subtitle = (model, now) =>
  say("subtitle", `Version ${model.model.version}, exported ${span(Math.max(0, now - model.exported_at))} ago.`);
