"""``ziggurat serve``: answers requests with an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    export: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="The folder that `ziggurat export` wrote.", show_default=False),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for every network, which needs tokens and TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65_535)] = 8080,
    workers: Annotated[int, typer.Option(help="Processes, which share the tables in memory.", min=1, max=1024)] = 1,
    threads: Annotated[
        int, typer.Option(help="Threads of the model in each worker; more answer large requests sooner.", min=1)
    ] = 1,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for tables, of all workers together, as in 2GB; what does not fit stays on disk."),
    ] = None,
    candidates: Annotated[
        int, typer.Option(help="Rows that a request has to rank on average; --memory is divided for that.", min=1)
    ] = 100,
    pooled_cache: Annotated[
        str, typer.Option(help="Part of --memory for pooled rows of long bags that recur, as in 64MB.")
    ] = "0",
    pooled_longer_than: Annotated[int, typer.Option(help="Bags of more ids are long.", min=1)] = 16,
    pooled_any_order: Annotated[
        bool,
        typer.Option("--pooled-any-order", help="Take a long bag for one of other order, whose last bits may differ."),
    ] = False,
    dequantise: Annotated[
        bool, typer.Option("--dequantise", help="Keep tables in memory as float32, whatever the export's precision.")
    ] = False,
    reads_per_table: Annotated[int, typer.Option(help="Reads of a table that a batch has in flight.", min=1)] = 128,
    reads_per_batch: Annotated[int, typer.Option(help="Reads of all tables that it has in flight.", min=1)] = 256,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the names, rights, rates and hashes of tokens.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of --tls-cert, in PEM.")] = None,
    max_rows: Annotated[int, typer.Option(help="Rows of a request.", min=1)] = 10_000,
    max_body_mib: Annotated[int, typer.Option(help="MiB of a request.", min=1, max=2048)] = 16,
    max_ids_per_row: Annotated[int, typer.Option(help="Values of all lists of a row.", min=1)] = 10_000,
    max_queue_rows: Annotated[int, typer.Option(help="Rows of a worker that wait; beyond it, 503.", min=1)] = 20_000,
    max_connections: Annotated[int, typer.Option(help="Open connections of a worker.", min=1)] = 1024,
    batch_rows: Annotated[int, typer.Option(help="Rows that are predicted together.", min=1)] = 2_048,
    batch_wait_ms: Annotated[
        float, typer.Option(help="Milliseconds to wait for a batch to fill; 0: none.", min=0, max=1000)
    ] = 0.0,
    deadline_ms: Annotated[
        float, typer.Option(help="Milliseconds to an answer, unless the request says otherwise.", min=1)
    ] = 5_000.0,
    receive_seconds: Annotated[
        float, typer.Option(help="Seconds in which a request must arrive, and its head in half of them.", min=0.1)
    ] = 20.0,
    drain_seconds: Annotated[float, typer.Option(help="Seconds for what was admitted, after SIGTERM.", min=0)] = 30.0,
    check_tables: Annotated[
        bool, typer.Option("--check-tables", help="Compare the tables with their checksums first, which reads them.")
    ] = False,
    log: Annotated[bool, typer.Option("--log/--no-log", help="Log a line for each request.")] = True,
) -> None:
    """Answer requests over HTTP with an exported model until Ctrl-C; print the URL.

    \b
    Examples:
      ziggurat serve exports/shop
      ziggurat serve exports/shop --workers 4 --port 80
      ziggurat serve exports/shop --memory 2GB
      ziggurat serve exports/shop --host 0.0.0.0 \\
        --token-file serving.tokens \\
        --tls-cert reader.crt --tls-key reader.key
      curl localhost:8080/openapi.json
    """
    from ziggurat.cli.figures import bytes_of, print_tables
    from ziggurat.core.engine import check_engine

    check_engine()

    from ziggurat.serving.http.limits import ServingLimits
    from ziggurat.serving.http.serve import serve
    from ziggurat.serving.tables.serving_plan import TableMemory

    held: TableMemory | None = None
    if memory is not None:
        held = TableMemory(
            bytes_of("--memory", memory),
            candidates,
            bytes_of("--pooled-cache", pooled_cache),
            pooled_longer_than,
            pooled_any_order,
            dequantise,
            reads_per_table,
            reads_per_batch,
        )
    limits = ServingLimits(
        body_bytes=max_body_mib * 2**20,
        all_bodies_bytes=max(256, 2 * max_body_mib) * 2**20,
        rows=max_rows,
        ids_per_row=max_ids_per_row,
        queue_rows=max_queue_rows,
        connections=max_connections,
        batch_rows=batch_rows,
        batch_wait_s=batch_wait_ms / 1e3,
        deadline_s=deadline_ms / 1e3,
        longest_deadline_s=max(60.0, deadline_ms / 1e3),
        head_s=receive_seconds / 2,
        body_s=receive_seconds,
        drain_s=drain_seconds,
    )
    serve(
        export,
        host=host,
        port=port,
        workers=workers,
        threads=threads,
        token_file=token_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        limits=limits,
        log=log,
        check_tables=check_tables,
        memory=held,
        listening=typer.echo,
        planned=lambda plan: print_tables(plan, error_output=True),
    )
