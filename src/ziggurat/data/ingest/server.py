"""One reader: an Arrow Flight server that makes the batches that a ticket asks for.

It makes a batch when the one before it is on its way, and keeps a few pools of blocks: memory is bounded by
``keep_pools`` pools and a batch or two for each trainer, however slowly they pull.
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
"""The pool that trainers read, the one that the quickest of them has begun, and one for who lags behind."""

_KEEP_STREAMS = 8
_END_SECONDS = 2.0
_FILE_PART_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class Served:
    """What a reader serves.

    Attributes:
        fingerprint: of the dataset.
        schema: of its encoded rows.
        splits: name -> its blocks.
        manifest: of the dataset.
        files: name in the dataset's folder -> path of each small file in it (encoders, statistics).
        costly: blocks are made when asked for, at much more than the cost of reading them.
    """

    fingerprint: str
    schema: Schema
    splits: Mapping[str, BlockSource]
    manifest: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    costly: bool = False


class IngestServer(flight.FlightServerBase):  # pyright: ignore[reportUntypedBaseClass]
    """Serves as soon as it is made, in threads of its own.

    Args:
        served: the dataset.
        host: to listen on.
        port: likewise; 0 takes a free one, see ``self.port``.
        keep_pools: pools of blocks kept in memory.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, served: Served, host: str = "127.0.0.1", port: int = 0, keep_pools: int = KEEP_POOLS) -> None:
        self._served = served
        self._identity = ReaderIdentity.here(served.fingerprint)
        self._schema = wire_schema(served.schema)
        self._pools = PoolCache(keep_pools)
        self._streams = functools.lru_cache(_KEEP_STREAMS)(self._make_stream)
        self._warming = ThreadPoolExecutor(1, thread_name_prefix="warm")
        self._lock = threading.Lock()
        self._ending = threading.Event()
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
        """Rows served so far, and tickets being served at this moment."""
        with self._lock:
            return self._rows, self._busy

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        match action.type:
            case protocol.DESCRIBE:
                return iter([Description(self._identity, self._served.costly).to_bytes()])
            case protocol.WARM:
                asked = BatchTicket.from_bytes(action.body.to_pybytes())
                stream = self._stream(asked)
                self._warming.submit(stream.pool, stream.pool_at(asked.ranges[0].start))
                return iter([])
            case protocol.FILES:
                return self._files()
            case _:
                raise flight.FlightServerError(f"unknown action {action.type!r}")

    def do_get(self, context: Any, ticket: Any) -> Any:
        asked = protocol.asked(ticket.ticket)
        if isinstance(asked, BatchTicket):
            return flight.GeneratorStream(self._schema, self._batches(self._stream(asked), asked))
        self._check(asked.identity)
        block = self._served.splits[asked.split].read(asked.block)
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(block.schema, [block]))

    def end(self) -> None:
        """Stop serving; what is being served ends with its next batch, and after two seconds in any case."""
        self._ending.set()
        self._warming.shutdown(wait=False, cancel_futures=True)
        thread = threading.Thread(target=self.shutdown, daemon=True)
        thread.start()
        thread.join(_END_SECONDS)

    def _check(self, asking: ReaderIdentity) -> None:
        if asking != self._identity:
            raise flight.FlightServerError(f"asked for {asking}, this serves {self._identity}", REFUSED)

    def _files(self) -> Iterator[bytes]:
        yield b"manifest.json\0" + json.dumps(dict(self._served.manifest), indent=2).encode()
        for name, path in self._served.files.items():
            with path.open("rb") as file:
                yield name.encode() + b"\0"
                while part := file.read(_FILE_PART_BYTES):
                    yield name.encode() + b"\0" + part

    def _stream(self, asked: BatchTicket) -> Stream:
        self._check(asked.identity)
        return self._streams(asked.split, asked.order)

    def _make_stream(self, split: str, order: Order) -> Stream:
        return Stream(self._served.splits[split], self._served.schema, order, self._pools, split)

    def _batches(self, stream: Stream, asked: BatchTicket) -> Iterator[pa.RecordBatch]:
        with self._counted():
            for wanted in asked.ranges:
                if self._ending.is_set():
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
    def _counted(self) -> Generator[None]:
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1


def _check_address(host: str, port: int) -> None:
    """Refuse an address that the library below would refuse in words of its own."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "choose another --port; 0 takes a free one" if port else "choose another --host, such as 127.0.0.1"
        raise ConfigError(f"{host}:{port}: cannot be listened on ({reason})", hint) from None
