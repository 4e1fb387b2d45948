"""``ziggurat checkpoint list|inspect|verify|gather|diff|prune``: works with a run's checkpoints."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Work with a run's checkpoints: list, inspect, verify, gather, diff, prune.", no_args_is_help=True
)

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run folder, its folder of checkpoints, or the URL of their store.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("list", short_help="List checkpoints.")
def list_command(run: Run, as_json: AsJson = False) -> None:
    """List the checkpoints of a run: kind, size, and which others each needs for a restore. No tensor is read.

    \b
    Examples:
      ziggurat checkpoint list runs/shop
      ziggurat checkpoint list runs/shop --json
    """
    from ziggurat.checkpoint.inspect.inspection import listing
    from ziggurat.checkpoint.inspect.run_folders import open_folder
    from ziggurat.cli.printed import checkpoint_tables
    from ziggurat.cli.progress import console_progress

    folder = open_folder(run)
    with console_progress() as progress:
        found = listing(folder, progress)
    _print_json(found) if as_json else checkpoint_tables.print_listing(found)


@app.command("inspect", short_help="Show a checkpoint's manifest.")
def inspect_command(
    run: Run,
    which: Annotated[str, typer.Argument(metavar="WHICH", help="best, last, or a step.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Show the manifest of a checkpoint: progress, tables, files, versions, plan. No tensor is read.

    \b
    Examples:
      ziggurat checkpoint inspect runs/shop
      ziggurat checkpoint inspect runs/shop 1200 --json
    """
    from ziggurat.checkpoint.inspect.inspection import inspect
    from ziggurat.checkpoint.inspect.run_folders import open_folder
    from ziggurat.cli.printed import checkpoint_tables
    from ziggurat.cli.progress import console_progress

    folder = open_folder(run)
    with console_progress() as progress:
        found = inspect(folder, which, progress)
    _print_json(found) if as_json else checkpoint_tables.print_inspection(found)


@app.command("verify", short_help="Verify checksums of all files.")
def verify_command(
    run: Run,
    which: Annotated[
        list[str] | None, typer.Argument(metavar="WHICH", help="best, last or steps; default: all.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read every file of the checkpoints and compare it with its checksum. Exit status 1 if anything is damaged.

    \b
    Examples:
      ziggurat checkpoint verify runs/shop
      ziggurat checkpoint verify runs/shop best last
    """
    from ziggurat.checkpoint.inspect.run_folders import open_folder
    from ziggurat.checkpoint.inspect.verification import verify
    from ziggurat.cli.printed import checkpoint_tables
    from ziggurat.cli.progress import console_progress

    folder = open_folder(run)
    with console_progress() as progress:
        found = verify(folder, which or None, progress)
    _print_json(found, whole=found.whole) if as_json else checkpoint_tables.print_verification(found)
    if not found.whole:
        raise typer.Exit(1)


@app.command("gather", short_help="Export as one safetensors file.")
def gather_command(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, for example FILE.safetensors.")],
    which: Annotated[str, typer.Argument(metavar="WHICH", help="best, last, or a step.")] = "best",
    optimizer: Annotated[bool, typer.Option("--optimizer", help="Include the optimizer states.")] = False,
) -> None:
    """Export a checkpoint for other tools, as one safetensors file of whole tensors, dense/NAME and tables/NAME.

    If the run averages weights, average/dense/NAME and average/tables/NAME are the weights that evaluation uses.

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


@app.command("diff", short_help="Compare two checkpoints.")
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

    The exit status is 0 whether or not they differ.

    \b
    Examples:
      ziggurat checkpoint diff runs/shop best last
      ziggurat checkpoint diff runs/shop 600 600 --other runs/again
    """
    from ziggurat.checkpoint.inspect.differences import differences
    from ziggurat.checkpoint.inspect.run_folders import open_folder
    from ziggurat.cli.printed import checkpoint_tables
    from ziggurat.cli.progress import console_progress

    folders = (open_folder(run), open_folder(other or run))
    steps = tuple(folder.find(which) for folder, which in zip(folders, (first, second), strict=True))
    with console_progress() as progress:
        found = differences(folders[0].load(steps[0]), folders[1].load(steps[1]), progress)
    names = [f"{folder.where} step {step:,}" for folder, step in zip(folders, steps, strict=True)]
    if as_json:
        identical = all(each.state == "identical" for each in found)
        typer.echo(
            json.dumps(_to_json({"a": names[0], "b": names[1], "identical": identical, "tensors": found}), indent=1)
        )
        return
    checkpoint_tables.print_differences(names, found)


@app.command("prune", short_help="Delete old checkpoints and leftovers.")
def prune_command(
    run: Run,
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest checkpoints to keep.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, without deleting it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete old checkpoints and the leftovers of interrupted saves; keep the best and those that others build on.

    Refused while the run is being trained, as training prunes by itself.

    \b
    Examples:
      ziggurat checkpoint prune runs/shop --keep 2 --dry-run
      ziggurat checkpoint prune runs/shop --keep 2
    """
    from ziggurat.checkpoint.inspect.pruning import prune
    from ziggurat.cli.printed import checkpoint_tables
    from ziggurat.cli.progress import console_progress

    with console_progress() as progress:
        found = prune(run, keep, dry_run=dry_run, progress=progress)
    _print_json(found, dry_run=dry_run) if as_json else checkpoint_tables.print_pruned(found, dry_run)


def _print_json(found: Any, **more: Any) -> None:
    typer.echo(json.dumps({**more, **_to_json(found)}, indent=1))


def _to_json(value: Any) -> Any:
    """Converts to JSON values; numbers that are not finite become text."""
    if dataclasses.is_dataclass(value):
        return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return _to_json(value.model_dump())
    if isinstance(value, dict):
        return {str(key): _to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
