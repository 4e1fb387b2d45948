"""A reader: an Arrow Flight server that makes the batches requested by a ticket.

It makes a batch when the previous one is being sent, and caches a few pools of blocks. Memory is bounded by
``keep_pools`` pools and one or two batches per trainer, however slowly they pull.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import threading
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from ziggurat.core.errors import ConfigError, ZigguratError
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.stream import BlockSource, Order, PoolCache, Stream
from ziggurat.data.ingest import protocol
from ziggurat.data.ingest.protocol import REFUSED, BatchTicket, Description, ReaderIdentity
from ziggurat.data.ingest.wire import to_wire, wire_schema

KEEP_POOLS = 3
"""The pool that most trainers read, the next one, for the fastest trainer, and one for a slow trainer."""

_KEEP_STREAMS = 8
_STOP_SECONDS = 2.0
_FILE_PART_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class ServedDataset:
    """The dataset that a reader serves.

    Attributes:
        fingerprint: the fingerprint of the dataset.
        schema: the schema of its encoded rows.
        splits: name of a split -> its blocks.
        manifest: the manifest of the dataset.
        files: name relative to the dataset's folder -> path, for its small files (encoders, statistics).
        costly: whether blocks are made on demand, at much more than the cost of reading stored ones.
    """

    fingerprint: str
    schema: Schema
    splits: Mapping[str, BlockSource]
    manifest: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    costly: bool = False


class IngestServer(flight.FlightServerBase):  # pyright: ignore[reportUntypedBaseClass]
    """A server that starts on construction and serves in its own threads.

    Args:
        served: the dataset.
        host: the host to listen on.
        port: the port to listen on; 0 selects a free one, see ``self.port``.
        keep_pools: number of pools of blocks to keep in memory.

    Raises:
        ConfigError: the server cannot listen on the address.
    """

    def __init__(
        self, served: ServedDataset, host: str = "127.0.0.1", port: int = 0, keep_pools: int = KEEP_POOLS
    ) -> None:
        self._served = served
        self._identity = ReaderIdentity.of_this_process(served.fingerprint)
        self._schema = wire_schema(served.schema)
        self._pools = PoolCache(keep_pools)
        self._streams = functools.lru_cache(_KEEP_STREAMS)(self._make_stream)
        self._warming = ThreadPoolExecutor(1, thread_name_prefix="warm")
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._rows, self._busy = 0, 0
        _check_address(host, port)
        try:
            super().__init__((host, port))
        except pa.ArrowException as error:
            raise ConfigError(
                f"{host}:{port}: cannot be listened on ({error})", "choose another --host or --port"
            ) from None

    @property
    def figures(self) -> tuple[int, int]:
        """The number of rows served so far, and the number of tickets being served now."""
        with self._lock:
            return self._rows, self._busy

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        match action.type:
            case protocol.DESCRIBE:
                return iter([Description(self._identity, self._served.costly).to_bytes()])
            case protocol.WARM:
                ticket = BatchTicket.from_bytes(action.body.to_pybytes())
                stream = self._stream(ticket)
                self._warming.submit(stream.pool, stream.pool_at(ticket.ranges[0].start))
                return iter([])
            case protocol.FILES:
                return self._files()
            case _:
                raise flight.FlightServerError(f"unknown action {action.type!r}")

    def do_get(self, context: Any, ticket: Any) -> Any:
        parsed = protocol.parse_ticket(ticket.ticket)
        if isinstance(parsed, BatchTicket):
            return flight.GeneratorStream(self._schema, self._batches(self._stream(parsed), parsed))
        self._check(parsed.identity)
        block = self._served.splits[parsed.split].read(parsed.block)
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(block.schema, [block]))

    def stop(self) -> None:
        """Stops serving. Current answers end after their next batch, and after two seconds in any case."""
        self._stopping.set()
        self._warming.shutdown(wait=False, cancel_futures=True)
        thread = threading.Thread(target=self.shutdown, daemon=True)
        thread.start()
        thread.join(_STOP_SECONDS)

    def _check(self, identity: ReaderIdentity) -> None:
        if identity != self._identity:
            raise flight.FlightServerError(f"asked for {identity}, this serves {self._identity}", REFUSED)

    def _files(self) -> Iterator[bytes]:
        yield b"manifest.json\0" + json.dumps(dict(self._served.manifest), indent=2).encode()
        for name, path in self._served.files.items():
            with path.open("rb") as file:
                yield name.encode() + b"\0"
                while part := file.read(_FILE_PART_BYTES):
                    yield name.encode() + b"\0" + part

    def _stream(self, ticket: BatchTicket) -> Stream:
        self._check(ticket.identity)
        return self._streams(ticket.split, ticket.order)

    def _make_stream(self, split: str, order: Order) -> Stream:
        return Stream(self._served.splits[split], self._served.schema, order, self._pools, split)

    def _batches(self, stream: Stream, ticket: BatchTicket) -> Iterator[pa.RecordBatch]:
        with self._count_ticket():
            for wanted in ticket.ranges:
                if self._stopping.is_set():
                    raise flight.FlightUnavailableError("the reader is shutting down")
                assert 0 <= wanted.start < wanted.stop <= stream.rows, (wanted, stream.rows)
                try:
                    batch = stream.batch(wanted.start, wanted.stop)
                except ZigguratError as error:
                    raise flight.FlightServerError(str(error)) from error
                yield to_wire(batch, self._schema)
                with self._lock:
                    self._rows += len(wanted)

    @contextlib.contextmanager
    def _count_ticket(self) -> Generator[None]:
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1


def _check_address(host: str, port: int) -> None:
    """Validates that the address can be listened on, with clearer errors than those of the library."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "choose another --port; 0 takes a free one" if port else "choose another --host, such as 127.0.0.1"
        raise ConfigError(f"{host}:{port}: cannot be listened on ({reason})", hint) from None
