"""Runs a preparation, or the trials of a search, on a Ray cluster.

Only this module uses Ray, and it imports Ray when the cluster is entered.

Ray schedules the work, sends shared data once to each host, and retries an item whose worker or host is lost.
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
"""Address of a temporary cluster that consists of this machine only."""

MAX_TRIES = 4
"""Number of workers that may die while they process the same item before the preparation fails."""

_QUEUED_PER_CPU = 4
_CONNECT_S = 10
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The connection preface of HTTP/2, and therefore of gRPC, with an empty SETTINGS frame; the server must reply with a
SETTINGS frame of its own (RFC 9113, 3.4)."""


class RayCluster:
    """A Ray cluster with one worker per CPU; see :class:`~ziggurat.features.preparation.cluster.Cluster`.

    If this process is already connected to Ray, that connection is used, whatever the address, and stays open.
    Otherwise the connection is opened when the cluster is entered and closed when it is exited.

    Args:
        address: ``local``, ``HOST:PORT`` of the cluster's head, or ``auto`` on one of its hosts.
    """

    def __init__(self, address: str = LOCAL) -> None:
        self._address = address
        self._owned = False

    def __enter__(self) -> Self:
        ray = _ray(loopback=self._address == LOCAL)
        if not ray.is_initialized():
            with _keep_sigterm_handler():
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
        task = ray.remote(num_cpus=1, max_retries=MAX_TRIES - 1)(_run_on_worker)
        caller, reference = _Environment.current(), ray.put(shared)
        max_queued = _QUEUED_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
        running: deque[Any] = deque()
        try:
            for item in items:
                running.append(task.remote(caller, work, reference, item))
                if len(running) >= max_queued:
                    yield _result(ray, running.popleft())
            while running:
                yield _result(ray, running.popleft())
        finally:
            for future in running:
                ray.cancel(future)

    def resources(self) -> tuple[int, int]:
        """Returns how many CPUs and GPUs the cluster has."""
        found = _ray().cluster_resources()
        return max(1, int(found.get("CPU", 1))), int(found.get("GPU", 0))

    def submit(self, work: Callable[..., Any], *arguments: Any, cpus: int, gpus: int) -> Any:
        """Starts ``work`` on a host with that many CPUs and GPUs to spare, again if its worker or host is lost.

        Args:
            work: a function that can be pickled by its name.
            arguments: what it is called with.
            cpus: CPUs that it needs.
            gpus: GPUs that it needs.

        Returns: what :meth:`poll` and :meth:`cancel` take.
        """
        task = _ray().remote(num_cpus=cpus, num_gpus=gpus, max_retries=MAX_TRIES - 1)(_call_on_worker)
        return task.remote(_Environment.current(), work, arguments)

    def poll(self, future: Any) -> Any:
        """Returns what the work of a future returned, which is not None; None if it has not ended.

        Raises:
            WorkersLost: several workers died at it, or the cluster failed.
            ZigguratError: the work raised it.
        """
        ray = _ray()
        ready, _ = ray.wait([future], timeout=0)
        return _result(ray, future) if ready else None

    def cancel(self, future: Any) -> None:
        """Ends the work of a future, and the worker that does it."""
        _ray().cancel(future, force=True)


@dataclass(frozen=True, slots=True)
class _Environment:
    """A process's environment: the working folder, which relative paths depend on, and package versions."""

    folder: Path
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def current(cls) -> Self:
        versions = {"ziggurat": __version__, "numpy": np.__version__, "pyarrow": pa.__version__}
        return cls(Path.cwd(), tuple({**versions, "polars": pl.__version__}.items()))


def start_local(**settings: Any) -> None:
    """Starts a cluster of this machine's CPUs that listens on the loopback interface only and sends no usage reports.

    Args:
        settings: further arguments for ``ray.init``.
    """
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    _ray(loopback=True).init(address=LOCAL, **{**quiet, **settings})


@contextlib.contextmanager
def _keep_sigterm_handler() -> Generator[None]:
    """Restores the SIGTERM handler: Ray installs its own, down to its compiled part, which aborts the process."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself would retry for minutes
            _check_head(host.rpartition("/")[2], int(port))
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise EnvironmentMismatch(
            f"--ray {address}: no Ray cluster can be reached there ({str(error).strip() or type(error).__name__})",
            "give the head's address as `ray start` prints it (HOST:6379), or `local` for the CPUs of this machine",
        ) from error


def _check_head(host: str, port: int) -> None:
    """Raises OSError unless a gRPC server, such as the head of a cluster, listens at this address."""
    with socket.create_connection((host, port), _CONNECT_S) as connection:
        connection.sendall(_GREETING)
        frame = connection.recv(9)
    if frame[3:4] != b"\x04":
        raise ConnectionError("the server at this address is not the head of a cluster")


def _ray(*, loopback: bool = False) -> Any:
    """Imports and returns Ray.

    Args:
        loopback: whether a local cluster is about to be started. Ray reads the settings made for it when it is first
            imported. With clusters disabled, a setting meant for other operating systems, Ray uses only the loopback
            interface.
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
            "--ray: work on a cluster needs Ray, which is not installed", "pip install 'ziggurat[ray]'"
        ) from None


def _run_on_worker(caller: _Environment, work: Callable[[Shared, Item], Result], shared: Shared, item: Item) -> Result:
    """Runs on a worker: calls ``work`` in the caller's working folder, after checking that the versions are equal."""
    return _call_on_worker(caller, work, (shared, item))


def _call_on_worker(caller: _Environment, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    worker = _Environment.current()
    if worker.versions != caller.versions:
        wrong = next((own, asked) for own, asked in zip(worker.versions, caller.versions, strict=True) if own != asked)
        raise EnvironmentMismatch(
            f"host {socket.gethostname()}: a worker has {' '.join(wrong[0])}, the caller has {' '.join(wrong[1])}",
            "install the same versions on every host of the cluster: requirements/lock.txt",
        )
    with contextlib.chdir(caller.folder) if caller.folder.is_dir() else contextlib.nullcontext():
        return work(*arguments)


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
        what = (
            f"{MAX_TRIES} workers died at the same file range, table, file or trial"
            if died
            else "the Ray cluster failed"
        )
        raise WorkersLost(
            f"{what} ({type(error).__name__}: {first_line})",
            "check whether the workers' hosts run out of memory, and give Ray fewer CPUs there (ray start --num-cpus "
            "N); the same command resumes where it stopped, with or without --ray",
        ) from error
