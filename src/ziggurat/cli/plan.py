"""``ziggurat plan``: who would hold which shard of which table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ziggurat.cli.options import Config, DataFolder, Overrides, PreparedTo

if TYPE_CHECKING:
    from ziggurat.planning import Planned

WIDTH = 110
"""Columns of text that the tables take at least, cut by none: names are what one looks for."""


def command(
    config: Config,
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: PreparedTo = None,
    hosts: Annotated[int | None, typer.Option(min=1, help="Machines; default: planning.topology, or one.")] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices on each; default: planning.topology, or this machine's.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Of each device, as in 8GB; default: planning.topology, or this machine's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The plan's file, drawn in an .html beside; default: plan.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print plan and prediction as JSON, and no table.")] = False,
) -> None:
    """Plan which shard of which table lives on which device, and predict bytes and seconds; prepare if needed.

    \b
    Examples:
      ziggurat plan exp.yaml --hosts 2 --devices 8
      ziggurat plan exp.yaml --devices 8 --set planning.topology.device=h100
      ziggurat plan exp.yaml --devices 4 --memory 8GB --json
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.errors import ConfigError
    from ziggurat.core.files import check_file_target, write_json
    from ziggurat.report.plan_page import write_plan
    from ziggurat.training import api

    target = Path("plan.json") if out is None else out
    writes = out is not None or not as_json
    if writes:
        check_file_target(target)
    page = target.with_suffix(".html")
    if page == target:
        raise ConfigError(
            f"--out {target}: is the drawing's name", f"name the plan: --out {target.with_suffix('.json')}"
        )
    if writes:
        check_file_target(page)
    experiment = api.load_experiment(config, overrides or [], data)
    with console_progress() as progress:
        planned = api.plan(
            experiment, hosts=hosts, devices=devices, memory=memory, prepared=prepared, progress=progress
        )
    if writes:
        write_json(target, planned.plan.to_json())
        write_plan(page, experiment.name, planned)
    if as_json:
        typer.echo(json.dumps(planned.to_json(), indent=1))
        return
    _print(experiment.name, planned)
    typer.echo(f"{target} {page}")


def _print(name: str, planned: Planned) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ziggurat.report import plan_rows

    console = Console(width=max(Console().width, WIDTH))
    console.print(f"{name}: {plan_rows.summary(planned)}", highlight=False, soft_wrap=True, markup=False)
    for headers, rows, texts in (plan_rows.devices(planned), plan_rows.tables(planned)):
        table = Table(*headers, box=None, pad_edge=False, header_style="bold")
        for column in table.columns[texts:]:
            column.justify = "right"
        for row in rows:
            table.add_row(*map(Text, row))
        console.print()
        console.print(table)
    console.print()
    for line in (plan_rows.verdict(planned), *planned.notes):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
