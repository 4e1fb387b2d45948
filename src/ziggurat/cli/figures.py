"""A table of figures, one column a split."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def figures_table(title: str, figures: dict[str, dict[str, float]]) -> None:
    """Print ``split -> metric -> value`` with the metrics as rows."""
    table = Table("", *figures, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in dict.fromkeys(name for split in figures.values() for name in split):
        table.add_row(name, *(_number(split.get(name)) for split in figures.values()))
    Console().print(table)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) and abs(value) > 1 else f"{value:.5f}"
