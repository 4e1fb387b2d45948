"""The report's section on rows that memory had no room for: how often they were there, and what bringing them took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ziggurat.report import charts, numbers
from ziggurat.report.inputs import ReportInputs
from ziggurat.report.markup import Html, el, figure, section, table

LAST = 0.25
"""Of the steps: those that the figures are of, when memory is full of what is used."""


def rows_on_disk(inputs: ReportInputs) -> Html | None:
    """Of the first rank: what ``beyond_memory`` records in metrics.jsonl say."""
    records = [record for record in inputs.history if record.get("split") == "beyond_memory"]
    if not records:
        return None
    last = records[-max(1, round(LAST * len(records))) :]
    of = lambda name: _mean(last, name)  # noqa: E731
    moved = _mean(last, "read_bytes") + _mean(last, "written_bytes")
    there, missed = numbers.percent(of("hit_rate")), numbers.count(of("missed"))
    sentence = (
        f"Memory had no room for all rows of the tables. In the last quarter of the steps {there} of the look-ups "
        f"found their rows there; {missed} rows a step came from disk, or were made, and training waited "
        f"{numbers.figure(1e3 * of('waited_s'), 1)} ms for them."
    )
    rows: list[list[object]] = [
        ["look-ups", numbers.count(of("lookups"))],
        ["rows that were missing", numbers.count(of("missed"))],
        ["reads", numbers.count(of("reads"))],
        ["writes", numbers.count(of("writes"))],
        ["bytes moved", numbers.size(moved) if math.isfinite(moved) else None],
        ["milliseconds that training waited", numbers.figure(1e3 * of("waited_s"), 1)],
        ["milliseconds that the disk was at work for rows", numbers.figure(1e3 * of("worked_s"), 1)],
    ]
    drawings = [
        figure(
            "The share of look-ups whose rows were in memory. It rises as memory fills with what is used.",
            charts.learning_curve("Hit rate", {"train": _line(records, "hit_rate")}, None, (0.0, 1.0)),
            caption="Hit rate",
        ),
        figure(
            "Distinct rows of a step that were not in memory. Each is read, and most push out one that is written.",
            charts.learning_curve("Missing rows a step", {"train": _line(records, "missed")}, None),
            caption="Missing rows a step",
        ),
    ]
    whose = "of the first rank, " if len(inputs.rank_bytes) > 1 else ""
    return section(
        "beyond",
        "Rows on disk",
        el("p", sentence),
        el("div", *drawings, cls="figures"),
        table([f"A step, {whose}in the last quarter", ""], rows),
    )


def _line(records: Sequence[Mapping[str, Any]], name: str) -> charts.Series:
    """Steps and values."""
    found = [(float(record["step"]), float(record[name])) for record in records if record.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _mean(records: Sequence[Mapping[str, Any]], name: str) -> float:
    values = [float(record[name]) for record in records if record.get(name) is not None]
    return sum(values) / len(values) if values else math.nan
