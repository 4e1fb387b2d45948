"""Ray as the cluster of a preparation: the only file that knows it, and it imports it when it is entered.

Ray schedules, sends what workers share once to each host, and tries an item again where its worker or host is lost.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa

from ziggurat._version import __version__
from ziggurat.core.errors import EnvironmentMismatch, WorkersLost, ZigguratError
from ziggurat.features.preparation.cluster import Item, Result, Shared

LOCAL = "local"
"""The address that stands for a cluster of this machine alone, started for the purpose."""

TRIES = 4
"""Workers that may die over one item before the preparation ends."""

_QUEUED_PER_CPU = 4
_CONNECT_S = 10
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""With which HTTP/2, and so gRPC, begins, and settings, of which the other side must send its own (RFC 9113, 3.4)."""


class RayCluster:
    """Workers of a Ray cluster, one for each of its CPUs; see :class:`~ziggurat.features.preparation.cluster.Cluster`.

    A connection that this process has to Ray already is used, whatever the address, and kept. Otherwise one is made
    when the cluster is entered, and closed when it is left.

    Args:
        address: ``local``, ``HOST:PORT`` of the cluster's head, or ``auto`` on one of its hosts.
    """

    def __init__(self, address: str = LOCAL) -> None:
        self._address = address
        self._owned = False

    def __enter__(self) -> Self:
        ray = _ray(loopback=self._address == LOCAL)
        if not ray.is_initialized():
            with _signals_kept():
                start_local() if self._address == LOCAL else _connect(ray, self._address)
            self._owned = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owned:
            _ray().shutdown()
            self._owned = False

    def run(self, work: Callable[[Shared, Item], Result], shared: Shared, items: Iterable[Item]) -> Iterator[Result]:
        ray = _ray()
        task = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_work_at)
        caller, reference = _Caller.here(), ray.put(shared)
        most = _QUEUED_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
        running: deque[Any] = deque()
        try:
            for item in items:
                running.append(task.remote(caller, work, reference, item))
                if len(running) >= most:
                    yield _result(ray, running.popleft())
            while running:
                yield _result(ray, running.popleft())
        finally:
            for future in running:
                ray.cancel(future)


@dataclass(frozen=True, slots=True)
class _Caller:
    """What a worker must agree with: the working folder, where relative paths begin, and the versions."""

    folder: Path
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def here(cls) -> Self:
        versions = {"ziggurat": __version__, "numpy": np.__version__, "pyarrow": pa.__version__}
        return cls(Path.cwd(), tuple({**versions, "polars": pl.__version__}.items()))


def start_local(**settings: Any) -> None:
    """Start a cluster of this machine's CPUs that listens on the loopback interface only and reports to nobody.

    Args:
        settings: further arguments of ``ray.init``.
    """
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    _ray(loopback=True).init(address=LOCAL, **{**quiet, **settings})


@contextlib.contextmanager
def _signals_kept() -> Generator[None]:
    """Ray takes SIGTERM for itself, down to its compiled part, which aborts; this gives it back to whoever had it."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself tries for minutes
            _greet(host.rpartition("/")[2], int(port))
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise EnvironmentMismatch(
            f"--ray {address}: no Ray cluster to be reached there ({str(error).strip() or type(error).__name__})",
            "name the head as `ray start` printed it (HOST:6379), or `local` for the CPUs of this machine",
        ) from error


def _greet(host: str, port: int) -> None:
    """Raise OSError unless somebody who speaks gRPC, as a head does, listens there."""
    with socket.create_connection((host, port), _CONNECT_S) as there:
        there.sendall(_GREETING)
        frame = there.recv(9)
    if frame[3:4] != b"\x04":
        raise ConnectionError("who listens there is no head of a cluster")


def _ray(*, loopback: bool = False) -> Any:
    """The library.

    Args:
        loopback: whether a cluster is about to be started here. Ray reads these settings when it is first imported; it
            has the one for systems where it knows no clusters, and there keeps to the loopback interface.
    """
    if loopback:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise EnvironmentMismatch(
            "preparation over a cluster needs Ray, which is not installed", "pip install 'ziggurat[ray]'"
        ) from None


def _work_at(caller: _Caller, work: Callable[[Shared, Item], Result], shared: Shared, item: Item) -> Result:
    """On a worker: stand where the caller stands, be of its versions, and work."""
    here = _Caller.here()
    if here.versions != caller.versions:
        wrong = next((own, asked) for own, asked in zip(here.versions, caller.versions, strict=True) if own != asked)
        raise EnvironmentMismatch(
            f"host {socket.gethostname()}: a worker has {' '.join(wrong[0])}, the preparation {' '.join(wrong[1])}",
            "install the same versions on every host of the cluster: requirements/lock.txt",
        )
    with contextlib.chdir(caller.folder) if caller.folder.is_dir() else contextlib.nullcontext():
        return work(shared, item)


def _result(ray: Any, future: Any) -> Any:
    try:
        return ray.get(future)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ZigguratError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        first_line = next(iter(str(error).strip().splitlines()), "")
        died = isinstance(error, ray.exceptions.WorkerCrashedError)
        what = f"workers died {TRIES} times over the same stretch, table or file" if died else "the Ray cluster failed"
        raise WorkersLost(
            f"{what} ({type(error).__name__}: {first_line})",
            "look for a lack of memory on the workers' hosts, and give Ray fewer CPUs there (ray start --num-cpus N); "
            "the same command goes on where it stopped, with --ray or without",
        ) from error
