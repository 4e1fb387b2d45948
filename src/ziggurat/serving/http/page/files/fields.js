// A field for a column: what stands in it, and what is sent for it. The server judges; the page only turns text into JSON.

import { el } from "./dom.js";
import { count, plain } from "./numbers.js";

export function shown(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.some((each) => /[,"\[]/.test(String(each))) ? JSON.stringify(value) : value.join(", ");
  return String(value);
}

/** Returns what is sent for a text: null if it is empty, a number where it is one that JSON keeps, or the text. */
export function sent(column, text) {
  const trimmed = text.trim();
  if (trimmed === "") return column.is_list && column.length === null ? [] : null;
  if (!column.is_list) return one(column, trimmed);
  if (trimmed.startsWith("[")) {
    try {
      return JSON.parse(trimmed);
    } catch {
      return trimmed;
    }
  }
  return trimmed.split(",").map((each) => one(column, each.trim()));
}

function one(column, text) {
  if (column.type === "integer" && /^-?\d+$/.test(text) && Number.isSafeInteger(Number(text))) return Number(text);
  if (column.type === "float" && text !== "" && Number.isFinite(Number(text))) return Number(text);
  if (column.type === "time" && /^-?\d+(\.\d+)?$/.test(text)) return Number(text);
  return text;
}

/** Says what a column takes, in words. */
export function hint(column) {
  const parts = [column.words];
  if (column.range) parts.push(`${plain(column.range.least)} to ${plain(column.range.greatest)} in training, half of them up to ${plain(column.range.median)}`);
  if (column.known) parts.push(`${count(column.known.count)} known value${column.known.count === 1 ? "" : "s"}`);
  if (column.is_list && column.length === null) parts.push("commas between them");
  return `${parts.join("; ")}. Empty: missing.`;
}

/** Returns the values that are proposed for a column, once for all its fields. */
export function choices(column) {
  if (!column.known || column.is_list) return null;
  return el("datalist", { id: `known-${column.name}` }, column.known.values.map((value) => el("option", { value: String(value) })));
}

export function input(column, value, attributes) {
  const made = el("input", {
    type: "text", autocomplete: "off", spellcheck: "false",
    inputmode: !column.is_list && column.type === "float" ? "decimal" : null,
    list: column.known && !column.is_list ? `known-${column.name}` : null,
    ...attributes,
  });
  made.value = shown(value);
  return made;
}

/** Marks a field as wrong with a text that is beside it, or as right without one. */
export function mark(field, place, text) {
  if (text) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
  if (place.textContent !== text) place.textContent = text;
}
