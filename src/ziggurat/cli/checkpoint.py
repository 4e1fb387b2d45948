"""``ziggurat checkpoint list|inspect|verify|gather|diff|prune``: what lies in a run's folder of checkpoints."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Look at a run's checkpoints: list, inspect, verify, gather, diff, prune.", no_args_is_help=True)

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run folder, its folder of checkpoints, or the URL of their store.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("list", short_help="A line for each checkpoint.")
def list_command(run: Run, as_json: AsJson = False) -> None:
    """List the checkpoints of a run: kind, size, and what each needs to be restored; no tensor is read.

    \b
    Examples:
      ziggurat checkpoint list runs/shop
      ziggurat checkpoint list runs/shop --json
    """
    from ziggurat.checkpoint.inspect.inspection import listing
    from ziggurat.checkpoint.inspect.run_folders import open_folder
    from ziggurat.cli import checkpoint_tables
    from ziggurat.cli.progress import console_progress

    folder = open_folder(run)
    with console_progress() as progress:
        found = listing(folder, progress)
    _tell(found) if as_json else checkpoint_tables.listed(found)


@app.command("inspect", short_help="All that a manifest says.")
def inspect_command(
    run: Run,
    which: Annotated[str, typer.Argument(metavar="WHICH", help="best, last, or a step.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Show all that the manifest of a checkpoint says: progress, tables, files, versions, plan; no tensor is read.

    \b
    Examples:
      ziggurat checkpoint inspect runs/shop
      ziggurat checkpoint inspect runs/shop 1200 --json
    """
    from ziggurat.checkpoint.inspect.inspection import inspect
    from ziggurat.checkpoint.inspect.run_folders import open_folder
    from ziggurat.cli import checkpoint_tables
    from ziggurat.cli.progress import console_progress

    folder = open_folder(run)
    with console_progress() as progress:
        found = inspect(folder, which, progress)
    _tell(found) if as_json else checkpoint_tables.inspected(found)


@app.command("verify", short_help="Read every file, compare checksums.")
def verify_command(
    run: Run,
    which: Annotated[
        list[str] | None, typer.Argument(metavar="WHICH", help="best, last or steps; default: all.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read every file of every checkpoint once and compare it with its checksum; status 1 if anything is broken.

    \b
    Examples:
      ziggurat checkpoint verify runs/shop
      ziggurat checkpoint verify runs/shop best last
    """
    from ziggurat.checkpoint.inspect.run_folders import open_folder
    from ziggurat.checkpoint.inspect.verification import verify
    from ziggurat.cli import checkpoint_tables
    from ziggurat.cli.progress import console_progress

    folder = open_folder(run)
    with console_progress() as progress:
        found = verify(folder, which or None, progress)
    _tell(found, whole=found.whole) if as_json else checkpoint_tables.verified(found)
    if not found.whole:
        raise typer.Exit(1)


@app.command("gather", short_help="One plain safetensors file.")
def gather_command(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, as in FILE.safetensors.")],
    which: Annotated[str, typer.Argument(metavar="WHICH", help="best, last, or a step.")] = "best",
    optimizer: Annotated[bool, typer.Option("--optimizer", help="Also the optimizers' states.")] = False,
) -> None:
    """Write a checkpoint as one safetensors file of whole tensors, dense/NAME and tables/NAME, for other tools.

    Where the run averages weights, average/dense/NAME and average/tables/NAME are those that evaluation uses.

    \b
    Examples:
      ziggurat checkpoint gather runs/shop --out shop.safetensors
      ziggurat checkpoint gather runs/shop last --optimizer \\
        --out all.safetensors
    """
    from ziggurat.checkpoint.inspect.consolidate import check_out, gather
    from ziggurat.checkpoint.inspect.run_folders import open_folder
    from ziggurat.cli.progress import console_progress
    from ziggurat.planning.quantities import format_bytes

    check_out(out)
    folder = open_folder(run)
    with console_progress() as progress:
        made = gather(folder, which, out, optimizer=optimizer, progress=progress)
    typer.echo(f"{out}: step {made.step:,}, {len(made.tensors):,} tensors, {format_bytes(made.bytes)}")


@app.command("diff", short_help="How far two checkpoints are apart.")
def diff_command(
    run: Run,
    first: Annotated[str, typer.Argument(metavar="A", help="best, last, or a step.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="B", help="best, last, or a step.", show_default=False)],
    other: Annotated[
        str | None, typer.Option("--other", metavar="RUN", help="The run of B; default: the same.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the weights of two checkpoints, tensor by tensor: what differs, and by how much.

    The status is 0 whether they differ or not.

    \b
    Examples:
      ziggurat checkpoint diff runs/shop best last
      ziggurat checkpoint diff runs/shop 600 600 --other runs/again
    """
    from ziggurat.checkpoint.inspect.differences import differences
    from ziggurat.checkpoint.inspect.run_folders import open_folder
    from ziggurat.cli import checkpoint_tables
    from ziggurat.cli.progress import console_progress

    folders = (open_folder(run), open_folder(other or run))
    steps = tuple(folder.find(which) for folder, which in zip(folders, (first, second), strict=True))
    with console_progress() as progress:
        found = differences(folders[0].load(steps[0]), folders[1].load(steps[1]), progress)
    names = [f"{folder.where} step {step:,}" for folder, step in zip(folders, steps, strict=True)]
    if as_json:
        identical = all(each.state == "identical" for each in found)
        typer.echo(
            json.dumps(_plain({"a": names[0], "b": names[1], "identical": identical, "tensors": found}), indent=1)
        )
        return
    checkpoint_tables.compared(names, found)


@app.command("prune", short_help="Delete old checkpoints and leftovers.")
def prune_command(
    run: Run,
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest stay.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete old checkpoints, and what a writer that died left behind; the best one and what others need stay.

    Refused while the run is being trained, which prunes by itself.

    \b
    Examples:
      ziggurat checkpoint prune runs/shop --keep 2 --dry-run
      ziggurat checkpoint prune runs/shop --keep 2
    """
    from ziggurat.checkpoint.inspect.pruning import prune
    from ziggurat.cli import checkpoint_tables
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.errors import RunFolderError

    if "://" in run:
        raise RunFolderError(
            f"{run}: is a store, and only its run's folder says whose checkpoints these are",
            "name the run's folder; its config names the store",
        )
    with console_progress() as progress:
        found = prune(Path(run), keep, dry_run=dry_run, progress=progress)
    _tell(found, dry_run=dry_run) if as_json else checkpoint_tables.pruned(found, dry_run)


def _tell(found: Any, **more: Any) -> None:
    typer.echo(json.dumps({**more, **_plain(found)}, indent=1))


def _plain(value: Any) -> Any:
    """As JSON has it; numbers that are none, as text."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump())
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
