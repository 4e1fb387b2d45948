"""The report's section on offloaded tables: the hit rate of their rows in memory, and the cost of reading the
others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ziggurat.report import charts, numbers
from ziggurat.report.inputs import ReportInputs
from ziggurat.report.markup import Html, el, figure, section, table

LAST = 0.25
"""Share of the steps, at the end, that the figures are averaged over: the cache is warm by then."""


def rows_on_disk(inputs: ReportInputs) -> Html | None:
    """Returns the section from the first rank's ``beyond_memory`` records in metrics.jsonl; None without records."""
    records = [record for record in inputs.history if record.get("split") == "beyond_memory"]
    if not records:
        return None
    last = records[-max(1, round(LAST * len(records))) :]
    mean = lambda name: _mean(last, name)  # noqa: E731
    transferred = _mean(last, "read_bytes") + _mean(last, "written_bytes")
    hits, missed = numbers.percent(mean("hit_rate")), numbers.count(mean("missed"))
    sentence = (
        f"The tables did not fit in memory. In the last quarter of the steps, {hits} of the look-ups found their rows "
        f"in memory. Per step, {missed} distinct rows were read from disk or initialised at their first use, and "
        f"training waited {numbers.figure(1e3 * mean('waited_s'), 1)} ms for them."
    )
    rows: list[list[object]] = [
        ["look-ups", numbers.count(mean("lookups"))],
        ["missing rows", numbers.count(mean("missed"))],
        ["disk reads", numbers.count(mean("reads"))],
        ["disk writes", numbers.count(mean("writes"))],
        ["bytes read and written", numbers.size(transferred) if math.isfinite(transferred) else None],
        ["milliseconds that training waited", numbers.figure(1e3 * mean("waited_s"), 1)],
        ["milliseconds that the disk was busy", numbers.figure(1e3 * mean("worked_s"), 1)],
    ]
    drawings = [
        figure(
            "The share of look-ups whose rows were in memory. It rises as memory fills with the most used rows.",
            charts.learning_curve("Hit rate", {"train": _line(records, "hit_rate")}, None, (0.0, 1.0)),
            caption="Hit rate",
        ),
        figure(
            "Distinct rows of a step that were not in memory. Each is read, and most replace a row that is written.",
            charts.learning_curve("Missing rows per step", {"train": _line(records, "missed")}, None),
            caption="Missing rows per step",
        ),
    ]
    rank = "of the first rank, " if len(inputs.rank_bytes) > 1 else ""
    return section(
        "offload",
        "Rows on disk",
        el("p", sentence),
        el("div", *drawings, cls="figures"),
        table([f"Per step, {rank}in the last quarter", ""], rows),
    )


def _line(records: Sequence[Mapping[str, Any]], name: str) -> charts.Series:
    """Returns the steps and values of one quantity."""
    found = [(float(record["step"]), float(record[name])) for record in records if record.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _mean(records: Sequence[Mapping[str, Any]], name: str) -> float:
    values = [float(record[name]) for record in records if record.get(name) is not None]
    return sum(values) / len(values) if values else math.nan
