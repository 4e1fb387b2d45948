"""Serve an experiment's batches to trainers: the readers of the ingestion tier."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.core.files import atomic_file
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.ingest.prepared import open_prepared
from ziggurat.data.ingest.processes import ReaderProcesses
from ziggurat.training.api import prepare
from ziggurat.training.experiment import Experiment


def ingest(
    experiment: Experiment,
    *,
    prepared: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    readers: int = 1,
    address_file: Path | None = None,
    listening: Callable[[Sequence[str]], None] = lambda addresses: None,
    progress: Progress | None = None,
) -> None:
    """Prepare if needed, then serve until an exception such as a signal's ends it.

    Args:
        experiment: whose ``data`` and ``features`` sections count.
        prepared: folder of the encoded dataset; default as in :func:`ziggurat.prepare`.
        host, port: to listen on; several readers take consecutive ports, or free ones where ``port`` is 0.
        readers: processes.
        address_file: holds an address a line from when all of them listen until the end.
        listening: is told the addresses at the same time.
        progress: where to show it.

    Raises:
        ConfigError: an address that cannot be listened on.
        DataError, FeatureError: as in :func:`ziggurat.prepare`.
    """
    if port and port + readers - 1 > _LAST_PORT:
        raise ConfigError(
            f"--port {port} with {readers} readers ends at port {port + readers - 1}; the last is {_LAST_PORT}",
            "choose a lower --port; 0 takes free ones",
        )
    progress = progress or Silent()
    if address_file is not None:
        address_file.unlink(missing_ok=True)  # of readers that were killed
    folder = prepare(experiment, prepared, progress).folder.resolve()
    with (
        ReaderProcesses(functools.partial(open_prepared, folder), host, port, readers) as processes,
        _listed(processes.addresses, address_file),
    ):
        listening(processes.addresses)
        processes.watch(progress)


@contextlib.contextmanager
def _listed(addresses: Sequence[str], path: Path | None) -> Generator[None]:
    """Within the context, the file at ``path`` holds the addresses; outside there is none."""
    if path is None:
        yield
        return
    with atomic_file(path) as temporary:
        temporary.write_text("".join(f"{address}\n" for address in addresses), encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


_LAST_PORT = 65_535
