"""``ziggurat doctor``: checks whether this machine has what ziggurat needs, and names the commands that fix
problems."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fail": "[red]fail[/]"}


def command(
    folder: Annotated[Path, typer.Option(help="Where runs will be written.", exists=True, file_okay=False)] = Path(),
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Measure the cost of fused look-ups on this machine, for the planner autoshard."
        ),
    ] = False,
    sets: Annotated[
        int | None, typer.Option(min=20, help="Number of table sets that --measure runs; default: 2,000.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the results of --measure; default: this user's cache."),
    ] = None,
    tiers: Annotated[
        bool,
        typer.Option("--tiers", help="Measure how fast memory and the disk of --folder read and write rows of tables."),
    ] = False,
    architecture: Annotated[
        Path | None,
        typer.Option(
            "--architecture",
            metavar="CONFIG",
            help="Measure the parts that `search architecture` may choose for this config, for limits.milliseconds.",
        ),
    ] = None,
    space: Annotated[
        Path | None, typer.Option("--space", help="With --architecture: the YAML file with the space.")
    ] = None,
) -> None:
    """Check Python, the engine, libraries, accelerator and machine; name the command that fixes each problem.

    \b
    Examples:
      ziggurat doctor --folder /data/runs
      ziggurat doctor --measure
      ziggurat doctor --tiers --folder /data/runs
      ziggurat doctor --architecture exp.yaml
    """
    from ziggurat.core.errors import ConfigError

    if space is not None and architecture is None:
        raise ConfigError(f"--space {space}: has no effect without --architecture", "add --architecture exp.yaml")
    if architecture is not None:
        if measure or tiers:
            raise ConfigError("--architecture cannot be combined with --measure and --tiers", "leave the others out")
        _measure_architecture(architecture, space)
        return

    if measure and tiers:
        raise ConfigError("--measure and --tiers cannot be combined", "leave one of them out")
    if measure:
        _measure_lookups(sets, out)
        return
    for option, value in (("--sets", sets), ("--out", out)):
        if value is not None:
            raise ConfigError(
                f"{option} {value}: has no effect without --measure", f"add --measure, or leave {option} out"
            )
    if tiers:
        _measure_tiers(folder)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ziggurat.cli.doctor.checks import all_checks

    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    checks = list(all_checks(folder))
    for check in checks:
        table.add_row(_MARKS[check.state], check.name, escape(check.found))
    console.print(table)
    for check in checks:
        if check.hint:
            # Not wrapped, so that a command can be copied.
            console.print(
                f"\n[bold]{escape(check.name)}[/]: {escape(check.found)}\n  hint: {escape(check.hint)}", soft_wrap=True
            )
    failed = sum(check.state == "fail" for check in checks)
    console.print(f"\n{failed} to fix" if failed else "\neverything that ziggurat needs is installed")
    if failed:
        raise typer.Exit(1)


def _measure_lookups(sets: int | None, out: Path | None) -> None:
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.engine import check_engine
    from ziggurat.training.placement.cost_cache import cost_cache_folder
    from ziggurat.training.placement.kernel_benchmark import SETS
    from ziggurat.training.placement.kernel_benchmark import measure as measure_kernels
    from ziggurat.training.process_group import pick_device

    check_engine()
    device = pick_device("auto")
    folder = out or cost_cache_folder(device)
    with console_progress() as progress:
        progress.note(f"writing to {folder}; if interrupted, the same command resumes")
        network = measure_kernels(folder, device, sets or SETS, progress)
    held_out = network.origin["held_out"]
    typer.echo(
        f"{network.origin['machine']}: trained on {network.origin['samples']:,} sets of tables. "
        f"On {held_out['samples']:,} held-out sets: median error {100 * held_out['median']:.1f} %, "
        f"90th percentile {100 * held_out['ninth']:.0f} %, rank correlation {held_out['rank_correlation']:.3f}\n"
        f"{folder}"
    )


def _measure_architecture(config: Path, space: Path | None) -> None:
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.engine import check_engine
    from ziggurat.search.architecture.config import read_search_config
    from ziggurat.search.architecture.latency import measure_parts
    from ziggurat.search.architecture.space.whole_space import WholeSpace
    from ziggurat.training.experiment import load_experiment
    from ziggurat.training.preparation import prepare
    from ziggurat.training.process_group import pick_device

    check_engine()
    experiment, settings = load_experiment(config), read_search_config(space)
    with console_progress() as progress:
        schema = prepare(experiment, progress=progress).schema
        parts = WholeSpace(settings.space, settings.tables, experiment, schema).parts()
        path = measure_parts(parts, pick_device(experiment.training.device), progress)
    typer.echo(f"{len(parts.parts):,} parts are measured\n{path}")


def _measure_tiers(folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from ziggurat.cli.progress import console_progress
    from ziggurat.planning.quantities import format_bytes
    from ziggurat.storage.tier_benchmark import disk_tiers, memory_tier

    with console_progress() as progress:
        found = [memory_tier(), *disk_tiers(folder, progress=progress)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tier", overflow="fold")
    for title in ("free", "block", "rows/s", "latency", "CPU per row", "writes"):
        table.add_column(title, justify="right", no_wrap=True)
    for tier in found:
        table.add_row(
            tier.name,
            format_bytes(tier.free),
            f"{tier.block:,} B",
            f"{tier.reads:,.0f}",
            "" if math.isnan(tier.read_s) else f"{1e6 * tier.read_s:,.0f} us",
            f"{1e6 * tier.processor_s:.2f} us",
            f"{tier.written / 1e6:,.0f} MB/s",
        )
    Console(highlight=False).print(table)
    for note in dict.fromkeys(tier.note for tier in found if tier.note):
        typer.echo(f"the disk is read {note}")
    disk = found[1]
    typer.echo(
        f"With planning.beyond_memory, training can read at most {disk.reads:,.0f} missing rows per second from this "
        f"disk, which takes {100 * disk.reads * disk.processor_s:.0f} % of a core; `ziggurat plan` estimates how many "
        "rows are missing per step."
    )
