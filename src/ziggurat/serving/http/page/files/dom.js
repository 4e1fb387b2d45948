// Elements by nested calls: text becomes text nodes, so nothing that a server or a person says becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "line", "polyline", "rect", "text", "title", "circle"]);

export function el(tag, attributes = {}, ...children) {
  const made = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Sets the text of an element if it is another: screen readers then say what changed, and nothing twice. */
export function say(id, text) {
  const place = byId(id);
  if (place.textContent !== text) place.textContent = text;
}

export function table(caption, heads, rows) {
  const cell = (tag, value, at) =>
    el(tag, { class: at && typeof rows[0]?.[at] !== "object" ? "number" : null, scope: tag === "th" ? "col" : null }, value);
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
    el("table", {},
      el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head, at) => cell("th", head, at)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, at) => cell("td", value ?? "–", at)))))));
}
