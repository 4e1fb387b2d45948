"""Formats figures as Markdown tables, for the terminal and the docs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.benchmark import number


def figures_table(figures: Sequence[dict[str, Any]]) -> str:
    """Returns a table with a figure per line: name, median (or judged mean), middle half, target, verdict, note."""
    return markdown([("figure", "median", "middle half", "target", "", "note"), *map(_row, figures)])


def board_table(figures: Sequence[dict[str, Any]]) -> str:
    """Returns a table of figures named ``model.figure``, with one model per line.

    A line has means ± standard deviations over seeds, sizes, published values, targets and the verdict.
    """
    models: dict[str, dict[str, dict[str, Any]]] = {}
    for figure in figures:
        model, _, name = figure["name"].partition(".")
        models.setdefault(model, {})[name] = figure
    columns = list(dict.fromkeys(name for row in models.values() for name in row))
    head = ("model", *columns, "published", "target", "")
    return markdown([head, *(_board_row(model, columns, row) for model, row in models.items())])


def _board_row(model: str, columns: Sequence[str], row: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    cells = [_cell(row[name]) if name in row else "" for name in columns]
    published = ", ".join(f"{name} {figure['note'].split()[-1]}" for name, figure in row.items() if figure["note"])
    targets = ", ".join(f"{name} {figure['target']}" for name, figure in row.items() if figure["target"])
    verdicts = [figure["holds"] for figure in row.values() if figure["holds"] is not None]
    verdict = "" if not verdicts else "holds" if all(verdicts) else "falls short"
    return model, *cells, published, targets, verdict


def _cell(figure: dict[str, Any]) -> str:
    if "mean" not in figure:
        return number(figure["median"])
    samples = figure["samples"]
    spread = f" ± {statistics.stdev(samples):.4f}" if len(samples) > 1 else ""
    return f"{figure['mean']:.5f}{spread}"


def stored_table(stored: dict[str, Any]) -> str:
    """Returns the table of a stored result in the layout of its benchmark."""
    if stored.get("layout") == "board":
        return board_table(stored["figures"])
    return figures_table([figure for figure in stored["figures"] if "@" not in figure["name"]])


def _row(figure: dict[str, Any]) -> tuple[str, ...]:
    unit = {"x": "×"}.get(figure["unit"], f" {figure['unit']}")
    verdict = {True: "holds", False: "falls short", None: ""}[figure["holds"]]
    spread = f"{number(figure['low'])} – {number(figure['high'])}"
    value = number(figure.get("mean", figure["median"])) + unit + (" (mean)" if "mean" in figure else "")
    return figure["name"], value, spread, figure["target"] or "", verdict, figure["note"]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a padded Markdown table whose header is the first row; columns without any value are left out."""
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:]) or len(rows) == 1]
    widths = [max(len(row[column]) for row in rows) for column in kept]
    line = lambda cells: "| " + " | ".join(cells) + " |"  # noqa: E731
    padded = [line([row[column].ljust(width) for column, width in zip(kept, widths, strict=True)]) for row in rows]
    return "\n".join([padded[0], line(["-" * width for width in widths]), *padded[1:]])
