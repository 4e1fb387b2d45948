"""Serves an export with several processes that share one listening socket, and the tables that they map into memory.

The parent holds the socket, so that connections wait in the kernel's queue while a worker that died is replaced. It
ends its workers when it gets a signal; they end by themselves when it is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from ziggurat.core.errors import ConfigError, DataError, ZigguratError
from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.app import application
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.fresh.updater_process import UpdaterProcess, followed
from ziggurat.serving.http.fresh.version_watch import VersionWatch
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.metrics import MULTIPROCESS
from ziggurat.serving.http.served_model import ServedModel, export_digest
from ziggurat.serving.http.server import WorkerServer, run_worker
from ziggurat.serving.model.compiled_code import Verdict
from ziggurat.serving.model.compiler_process import compiling
from ziggurat.serving.server_process import start_process
from ziggurat.serving.tables.residence import Residence
from ziggurat.serving.versions.folder import VersionFolder
from ziggurat.serving.versions.updater import Following

_AGAIN_S = 1.0
"""Seconds before a worker that could not start, or died right after its start, is started again."""
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served, and how.

    Attributes:
        folder: the export.
        doors: who is admitted.
        limits: the bounds of each worker.
        log: whether requests are logged.
        log_features: whether with their bodies, which hold the values of features.
        check_tables: whether the tables are compared with their checksums, once.
        threads: threads of the model in each worker.
        residence: the memory of the tables that all workers share; None: they map all tables.
        following: what is followed; None: the export alone is served.
        compile: whether the dense part is compiled for this machine, beside serving.
    """

    folder: Path
    doors: Doors
    limits: ServingLimits
    log: bool = True
    log_features: bool = False
    check_tables: bool = False
    threads: int = 1
    residence: Residence | None = None
    following: Following | None = None
    compile: bool = False

    def tell(self, verdict: Verdict) -> None:
        """Logs whether compiled code is used."""
        if self.log:
            AccessLog().event("compiled", **asdict(verdict))

    def access_log(self) -> AccessLog:
        """Returns the log of a worker."""
        return AccessLog(bodies=self.log_features) if self.log else AccessLog(None)

    def open_model(self, check_tables: bool) -> ServedModel:
        """Opens the export."""
        threads = self.threads if self.compile else 0
        return ServedModel.open(self.folder, residence=self.residence, check_tables=check_tables, compiled=threads)


def run_server(
    serving: Serving, accepting: socket.socket, workers: int = 1, listening: Callable[[str], None] = lambda _: None
) -> None:
    """Serves until SIGTERM or SIGINT, and then answers what was admitted.

    Args:
        serving: what is served, and how.
        accepting: the socket of :func:`listening_socket`.
        workers: processes; with one, this is it.
        listening: called with the URL once all workers listen.

    Raises:
        DataError: the folder holds no export, or a damaged one.
    """
    with contextlib.ExitStack() as stack:
        if serving.compile:
            stack.enter_context(compiling(serving.folder, serving.threads, serving.tell))
        url = serving.doors.url(accepting.getsockname()[1])
        if workers == 1 and serving.following is None:
            log = serving.access_log()
            torch.set_num_threads(serving.threads)
            app = application(serving.open_model(serving.check_tables), serving.doors, serving.limits, log)
            server = WorkerServer(app, serving.doors, serving.limits, lambda: listening(url))
            run_worker(server, accepting)
            return
        with tempfile.TemporaryDirectory(prefix="ziggurat-metrics-") as metrics:
            os.environ[MULTIPROCESS] = metrics
            try:
                if serving.following is None:
                    _Workers(serving, accepting, workers).run(lambda: listening(url))
                    return
                with followed(serving.folder, serving.following, serving.log) as updater:
                    _Workers(serving, accepting, workers, updater).run(lambda: listening(url))
            finally:
                del os.environ[MULTIPROCESS]


