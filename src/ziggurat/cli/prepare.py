"""``ziggurat prepare``: turns raw logs into an encoded dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from ziggurat.cli.options import Config, DataFolder, Overrides, PreparedOutput


def command(
    config: Config,
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: PreparedOutput = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Prepare on a Ray cluster: HOST:PORT of its head, auto on one of its hosts, or local for a cluster on "
            "this machine's CPUs. Needs ziggurat[ray].",
        ),
    ] = None,
) -> None:
    """Fit the encoders and write the encoded dataset. It resumes after an interruption, and is done only once.

    \b
    Examples:
      ziggurat prepare exp.yaml
      ziggurat prepare exp.yaml --data /data/logs --prepared /fast/disk/shop
      ziggurat prepare exp.yaml --ray 10.0.0.1:6379
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.training import api

    experiment = api.load_experiment(config, overrides or [], data)
    with console_progress() as progress:
        dataset = api.prepare(experiment, folder=prepared, progress=progress, ray=ray)
    rows = {name: split["rows"] for name, split in dataset.manifest["splits"].items()}
    typer.echo(f"{dataset.folder}: " + ", ".join(f"{count:,} {name}" for name, count in rows.items()) + " rows")
