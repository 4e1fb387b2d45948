"""``ziggurat prepare``: raw logs to an encoded dataset."""

from __future__ import annotations

import typer

from ziggurat.cli.options import Config, DataFolder, Overrides, PreparedTo


def command(config: Config, overrides: Overrides = None, data: DataFolder = None, prepared: PreparedTo = None) -> None:
    """Fit the encoders; write the encoded dataset. Interrupted, it goes on; run twice, it does nothing.

    \b
    Examples:
      ziggurat prepare exp.yaml
      ziggurat prepare exp.yaml --data /data/logs --prepared /fast/disk/shop
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.training import api

    experiment = api.load_experiment(config, overrides or [], data)
    with console_progress() as progress:
        dataset = api.prepare(experiment, prepared, progress=progress)
    rows = {name: split["rows"] for name, split in dataset.manifest["splits"].items()}
    typer.echo(f"{dataset.folder}: " + ", ".join(f"{count:,} {name}" for name, count in rows.items()) + " rows")
    quarantined = dataset.manifest["quarantined"]["rows"]
    if quarantined:
        typer.echo(f"{quarantined:,} rows set aside in {dataset.folder / 'quarantine.jsonl'}")
