"""Prints metrics as a table with one column per split."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table


def figures_table(title: str, figures: dict[str, dict[str, float]]) -> None:
    """Prints ``split -> metric -> value`` with the metrics as rows."""
    console = Console()
    console.print(title, style="italic", highlight=False, soft_wrap=True, markup=False)
    if not figures:
        console.print("no rows to evaluate: there is neither a validation nor a test split", markup=False)
        return
    table = Table("", *figures, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in dict.fromkeys(name for split in figures.values() for name in split):
        table.add_row(name, *(_number(split.get(name)) for split in figures.values()))
    console.print(table)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value == int(value) and abs(value) > 1 else f"{value:.5f}"