def listening_socket(host: str, port: int) -> socket.socket:
    """Returns a socket that listens.

    Raises:
        ConfigError: it cannot.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, proto)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(_BACKLOG)
        except BaseException:
            found.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "choose another --port; 0 takes a free one" if port else "choose another --host, such as 127.0.0.1"
        raise ConfigError(f"{host}:{port}: cannot be listened on ({reason})", hint) from None
    return found


@dataclass(slots=True)
class _Worker:
    """A worker process.

    Attributes:
        process: the process.
        pipe: the parent's end of a pipe, whose end tells the worker that the parent is gone.
        started: when it was started (monotonic seconds).
        ready: whether it has said that it is ready, and that was read.
    """

    process: ForkServerProcess
    pipe: Any
    started: float
    ready: bool = False


class _Workers:
    """The workers of a server."""

    def __init__(
        self, serving: Serving, listening: socket.socket, count: int, updater: UpdaterProcess | None = None
    ) -> None:
        self._updater = updater
        self._serving, self._listening, self._count = serving, listening, count
        self._log = AccessLog()
        self._workers: list[_Worker] = []
        self._lost: list[float] = []
        """When to start workers in place of those that died."""
        self._stopping = False

    def run(self, ready: Callable[[], None]) -> None:
        reader, writer = os.pipe()

        def stop(number: int, frame: object) -> None:
            self._stopping = True
            os.write(writer, b"x")

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._workers = [self._start(check=number == 0) for number in range(self._count)]
            for worker in self._workers:
                _wait_until_ready(worker)
            if not self._stopping:
                ready()
                if self._updater is not None:
                    self._updater.start()
            while not self._stopping:
                self._watch(reader)
        finally:
            self._stop()
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

    def _watch(self, woken: int) -> None:
        """Waits until a worker dies, and replaces it."""
        now = time.monotonic()
        due = min(self._lost, default=None)
        others = [] if self._updater is None else self._updater.sentinels
        dues = [each for each in (due, None if self._updater is None else self._updater.due) if each is not None]
        sentinels = [each.process.sentinel for each in self._workers]
        wait([woken, *sentinels, *others], max(0.0, min(dues) - now) if dues else None)
        if self._stopping:
            return
        if self._updater is not None:
            self._updater.replace_lost()
        now = time.monotonic()
        for worker in [each for each in self._workers if not each.process.is_alive()]:
            self._workers.remove(worker)
            ready, reason = _last_words(worker)
            worker.pipe.close()
            _forget(worker.process.pid or 0)
            lost = {"worker": worker.process.pid, "exit_status": worker.process.exitcode}
            self._log.event("worker_lost", **lost, **({} if reason is None else {"reason": reason}))
            self._lost.append(now if ready and now - worker.started > _AGAIN_S else now + _AGAIN_S)
        for at in [each for each in self._lost if each <= now]:
            self._lost.remove(at)
            self._workers.append(self._start())
            self._log.event("worker_started", worker=self._workers[-1].process.pid)

    def _start(self, check: bool = False) -> _Worker:
        check = check and self._serving.check_tables
        started = start_process("worker", _work, self._serving, self._listening, check)
        return _Worker(*started, time.monotonic())

    def _stop(self) -> None:
        self._listening.close()
        if self._updater is not None:
            self._updater.stop()
        for worker in self._workers:
            if worker.process.is_alive():
                os.kill(worker.process.pid or 0, signal.SIGTERM)
        until = time.monotonic() + self._serving.limits.drain_s + 5
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()


def _work(serving: Serving, listening: socket.socket, check: bool, pipe: Any) -> None:
    """A worker process: says that it is ready, or sends its error, and serves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent drains this process
    log = serving.access_log()
    watch_versions: VersionWatch | None = None
    torch.set_num_threads(serving.threads)
    try:
        model, versions = serving.open_model(check), None
        if serving.following is not None:
            versions = VersionFolder(serving.following.versions, export_digest(serving.folder))
            watch_versions = VersionWatch(versions, model, log)
            model = watch_versions.first()
        app = application(model, serving.doors, serving.limits, log, versions)
    except ZigguratError as error:
        pipe.send(error)
        return
    if watch_versions is not None:
        watch_versions.start(app.service)
    server = WorkerServer(app, serving.doors, serving.limits, lambda: pipe.send(None))

    def watch() -> None:
        try:
            pipe.recv()
        except (EOFError, OSError):
            server.drain()

    threading.Thread(target=watch, name="parent", daemon=True).start()
    run_worker(server, listening)
    if watch_versions is not None:
        watch_versions.close()


def _wait_until_ready(worker: _Worker) -> None:
    try:
        message = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        status = worker.process.exitcode
        raise DataError(
            f"a worker could not be started: it ended with status {status}", "read what it printed"
        ) from None
    if isinstance(message, ZigguratError):
        raise message
    worker.ready = True


def _last_words(worker: _Worker) -> tuple[bool, str | None]:
    """Returns whether a worker that is gone had been ready, and the error for which it could not start."""
    ready, reason = worker.ready, None
    with contextlib.suppress(EOFError, OSError):
        while worker.pipe.poll():
            message = worker.pipe.recv()
            ready, reason = (ready, str(message)) if isinstance(message, ZigguratError) else (True, reason)
    return ready, reason


def _forget(process: int) -> None:
    """Removes the gauges of a process that is gone; its counters stay in the sums."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(process)
