"""Runs the readers of one machine, one process each. They end with their parent, and a lost one is restarted."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self

import torch

from ziggurat.core.errors import DataError, ZigguratError
from ziggurat.core.progress import Progress
from ziggurat.data.ingest.server import IngestServer, ServedDataset
from ziggurat.network.access import Access, check_exposure
from ziggurat.network.freed_memory import return_freed_memory
from ziggurat.network.limits import Limits

_FIGURES_SECONDS = 1.0
_RESTART_SECONDS = 5.0
"""Seconds before another attempt to restart a reader."""
_STOP_SECONDS = 5.0


@dataclass(slots=True)
class _Reader:
    """A reader process and its state.

    Attributes:
        port: the port it listens on.
        process: the process.
        pipe: the parent's end of the pipe to the process.
        rows, busy: the last :attr:`IngestServer.figures` received.
        lines: lines about refused requests that were received and not shown.
        rows_before_restart: rows served by its lost predecessors.
        restart_at: when to restart it (monotonic seconds) if it is lost, else None.
    """

    port: int
    process: SpawnProcess
    pipe: Any
    rows: int = 0
    busy: int = 0
    rows_before_restart: int = 0
    restart_at: float | None = None
    lines: list[str] = field(default_factory=list[str])


class ReaderProcesses:
    """Context manager that runs ``count`` readers; their addresses are known once it is entered.

    Args:
        open_served: opens the dataset to serve in each process; must be picklable.
        host, port: where to listen; the readers take consecutive ports, or free ones if ``port`` is 0.
        count: the number of processes.
        access: what is demanded of trainers.
        limits: what they may take.

    Raises:
        ConfigError: other machines could reach the readers without token or TLS.
        ZigguratError: on entering, if a reader cannot be started.
    """

    def __init__(
        self,
        open_served: Callable[[], ServedDataset],
        host: str,
        port: int,
        count: int,
        access: Access = Access(),  # noqa: B008 - immutable
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> None:
        check_exposure(host, access)
        self._open_served, self._host, self._access, self._limits = open_served, host, access, limits
        self._ports = [port + number if port else 0 for number in range(count)]
        self._readers: list[_Reader] = []

    @property
    def addresses(self) -> list[str]:
        """The addresses at which trainers reach the readers."""
        host = socket.gethostname() if self._host in {"0.0.0.0", "::"} else self._host
        host = f"[{host}]" if ":" in host else host
        scheme = "grpc" if self._access.certificate is None else "grpc+tls"
        return [f"{scheme}://{host}:{each.port}" for each in self._readers]

    @property
    def processes(self) -> list[int]:
        """The process ids of the readers, in the order of their addresses."""
        return [each.process.pid or 0 for each in self._readers]

    def __enter__(self) -> Self:
        try:
            for port in self._ports:
                self._readers.append(self._start(port))
            for reader in self._readers:
                reader.port = _wait_until_ready(reader)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def watch(self, progress: Progress) -> None:
        """Shows progress and restarts lost readers, until an exception, such as one from a signal, ends it."""
        progress.start("serve", None, "rows")
        try:
            while True:
                wait([each.pipe for each in self._readers if each.restart_at is None], _FIGURES_SECONDS)
                for reader, address in zip(self._readers, self.addresses, strict=True):
                    if reader.restart_at is None and not _receive_figures(reader):
                        progress.note(f"reader {address}: {_exit_reason(reader.process)}; starting it again")
                        reader.restart_at = 0.0
                    for line in reader.lines:
                        progress.note(f"reader {address}: {line}")
                    reader.lines.clear()
                    if reader.restart_at is not None and time.monotonic() >= reader.restart_at:
                        self._restart(reader, address, progress)
                progress.advance(sum(each.rows_before_restart + each.rows for each in self._readers), pulls=self._busy)
        finally:
            progress.finish()

    @property
    def _busy(self) -> int:
        return sum(each.busy for each in self._readers)

    def _start(self, port: int) -> _Reader:
        context = get_context("spawn")
        our_end, their_end = context.Pipe()
        arguments = (self._open_served, self._host, port, self._access, self._limits, their_end)
        process = context.Process(target=_serve, args=arguments, name="reader")
        process.start()
        their_end.close()
        return _Reader(port, process, our_end)

    def _restart(self, reader: _Reader, address: str, progress: Progress) -> None:
        reader.rows_before_restart, reader.rows, reader.busy = reader.rows_before_restart + reader.rows, 0, 0
        new = self._start(reader.port)
        reader.process, reader.pipe = new.process, new.pipe
        try:
            _wait_until_ready(reader)
            reader.restart_at = None
        except ZigguratError as error:
            progress.note(f"reader {address}: {error.problem}; trying again in {_RESTART_SECONDS:g} s")
            reader.restart_at = time.monotonic() + _RESTART_SECONDS

    def _stop(self) -> None:
        for reader in self._readers:
            reader.pipe.close()  # which makes the reader stop
        for reader in self._readers:
            reader.process.join(_STOP_SECONDS)
            if reader.process.is_alive():
                reader.process.kill()
                reader.process.join()


def _serve(
    open_served: Callable[[], ServedDataset], host: str, port: int, access: Access, limits: Limits, pipe: Any
) -> None:
    """The reader process: sends its port or its error, then its figures every second, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent stops this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # as in embeddings
    torch.set_num_threads(1)  # several trainers already keep several threads busy
    return_freed_memory()
    try:
        server = IngestServer(open_served(), host, port, access=access, limits=limits)
    except ZigguratError as error:
        pipe.send(error)
        return
    try:
        pipe.send(server.port)
        while not pipe.poll(_FIGURES_SECONDS):
            pipe.send((*server.figures, server.refusals.take()))
    except OSError:  # the parent is gone
        pass
    server.stop()
    os._exit(0)  # the library's threads may still wait for a trainer that does not read


def _wait_until_ready(reader: _Reader) -> int:
    """Waits until a reader listens; returns its port."""
    try:
        message = reader.pipe.recv()
    except EOFError:
        reader.process.join()
        raise DataError(
            f"a reader could not be started: it {_exit_reason(reader.process)}", "read what it printed"
        ) from None
    if isinstance(message, ZigguratError):
        reader.process.join()
        raise message
    return message


def _receive_figures(reader: _Reader) -> bool:
    """Receives the figures that a reader has sent; returns False if the reader is gone."""
    try:
        while reader.pipe.poll():
            reader.rows, reader.busy, lines = reader.pipe.recv()
            reader.lines += lines
    except (EOFError, OSError):
        reader.process.join()
        return False
    return True


def _exit_reason(process: SpawnProcess) -> str:
    code = process.exitcode or 0
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
