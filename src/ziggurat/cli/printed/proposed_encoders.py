"""Prints what ``ziggurat plan --compress`` proposes: rows and bytes of each table before and after, and the config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ziggurat.cli.figures import WIDTH, print_rows

if TYPE_CHECKING:
    from ziggurat.training.experiment import Experiment


_NEARLY = 0.98
"""Below this share of the ratio that was asked for, the proposal says so."""


def propose_encoders(experiment: Experiment, ratio: float, prepared: Path | None, *, as_json: bool) -> None:
    """Proposes encoders, and prints them as a table with the lines of the config, or as JSON.

    Args:
        experiment: the experiment.
        ratio: by what factor its tables shall be smaller.
        prepared: folder of the prepared data, if it is not the default one.
        as_json: whether to print JSON.

    Raises:
        ConfigError: the ratio is not possible.
    """
    from rich.console import Console

    from ziggurat.cli.progress import console_progress
    from ziggurat.planning.quantities import format_bytes
    from ziggurat.report import numbers
    from ziggurat.training import api

    with console_progress() as progress:
        found = api.propose_compression(experiment, ratio, prepared, progress)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
        return
    console = Console(width=max(Console().width, WIDTH))
    headers = ["table", "proposal", "importance", "hot tenth", "rows", "to", "weights", "to", "map", "to"]
    rows = [
        [
            each.table,
            "as it is" if each.encoder is None else str(each.encoder["name"]),
            f"{each.importance:.3g}",
            f"{100 * each.hot_share:.0f} %",
            numbers.count(each.rows_before),
            numbers.count(each.rows),
            *map(format_bytes, (each.bytes_before, each.bytes, each.map_before, each.map_bytes)),
        ]
        for each in found.tables
    ]
    print_rows(console, headers, rows, 2)
    before, after = found.bytes_before, found.bytes
    found_ratio = before / max(1, after)
    asked = f"; {ratio:g} times were asked for" if found_ratio < _NEARLY * ratio else ""
    typer.echo(
        f"\nweights and maps: {format_bytes(before)} before, {format_bytes(after)} after, "
        f"{found_ratio:.3g} times smaller{asked}\n"
    )
    for each in found.tables:
        if each.encoder is not None:
            settings = ", ".join(f"{key}: {value}" for key, value in each.encoder.items())
            typer.echo(f"{each.table}: encoder: {{{settings}}}   # {each.why}")
    if any(each.encoder is not None and each.encoder.get("map") == "compact" for each in found.tables):
        typer.echo(
            "\nA compact map cannot be continued with `keep` on new data; `map: plain` can, at 12 bytes a value."
        )
