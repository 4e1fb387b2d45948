"""``ziggurat ingest``: serves batches to trainers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import Config, DataFolder, Overrides


def command(
    config: Config,
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: Annotated[
        Path | None,
        typer.Option(help="The prepared dataset; default: prepared/NAME-HASH. With --raw, a run folder also works."),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Make batches from the raw files with the encoders of --prepared."),
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the first reader; 0 chooses free ports.", min=0, max=65_535)] = 0,
    readers: Annotated[int, typer.Option(help="Number of reader processes.", min=1, max=1024)] = 1,
    address_file: Annotated[
        Path | None, typer.Option(help="File that holds the addresses, one per line, while all readers listen.")
    ] = None,
) -> None:
    """Serve batches over Arrow Flight until Ctrl-C; print one address per line. Prepare if needed.

    \b
    Examples:
      ziggurat ingest exp.yaml --readers 4
      ziggurat ingest exp.yaml --raw --prepared runs/shop
      ziggurat ingest exp.yaml --host 0.0.0.0 --port 8815
      ziggurat train exp.yaml --readers grpc://host-a:8815,grpc://host-b:8815
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.training import api
    from ziggurat.training.ingest import ingest

    def listening(addresses: Sequence[str]) -> None:
        for address in addresses:
            typer.echo(address)

    experiment = api.load_experiment(config, overrides or [], data)
    with console_progress() as progress:
        ingest(
            experiment,
            prepared=prepared,
            raw=raw,
            host=host,
            port=port,
            readers=readers,
            address_file=address_file,
            listening=listening,
            progress=progress,
        )
