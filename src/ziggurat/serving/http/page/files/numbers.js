// Numbers as people read them.

export const count = (value) => Math.round(value).toLocaleString("en-GB");

export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return count(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  return size && size < 0.0005 ? value.toExponential(1) : value.toFixed(3);
}

/** A number as one would type it, to four digits. */
export const plain = (value) => String(Number(value.toPrecision(4)));

export const score = (value) => (Math.abs(value) >= 100 ? value.toFixed(1) : value.toFixed(4));

export const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`);

export function bytes(value) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${at ? short(value) : value} ${units[at]}`;
}

export function span(seconds) {
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]]) {
    const whole = Math.floor(seconds / size);
    if (whole >= 1) return `${whole} ${unit}${whole > 1 ? "s" : ""}`;
  }
  return "less than a second";
}

export const date = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ") + " UTC";
export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");
