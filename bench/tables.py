"""Figures as a Markdown table, the same on the terminal and in the docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.benchmark import number


def figures_table(figures: Sequence[dict[str, Any]]) -> str:
    """The figures of a described result: name, median, middle half, target, verdict, note."""
    return markdown([("figure", "median", "middle half", "target", "", "note"), *map(_row, figures)])


def _row(figure: dict[str, Any]) -> tuple[str, ...]:
    unit = {"x": "×"}.get(figure["unit"], f" {figure['unit']}")
    verdict = {True: "holds", False: "falls short", None: ""}[figure["holds"]]
    spread = f"{number(figure['low'])} – {number(figure['high'])}"
    return figure["name"], number(figure["median"]) + unit, spread, figure["target"] or "", verdict, figure["note"]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A padded Markdown table; the first row is the head. Columns that are empty throughout are left out."""
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:]) or len(rows) == 1]
    widths = [max(len(row[column]) for row in rows) for column in kept]
    line = lambda cells: "| " + " | ".join(cells) + " |"  # noqa: E731
    padded = [line([row[column].ljust(width) for column, width in zip(kept, widths, strict=True)]) for row in rows]
    return "\n".join([padded[0], line(["-" * width for width in widths]), *padded[1:]])
