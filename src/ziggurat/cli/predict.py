"""``ziggurat predict``: adds predicted probabilities to raw logs."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import Checkpoint, RunOrEnsemble


class OnBadRow(enum.Enum):
    """What happens to a row that cannot be read."""

    fail = "fail"
    quarantine = "quarantine"


def command(
    run: RunOrEnsemble,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="Raw files: CSV, TSV, JSON lines or Parquet, or the format of the run's own files.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The output file: .csv, .tsv, .jsonl or .parquet.")] = Path(
        "predictions.csv"
    ),
    checkpoint: Checkpoint = "best",
    on_bad_row: Annotated[
        OnBadRow | None,
        typer.Option(
            help="Fail at a row that cannot be read, or set it aside in OUT.quarantine.jsonl; default: as in the run's "
            "config.",
            show_default=False,
        ),
    ] = None,
    levels: Annotated[
        bool, typer.Option("--levels", help="Also write the probability of each level of ordinal labels.")
    ] = False,
) -> None:
    """Write the rows of raw logs with a prediction per label. The logs need no labels.

    A prediction is a probability, or a number in the label's units.

    \b
    Examples:
      ziggurat predict runs/shop new.csv --out scored.parquet
      ziggurat predict ensembles/shop new.csv --out scored.parquet
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.training import api

    with console_progress() as progress:
        outcome = api.predict_files(
            run,
            files,
            out,
            checkpoint,
            progress=progress,
            on_bad_row=on_bad_row.value if on_bad_row else None,
            levels=levels,
        )
    typer.echo(f"{out}: {outcome.rows:,} rows")
    if outcome.quarantined:
        rows = "row" if outcome.quarantined == 1 else "rows"
        typer.echo(f"{outcome.quarantined:,} {rows} could not be read: see {outcome.quarantine}")
