"""``ziggurat doctor``: does this machine have what ziggurat needs, and if not, which command mends it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fail": "[red]fail[/]"}


def command(
    folder: Annotated[Path, typer.Option(help="Where runs will be written.", exists=True, file_okay=False)] = Path(),
) -> None:
    """Check Python, the engine, libraries, accelerator and machine; name the command that mends each problem.

    \b
    Example:
      ziggurat doctor --folder /data/runs
    """
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
