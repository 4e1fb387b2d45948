// Live figures: differences of what the server has counted, between two looks at it.

import { bars, LineChart } from "./charts.js";
import { byId, el, say, table } from "./dom.js";
import { bytes, clock, count, percent, short } from "./numbers.js";

/** Returns the endpoints that predict, added up: requests, and their latencies in buckets. */
function added(status) {
  const found = { requests: 0, refused: 0, buckets: new Map() };
  for (const { answers, seconds, stages } of Object.values(status.endpoints)) {
    if (!("predict" in stages)) continue;
    found.requests += seconds.count;
    for (const [limit, value] of seconds.buckets) found.buckets.set(limit, (found.buckets.get(limit) ?? 0) + value);
    for (const [code, value] of Object.entries(answers)) if (Number(code) >= 400) found.refused += value;
  }
  return found;
}

/** Returns a quantile of the latencies between two looks, in milliseconds; null without requests. */
export function quantile(before, after, share) {
  const limits = [...after.keys()].sort((a, b) => (a ?? Infinity) - (b ?? Infinity));
  const counts = limits.map((limit) => after.get(limit) - (before.get(limit) ?? 0));
  const total = counts.at(-1) ?? 0;
  if (total <= 0) return null;
  let low = 0, below = 0;
  for (let at = 0; at < limits.length; at++) {
    if (counts[at] >= share * total) {
      const high = limits[at] ?? low;
      return 1000 * (low + (high - low) * (share * total - below) / Math.max(1e-9, counts[at] - below));
    }
    [low, below] = [limits[at] ?? low, counts[at]];
  }
  return 1000 * low;
}

export class Live {
  constructor() {
    const whole = { format: (value) => (value === null ? "–" : short(value)) };
    this.latency = new LineChart("Latency", "ms", ["half below", "99 % below"], whole);
    this.throughput = new LineChart("Throughput", "a second", ["rows", "requests"], whole);
    this.queue = new LineChart("Rows that wait", "rows", ["rows"], { ...whole, least: 2, empty: "none" });
    this.refused = new LineChart("Requests refused", "a second", ["refused"], { ...whole, least: 2 });
    this.hits = null;
    this.psi = new Map();
    this.bins = new Map();
    this.before = null;
    this.versions = [];
    byId("charts").replaceChildren(...this.#charts().map((chart) => chart.element));
  }

  #charts() {
    return [this.latency, this.throughput, this.queue, this.refused, ...(this.hits ? [this.hits] : []), ...this.psi.values()];
  }

  /** Takes a status; the counts of a server that was started again begin at 0. */
  take(status) {
    const now = added(status), { before } = this;
    this.before = { status, now };
    this.#drift(status.drift, status.at);
    this.#stored(status);
    this.queue.add(status.at, [status.queue_rows]);
    if (!before || status.rows < before.status.rows || now.requests < before.now.requests) return;
    const seconds = Math.max(1e-3, status.at - before.status.at);
    this.latency.add(status.at, [0.5, 0.99].map((share) => quantile(before.now.buckets, now.buckets, share)));
    this.throughput.add(status.at, [(status.rows - before.status.rows) / seconds, (now.requests - before.now.requests) / seconds]);
    this.refused.add(status.at, [Math.max(0, now.refused - before.now.refused) / seconds]);
  }

  /** Notes which version is served; returns whether it is another than before. */
  version(model, at) {
    const last = this.versions.at(-1);
    if (last?.version === model.version) return false;
    this.versions.push({ version: model.version, at });
    byId("versions").replaceChildren(...this.versions.slice(-20).map((each, number) =>
      el("li", {}, el("code", {}, each.version), number ? ` arrived at ${clock(each.at)}` : ` was served when this page was opened, at ${clock(each.at)}`)));
    if (!last) return false;
    for (const chart of this.#charts()) chart.mark(at, model.version.slice(0, model.version.indexOf("-") + 5));
    say("arrived", `Version ${model.version} arrived at ${clock(at)}; it replaces ${last.version}.`);
    return true;
  }

  #drift(drift, at) {
    const labels = Object.entries(drift.labels);
    say("drift-hint", labels.length
      ? `Scores of the last ${drift.window_s / 60} minutes beside those of the validation. A PSI below ${drift.limits[0]} is no drift to speak of; from ${drift.limits[1]} on, find out why. It is shown from ${count(drift.least_scores)} scores on.`
      : "The export has no distribution of the validation's scores; export the run again to see the drift.");
    for (const [label, each] of labels) {
      if (!this.psi.has(label)) {
        this.psi.set(label, new LineChart(`PSI of ${label}`, "", [label], { limits: drift.limits }));
        this.bins.set(label, el("div"));
        byId("drift").append(this.psi.get(label).element, this.bins.get(label));
      }
      const chart = this.psi.get(label);
      chart.empty = `${count(each.scores)} of ${count(drift.least_scores)} scores`;
      chart.add(at, [each.psi]);
      const counted = JSON.stringify(each.counts), place = this.bins.get(label);
      if (each.scores && place.dataset.counted !== counted) {
        place.replaceChildren(bars(`Scores of ${label}`, each.edges, each.expected, each.counts));
        place.dataset.counted = counted;
      }
    }
    const rows = Object.entries(drift.unknown).map(([feature, each]) => [feature, count(each.ids), percent(each.share), percent(each.expected)]);
    this.#replace("unknown", rows.length ? table("Ids that training did not know, by feature", ["feature", "ids", "unknown", "in the validation"], rows) : el("p", { class: "soft" }, "No feature has ids that training may not know."));
  }

  #stored(status) {
    const { tables } = status;
    const memory = tables.reduce((sum, each) => sum + each.memory_bytes, 0);
    const disk = tables.filter(({ place }) => place === "disk");
    const onDisk = tables.reduce((sum, each) => sum + each.disk_bytes, 0);
    say("stored-hint", `${tables.length} tables, ${bytes(onDisk)} on disk, ${bytes(memory)} of them ${disk.length ? "in memory or its caches" : "in memory, which all workers share"}.`);
    const row = (each) => [each.name, count(each.rows), count(each.dim), each.place === "disk" ? "disk, with a cache" : "memory", bytes(each.memory_bytes), bytes(each.disk_bytes), percent(each.hit_rate)];
    this.#replace("stored", table("Where the tables are", ["table", "rows", "numbers a row", "where", "in memory", "on disk", "hit rate"], tables.map(row)));
    if (!disk.length) return;
    if (!this.hits) {
      this.hits = new LineChart("Hit rate of the caches", "", ["hit rate"], { format: percent });
      byId("charts").append(this.hits.element);
    }
    const [hits, misses] = ["hits", "misses"].map((name) => disk.reduce((sum, each) => sum + (each[name] ?? 0), 0));
    const last = this.counted ?? { hits: 0, misses: 0 };
    const asked = hits + misses - last.hits - last.misses;
    this.hits.add(status.at, [asked > 0 && hits >= last.hits ? (hits - last.hits) / asked : null]);
    this.counted = { hits, misses };
  }

  /** Replaces a table, unless someone reads in it or its content is the same. */
  #replace(id, made) {
    const place = byId(id);
    if (place.textContent === made.textContent || place.contains(document.activeElement)) return;
    place.replaceChildren(made);
  }
}
