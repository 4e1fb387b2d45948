"""``ziggurat doctor``: does this machine have what ziggurat needs, and if not, which command mends it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fail": "[red]fail[/]"}


def command(
    folder: Annotated[Path, typer.Option(help="Where runs will be written.", exists=True, file_okay=False)] = Path(),
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure what fused look-ups cost here, for the planner autoshard.")
    ] = False,
    sets: Annotated[
        int | None, typer.Option(min=20, help="Sets of tables that --measure runs; default: 2,000.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where --measure keeps them; default: this user's cache.")
    ] = None,
) -> None:
    """Check Python, the engine, libraries, accelerator and machine; name the command that mends each problem.

    \b
    Examples:
      ziggurat doctor --folder /data/runs
      ziggurat doctor --measure
    """
    from ziggurat.core.errors import ConfigError

    if measure:
        _measure(sets, out)
        return
    for option, value in (("--sets", sets), ("--out", out)):
        if value is not None:
            raise ConfigError(
                f"{option} {value}: nothing is measured without --measure", f"add --measure, or leave {option} out"
            )
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ziggurat.cli.doctor_checks import all_checks

    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    checks = list(all_checks(folder))
    for check in checks:
        table.add_row(_MARKS[check.state], check.name, escape(check.found))
    console.print(table)
    for check in checks:
        if check.mend:
            # Not wrapped: a command must survive being copied.
            console.print(
                f"\n[bold]{escape(check.name)}[/]: {escape(check.found)}\n  mend: {escape(check.mend)}", soft_wrap=True
            )
    failed = sum(check.state == "fail" for check in checks)
    console.print(f"\n{failed} to mend" if failed else "\neverything needed is here")
    if failed:
        raise typer.Exit(1)


def _measure(sets: int | None, out: Path | None) -> None:
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.engine import check_engine
    from ziggurat.training.engine import pick_device
    from ziggurat.training.kernels import SETS
    from ziggurat.training.kernels import measure as measure_kernels
    from ziggurat.training.measured import kernel_folder

    check_engine()
    device = pick_device("auto")
    folder = out or kernel_folder(device)
    with console_progress() as progress:
        progress.note(f"into {folder}; if this is interrupted, the same command goes on")
        network = measure_kernels(folder, device, sets or SETS, progress)
    held = network.origin["held_out"]
    typer.echo(
        f"{network.origin['machine']}: {network.origin['samples']:,} sets of tables learned from, {held['samples']:,} "
        f"held out: median error {100 * held['median']:.1f} %, nine of ten within {100 * held['ninth']:.0f} %, rank "
        f"correlation {held['rank_correlation']:.3f}\n{folder}"
    )
