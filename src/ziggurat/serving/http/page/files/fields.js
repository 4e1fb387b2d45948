// A field for a column: what stands in it, and what is sent for it. The server judges; the page only turns text into JSON.

import { el } from "./dom.js";
import { count, plain } from "./numbers.js";

export function shown(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.some((each) => /[,"\[]/.test(String(each))) ? JSON.stringify(value) : value.join(", ");
  return String(value);
}

/** Returns what is sent for a text: null if it is empty, a number where it is one that JavaScript keeps, or the text. */
export function sent(column, text) {
  const trimmed = text.trim();
  if (trimmed === "") return column.is_list && column.length === null ? [] : null;
  if (!column.is_list) return one(column, trimmed);
  const parts = trimmed.startsWith("[") ? elements(trimmed) : trimmed.split(",").map((each) => each.trim());
  if (parts === null) return trimmed;
  const values = parts.map((each) => each === null ? null : one(column, each));
  return values.some((each) => typeof each === "string") ? parts : values;
}

/** Makes the values of a column of one type in all rows, as the server reads it: text if one of them is. */
export function alike(columns, rows) {
  const texts = (value) => Array.isArray(value) ? value.some(texts) : typeof value === "string";
  const written = (value) => Array.isArray(value) ? value.map(written) : typeof value === "number" ? String(value) : value;
  for (const { name } of columns) {
    if (rows.some((row) => texts(row[name]))) for (const row of rows) row[name] = written(row[name]);
  }
  return rows;
}

/** Returns the texts of a list in brackets, or null if it is none. JSON.parse would round large whole numbers in it. */
function elements(text) {
  const found = [], part = /\s*(?:("(?:[^"\\]|\\.)*")|([^\s",[\]]+))\s*(,|\]$)/y;
  if (/^\[\s*\]$/.test(text)) return found;
  part.lastIndex = 1;
  for (let match; (match = part.exec(text)) !== null;) {
    try {
      found.push(match[1] === undefined ? (match[2] === "null" ? null : match[2]) : JSON.parse(match[1]));
    } catch {
      return null;
    }
    if (match[3] === "]") return found;
  }
  return null;
}

function one(column, text) {
  const isKept = (value) => !Number.isInteger(value) || Number.isSafeInteger(value);
  if (column.type === "integer" && /^-?\d+$/.test(text) && isKept(Number(text))) return Number(text);
  if (column.type === "float" && text !== "" && Number.isFinite(Number(text))) return Number(text);
  if (column.type === "time" && /^-?\d+(\.\d+)?$/.test(text) && isKept(Number(text))) return Number(text);
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
