"""``ziggurat evaluate``: computes the metrics of a run or an ensemble on a split."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from ziggurat.cli.options import Checkpoint, PreparedInput, RunOrEnsemble


def command(
    run: RunOrEnsemble,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="The rows to evaluate on.")] = "test",
    checkpoint: Checkpoint = "best",
    prepared: PreparedInput = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compute the metrics of a run or an ensemble on a split of its data.

    \b
    Examples:
      ziggurat evaluate runs/shop
      ziggurat evaluate runs/shop --split validation --checkpoint last --json
      ziggurat evaluate ensembles/shop
    """
    from ziggurat.cli.figures import figures_table
    from ziggurat.cli.progress import console_progress
    from ziggurat.features.negatives_config import protocol
    from ziggurat.training import api
    from ziggurat.training.ensemble.ensemble import open_run_or_ensemble

    with console_progress() as progress:
        metrics = api.evaluate(run, split, checkpoint, progress, prepared=prepared)
    figures = metrics.compute()
    if as_json:
        typer.echo(json.dumps({**figures, **metrics.slice_figures()}))
        return
    figures_table(f"{run} on {split}", {split: figures})
    for name, reason in metrics.undefined().items():
        typer.echo(f"{name} is undefined: {reason}")
    negatives = open_run_or_ensemble(run).experiment.data.negatives
    if negatives is not None and split != "train":
        typer.echo(protocol(negatives))
