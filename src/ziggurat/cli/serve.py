"""``ziggurat serve``: answers requests with an exported model."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.export import Precision
from ziggurat.cli.options import given_options

_WITH_MEMORY = (
    "candidates", "pooled_cache", "pooled_longer_than", "pooled_any_order", "dequantise", "reads_per_table",
    "reads_per_batch",
)  # fmt: skip
_WITH_FOLLOW = ("poll", "keep_versions", "versions", "drive_writes_per_day", "drive_capacity")
_NOT_WITH_RAY = ("memory", "follow", "precision", "export_to", "check_tables", "compile_dense", "log_features")


def command(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="OUT|RUN",
            help="The folder that `ziggurat export` wrote, its copy in an object store, or a run or an ensemble.",
            show_default=False,
        ),
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
    overload_wait_ms: Annotated[
        float | None,
        typer.Option(
            help="Milliseconds of waiting rows while requests come too fast; beyond it, 503. Default: 20, or what ten "
            "requests take.",
            min=0,
        ),
    ] = None,
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
    log_features: Annotated[
        bool,
        typer.Option(
            "--log-features",
            help="Log the first 64 KiB of each request, with its values of features, to debug.",
        ),
    ] = False,
    precision: Annotated[
        Precision | None, typer.Option(help="Of a run: how rows are stored; default: fp32.", show_default=False)
    ] = None,
    export_to: Annotated[
        Path | None, typer.Option(help="Of a run: the new folder of its export; default: a temporary one.")
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Take newer versions of the model from this run's checkpoints: its folder, or the URL of their store.",
        ),
    ] = None,
    poll: Annotated[float, typer.Option(help="Seconds between two looks for a checkpoint.", min=0.05)] = 1.0,
    keep_versions: Annotated[int, typer.Option(help="Versions that are kept, to go back to.", min=2, max=1000)] = 5,
    versions: Annotated[
        Path | None, typer.Option(help="Folder of versions; default: OUT.versions, beside OUT.")
    ] = None,
    drive_writes_per_day: Annotated[
        float, typer.Option(help="How often a day versions may write the drive's capacity: its endurance.", min=0.0)
    ] = 1.0,
    drive_capacity: Annotated[
        str | None, typer.Option(help="Capacity of the drive, as 960GB; default: of the file system of the versions.")
    ] = None,
    compile_dense: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="Compile the dense part for this machine, once, and use the code if it is faster; without, answers "
            "equal those of `predict` to the bit.",
        ),
    ] = True,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Serve by replicas on the hosts of this Ray cluster: HOST:PORT of its head, auto, or local. --workers "
            "is their number.",
        ),
    ] = None,
) -> None:
    """Answer requests over HTTP with an exported model until Ctrl-C; print the URL.

    A run or an ensemble is exported first. With --follow, workers exchange the model as its training goes on.

    \b
    Examples:
      ziggurat serve exports/shop
      ziggurat serve exports/shop --workers 4 --port 80
      ziggurat serve exports/shop --memory 2GB
      ziggurat serve exports/shop --follow runs/shop
      ziggurat serve runs/shop --precision int8
      ziggurat serve s3://models/shop --ray head:6379 --workers 8
      ziggurat serve exports/shop --host 0.0.0.0 \\
        --token-file serving.tokens \\
        --tls-cert server.crt --tls-key server.key
      curl localhost:8080/openapi.json
    """
    from ziggurat.cli.figures import bytes_of, print_tables
    from ziggurat.core.engine import check_engine

    check_engine()

    from ziggurat.serving.http.limits import ServingLimits
    from ziggurat.serving.http.serve import serve
    from ziggurat.serving.tables.serving_plan import TableMemory

    _check_together(context, memory=memory is not None, follow=follow is not None, log=log, ray=ray is not None)
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
        overload_wait_s=None if overload_wait_ms is None else overload_wait_ms / 1e3,
        connections=max_connections,
        batch_rows=batch_rows,
        batch_wait_s=batch_wait_ms / 1e3,
        deadline_s=deadline_ms / 1e3,
        longest_deadline_s=max(60.0, deadline_ms / 1e3),
        head_s=receive_seconds / 2,
        body_s=receive_seconds,
        drain_s=drain_seconds,
    )
    if ray is not None:
        from ziggurat.serving.cluster.ray_serve import serve_on_ray

        serve_on_ray(
            target,
            ray,
            replicas=workers,
            host=host,
            port=port,
            threads=threads,
            token_file=token_file,
            tls_cert=tls_cert,
            tls_key=tls_key,
            limits=limits,
            log=log,
            listening=typer.echo,
        )
        return
    with _exported(target, precision, export_to) as export:
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
            log_features=log_features,
            check_tables=check_tables,
            memory=held,
            follow=follow,
            poll_s=poll,
            keep_versions=keep_versions,
            versions=versions,
            drive_writes_per_day=drive_writes_per_day,
            drive_capacity=None if drive_capacity is None else bytes_of("--drive-capacity", drive_capacity),
            compile=compile_dense,
            listening=typer.echo,
            planned=lambda plan: print_tables(plan, error_output=True),
        )


def _check_together(context: typer.Context, *, memory: bool, follow: bool, log: bool, ray: bool) -> None:
    """Refuses options that do nothing beside the others.

    Raises:
        ConfigError: one is given.
    """
    from ziggurat.core.errors import ConfigError

    for option in given_options(context, *_NOT_WITH_RAY) if ray else ():
        raise ConfigError(f"{option} and --ray", "give one of the two; --ray serves a finished export")
    needs = (("--memory", memory, _WITH_MEMORY), ("--follow", follow, _WITH_FOLLOW), ("--log", log, ("log_features",)))
    for needed, is_given, parameters in needs:
        for option in () if is_given else given_options(context, *parameters):
            raise ConfigError(f"{option}: does nothing without {needed}", f"add {needed}, or leave {option} out")


@contextlib.contextmanager
def _exported(place: str, precision: Precision | None, export_to: Path | None) -> Generator[Path]:
    """Yields the export: the target itself, or a new one of the run that the target is.

    Raises:
        ConfigError: options of runs are given for an export, or it is neither.
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.errors import ConfigError
    from ziggurat.serving.cluster.fetched_export import fetched_export

    with console_progress() as progress:
        target = fetched_export(place, progress=progress)
    is_model = any((target / name).is_file() for name in ("config.yaml", "ensemble.json"))
    if (target / "export.json").exists() or not is_model:
        given = "--precision" if precision is not None else "--export-to" if export_to is not None else None
        if given is not None:
            raise ConfigError(f"{given}: {target} is no run", f"leave {given} out, or name a run")
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="ziggurat-serve-") as temporary:
        out = Path(temporary) / target.resolve().name if export_to is None else export_to
        _export(target, out, precision or Precision.fp32, is_kept=export_to is not None)
        yield out


def _export(run: Path, out: Path, precision: Precision, *, is_kept: bool) -> None:
    from ziggurat.cli.progress import console_progress
    from ziggurat.exporting.export import export

    with console_progress() as progress:
        found = export(run, out, precision=precision.value, progress=progress)
    where = f"{out}: serve this folder next time" if is_kept else "a temporary folder; --export-to keeps it"
    manifest = found.manifest
    what = f"the best checkpoint, of step {manifest.source.step:,},"
    if manifest.members:
        what = f"its {len(manifest.members):,} members"
    typer.echo(f"{run}: exported {what} at {precision.value} to {where}", err=True)
