"""The readers of one machine: a process each. They end with their parent, and one that is lost is started again."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self

import torch

from ziggurat.core.errors import DataError, ZigguratError
from ziggurat.core.progress import Progress
from ziggurat.data.ingest.server import IngestServer, Served

_FIGURES_SECONDS = 1.0
_AGAIN_SECONDS = 5.0
"""A reader that cannot be started again is tried again after this."""
_END_SECONDS = 5.0


@dataclass(slots=True)
class _Reader:
    """A process and what is known of it.

    Attributes:
        pipe: our end of what it speaks through.
        rows, busy: as in :attr:`IngestServer.figures`; ``before`` holds the rows of its lost predecessors.
        again: when to start it again, where it is lost.
    """

    port: int
    process: SpawnProcess
    pipe: Any
    rows: int = 0
    busy: int = 0
    before: int = 0
    again: float | None = None


class ReaderProcesses:
    """Within the context, ``count`` readers serve; the addresses are known once it is entered.

    Args:
        open_served: opens what they serve, in each process; can be pickled.
        host, port: to listen on; the readers take consecutive ports, or free ones where ``port`` is 0.
        count: of processes.

    Raises:
        ZigguratError: on entering, what kept a reader from starting.
    """

    def __init__(self, open_served: Callable[[], Served], host: str, port: int, count: int) -> None:
        self._open_served, self._host = open_served, host
        self._ports = [port + number if port else 0 for number in range(count)]
        self._readers: list[_Reader] = []

    @property
    def addresses(self) -> list[str]:
        """Where trainers reach them."""
        host = socket.gethostname() if self._host in {"0.0.0.0", "::"} else self._host
        host = f"[{host}]" if ":" in host else host
        return [f"grpc://{host}:{each.port}" for each in self._readers]

    @property
    def processes(self) -> list[int]:
        """The readers' process ids, in the order of their addresses."""
        return [each.process.pid or 0 for each in self._readers]

    def __enter__(self) -> Self:
        try:
            for port in self._ports:
                self._readers.append(self._start(port))
            for reader in self._readers:
                reader.port = _ready(reader)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def watch(self, progress: Progress) -> None:
        """Show what is served, and start lost readers again, until an exception such as a signal's ends it."""
        progress.start("serve", None, "rows")
        try:
            while True:
                wait([each.pipe for each in self._readers if each.again is None], _FIGURES_SECONDS)
                for reader, address in zip(self._readers, self.addresses, strict=True):
                    if reader.again is None and not _hear(reader):
                        progress.note(f"reader {address}: {_ended(reader.process)}; starting it again")
                        reader.again = 0.0
                    if reader.again is not None and time.monotonic() >= reader.again:
                        self._start_again(reader, address, progress)
                progress.advance(sum(each.before + each.rows for each in self._readers), pulls=self._busy)
        finally:
            progress.finish()

    @property
    def _busy(self) -> int:
        return sum(each.busy for each in self._readers)

    def _start(self, port: int) -> _Reader:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self._open_served, self._host, port, theirs), name="reader")
        process.start()
        theirs.close()
        return _Reader(port, process, ours)

    def _start_again(self, reader: _Reader, address: str, progress: Progress) -> None:
        reader.before, reader.rows, reader.busy = reader.before + reader.rows, 0, 0
        fresh = self._start(reader.port)
        reader.process, reader.pipe = fresh.process, fresh.pipe
        try:
            _ready(reader)
            reader.again = None
        except ZigguratError as error:
            progress.note(f"reader {address}: {error.problem}; trying again in {_AGAIN_SECONDS:g} s")
            reader.again = time.monotonic() + _AGAIN_SECONDS

    def _end(self) -> None:
        for reader in self._readers:
            reader.pipe.close()  # which they take for the end
        for reader in self._readers:
            reader.process.join(_END_SECONDS)
            if reader.process.is_alive():
                reader.process.kill()
                reader.process.join()


def _serve(open_served: Callable[[], Served], host: str, port: int, pipe: Any) -> None:
    """A reader process: tells its port or its failure, then its figures every second, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # as in embeddings
    torch.set_num_threads(1)  # threads gather for several trainers as it is
    try:
        server = IngestServer(open_served(), host, port)
    except ZigguratError as error:
        pipe.send(error)
        return
    try:
        pipe.send(server.port)
        while not pipe.poll(_FIGURES_SECONDS):
            pipe.send(server.figures)
    except OSError:  # the parent is gone
        pass
    server.end()
    os._exit(0)  # the library's threads may still hold a trainer that does not read


def _ready(reader: _Reader) -> int:
    """The port of a reader that has begun to listen."""
    try:
        said = reader.pipe.recv()
    except EOFError:
        reader.process.join()
        raise DataError(f"a reader could not be started: it {_ended(reader.process)}", "read what it printed") from None
    if isinstance(said, ZigguratError):
        reader.process.join()
        raise said
    return said


def _hear(reader: _Reader) -> bool:
    """Take in the figures that a reader has sent; False where it is gone."""
    try:
        while reader.pipe.poll():
            reader.rows, reader.busy = reader.pipe.recv()
    except (EOFError, OSError):
        reader.process.join()
        return False
    return True


def _ended(process: SpawnProcess) -> str:
    code = process.exitcode or 0
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
