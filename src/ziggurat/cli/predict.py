"""``ziggurat predict``: raw logs in, the same rows with probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import Checkpoint, RunFolder


def command(
    run: RunFolder,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="Raw files: CSV, TSV, JSON lines or Parquet, or laid out as the run's own.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write: .csv, .tsv, .jsonl or .parquet.")] = Path(
        "predictions.csv"
    ),
    checkpoint: Checkpoint = "best",
) -> None:
    """Raw logs in, the same rows with a probability per label out. Labels need not be there.

    \b
    Example:
      ziggurat predict runs/shop new.csv --out scored.parquet
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.training import api

    with console_progress() as progress:
        outcome = api.predict_files(run, files, out, checkpoint, progress=progress)
    typer.echo(f"{out}: {outcome.rows:,} rows")
    if outcome.quarantined:
        typer.echo(f"{outcome.quarantined:,} rows could not be read; see {outcome.quarantine}")
