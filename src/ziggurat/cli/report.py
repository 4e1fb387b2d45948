"""``ziggurat report``: writes the report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import Checkpoint, PreparedInput, RunFolder


def command(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file; default: report.html in the run.")
    ] = None,
    checkpoint: Checkpoint = "best",
    prepared: PreparedInput = None,
    baselines: Annotated[
        bool, typer.Option(help="Compare with LightGBM and logistic regression, which are trained once per run.")
    ] = True,
) -> None:
    """Write a run's report: one self-contained HTML file with curves, calibration, features, slices and baselines.

    \b
    Examples:
      ziggurat report runs/shop
      ziggurat report runs/shop --no-baselines --out shop.html
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.report.gather import report_run

    with console_progress() as progress:
        path = report_run(run, out, checkpoint=checkpoint, baselines=baselines, prepared=prepared, progress=progress)
    typer.echo(path)
