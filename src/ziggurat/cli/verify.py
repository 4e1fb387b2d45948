"""``ziggurat verify``: compares all files of a run, a dataset, checkpoints, a sweep, an ensemble or an export."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ziggurat.verification.findings import Verified


def command(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="The folder of a run, a dataset, checkpoints, a sweep, an ensemble, an export or a checkpoint.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Read every file below a folder and compare it with its checksum. Exit status 1 if anything is damaged.

    \b
    Examples:
      ziggurat verify runs/shop
      ziggurat verify prepared/shop-1a2b3c4d
      ziggurat verify runs/shop/checkpoints/step-00001200
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.verification.verify import verify

    with console_progress() as progress:
        found = verify(path, progress)
    if as_json:
        typer.echo(json.dumps({"whole": found.whole, **dataclasses.asdict(found)}, indent=1))
    else:
        _print(found)
    if not found.whole:
        raise typer.Exit(1)


def _print(found: Verified) -> None:
    from ziggurat.cli.printed.checkpoint_tables import print_lines, print_table

    print_lines([f"{found.path}: {found.kind}", ""])
    print_table(["", "", ""], [[each.name, each.state, each.detail] for each in found.checked])
    lines: list[str] = []
    for each in found.problems:
        lines += [f"damaged: {each.problem}", *([f"  do: {each.hint}"] if each.hint else [])]
    lines += [f"note: {note}" for note in found.notes]
    unchecked = sum(each.state == "no checksum" for each in found.checked)
    if not found.whole:
        summary = f"{len(found.problems):,} problems"
    elif unchecked:
        summary = f"nothing is damaged as far as can be seen; {unchecked:,} of {len(found.checked):,} have no checksum"
    else:
        summary = "everything is as it was written"
    print_lines([*([""] if lines else []), *lines, "", summary])
