"""Prints metrics and plans as tables, and reads bytes as people write them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ziggurat.serving.tables.serving_plan import ServingPlan

WIDTH = 110
"""The least width of tables of a plan in characters, so that names are not truncated."""


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


def print_rows(console: Console, headers: list[str], rows: list[list[str]], texts: int) -> None:
    """Prints a table, whose first ``texts`` columns are aligned left."""
    table = Table(*headers, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[texts:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def print_tables(plan: ServingPlan, *, error_output: bool = False) -> None:
    """Prints where the tables of an export are while it is served."""
    from ziggurat.report.plan.serving import summary, tables

    console = Console(stderr=error_output)
    console = Console(stderr=error_output, width=max(console.width, WIDTH))
    console.print(f"{plan.manifest.source.name}: {summary(plan)}\n", highlight=False, soft_wrap=True, markup=False)
    print_rows(console, *tables(plan))


def bytes_of(option: str, value: str) -> int:
    """Returns the bytes that an option says, as in ``2GB``.

    Raises:
        ConfigError: it says something else.
    """
    from ziggurat.core.errors import ConfigError
    from ziggurat.planning.quantities import parse_bytes

    try:
        found = parse_bytes(value)
    except ValueError as error:
        raise ConfigError(f"{option} {value}: {error}", "give bytes, as in 2GB or 512MiB") from None
    return found
