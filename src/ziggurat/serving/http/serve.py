"""Serves an export over HTTP: what ``ziggurat serve`` does, as a function."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.tables.residence import Residence, reside
from ziggurat.serving.tables.serving_plan import ServingPlan, TableMemory, plan_tables

_NEEDED = {
    "fastapi": "FastAPI",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "msgspec": "msgspec",
    "prometheus_client": "prometheus-client",
}


def serve(
    export: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    workers: int = 1,
    threads: int = 1,
    token_file: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    limits: ServingLimits = ServingLimits(),  # noqa: B008 - immutable
    log: bool = True,
    log_features: bool = False,
    check_tables: bool = False,
    memory: TableMemory | None = None,
    follow: str | Path | None = None,
    poll_s: float = 1.0,
    keep_versions: int = 5,
    versions: str | Path | None = None,
    drive_writes_per_day: float = 1.0,
    drive_capacity: int | None = None,
    compile: bool = False,  # noqa: A002 - as the option is called
    listening: Callable[[str], None] = lambda url: None,
    planned: Callable[[ServingPlan], None] = lambda plan: None,
) -> None:
    """Answers requests over HTTP with an export until SIGTERM or SIGINT, and then what was admitted.

    Args:
        export: the folder that :func:`ziggurat.export` wrote.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        workers: processes; with one, this is it, and it must be called in the main thread.
        threads: threads of the model in each worker.
        token_file: the file with the names, rights, rates and hashes of tokens.
        tls_cert, tls_key: files of the certificate and its key, in PEM.
        limits: what clients may take.
        log: whether each request is logged.
        log_features: whether with the first 64 KiB of its body, which hold the values of features: whoever reads the
            log reads them.
        check_tables: whether the tables are compared with their checksums first, which reads them.
        memory: the memory for tables, of all workers together; what does not fit stays on disk. Default: all tables
            are mapped into memory.
        follow: a run, the folder of its checkpoints, or the URL of their store: newer versions of the model are taken
            from there while it is served.
        poll_s: seconds between two looks for a checkpoint.
        keep_versions: how many versions are kept, at least 2.
        versions: the folder of versions; default: the export's name with ``.versions``.
        drive_writes_per_day: how often a day the capacity of the drive may be written.
        drive_capacity: bytes of the drive; default: those of the file system that holds the versions.
        compile: whether the dense part is compiled for this machine while the server answers by its graph; the code
            is used if it is faster, and its probabilities are within 1e-6 of the graph's.
        listening: called with the URL once all workers listen.
        planned: called with where tables are, before they are loaded.

    Raises:
        ConfigError: the memory does not suffice for the smallest caches, the address cannot be listened on, other
            machines could reach it without tokens or TLS, a file holds something else, or the run that is to be
            followed is not that of the export.
        DataError: the folder holds no export, or a damaged one.
        EnvironmentMismatch: libraries of the extra ``serve`` are not installed.
    """
    missing = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise EnvironmentMismatch(
            f"serving needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            "pip install 'ziggurat[serve]'",
        )
    from ziggurat.serving.http.doors import Doors
    from ziggurat.serving.http.workers import Serving, listening_socket, run_server
    from ziggurat.serving.versions.updater import Following

    tokens, certificate, key = (None if each is None else Path(each) for each in (token_file, tls_cert, tls_key))
    doors = Doors.read(host, tokens, certificate, key, workers)
    with listening_socket(host, port) as accepting:  # first of all: a port that is taken is said at once
        residence: Residence | None = None
        if memory is not None:
            if follow is not None and memory.dequantise:
                raise ConfigError(
                    "--dequantise with --follow: versions hold changed rows at the export's precision",
                    "leave one of both out, or serve an export at fp32",
                )
            plan = plan_tables(Path(export), Manifest.read(Path(export)), memory)
            planned(plan)
            residence = reside(Path(export), plan)
        following = None
        if follow is not None:
            folder = _versions_folder(Path(export), versions)
            budget = _budget(folder, drive_writes_per_day, drive_capacity)
            following = Following(str(follow), folder, poll_s, keep_versions, budget)
        serving = Serving(
            Path(export), doors, limits, log, log_features, check_tables, threads, residence, following, compile
        )
        run_server(serving, accepting, workers, listening)


def _versions_folder(export: Path, chosen: str | Path | None) -> Path:
    if chosen is not None:
        return Path(chosen)
    resolved = export.resolve()
    return resolved.with_name(f"{resolved.name}.versions")


def _budget(folder: Path, drive_writes_per_day: float, drive_capacity: int | None) -> int | None:
    """Returns the bytes that may be written in 24 hours; None if the folder is in memory."""
    from ziggurat.serving.versions.endurance import capacity

    size = drive_capacity
    if size is None:
        size = capacity(next(each for each in (folder, *folder.parents) if each.is_dir()))
    return None if size is None else int(size * drive_writes_per_day)
