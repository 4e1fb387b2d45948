"""``ziggurat ingest``: serves batches to trainers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import Config, DataFolder, Overrides
from ziggurat.network.limits import Limits

_LIMITS = Limits()


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
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; 0.0.0.0 for every network, which needs a token and TLS."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the first reader; 0 chooses free ports.", min=0, max=65_535)] = 0,
    readers: Annotated[int, typer.Option(help="Number of reader processes.", min=1, max=1024)] = 1,
    address_file: Annotated[
        Path | None, typer.Option(help="File that holds the addresses, one per line, while all readers listen.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that trainers must have (training.reader_token_file).")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the readers, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of --tls-cert, in PEM.")] = None,
    max_streams: Annotated[
        int, typer.Option(help="Requests that one reader answers at a time; half of them for one host.", min=8)
    ] = _LIMITS.streams,
    max_held_mib: Annotated[
        int, typer.Option(help="MiB of batches that one reader holds for trainers that have not read them.", min=16)
    ] = _LIMITS.held_bytes // 2**20,
    stalled_seconds: Annotated[
        float, typer.Option(help="Seconds after which an answer that is not read is ended.", min=0.1)
    ] = _LIMITS.stalled_s,
) -> None:
    """Serve batches over Arrow Flight until Ctrl-C; print one address per line. Prepare if needed.

    \b
    Examples:
      ziggurat ingest exp.yaml --readers 4
      ziggurat ingest exp.yaml --raw --prepared runs/shop
      ziggurat ingest exp.yaml --host 0.0.0.0 --port 8815 \\
        --token-file reader.token --tls-cert server.crt \\
        --tls-key server.key
      ziggurat train exp.yaml --readers grpc+tls://host-a:8815 \\
        --set training.reader_token_file=reader.token \\
        --set training.reader_authorities=server.crt
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.network.access import read_access
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
            access=read_access(token_file, tls_cert, tls_key),
            limits=Limits(streams=max_streams, held_bytes=max_held_mib * 2**20, stalled_s=stalled_seconds),
            listening=listening,
            progress=progress,
        )
