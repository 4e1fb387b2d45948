"""A reader: an Arrow Flight server that makes the batches requested by a ticket.

It makes a batch when the previous one is being sent, and caches a few pools of blocks. Memory is bounded by
``keep_pools`` pools, those being read, and one or two batches per trainer, however slowly they pull. What a client may
ask for, and how the work is shared among clients, is decided here and in :mod:`ziggurat.network`.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ziggurat.core.digests import digest, digest_of_file
from ziggurat.core.errors import DataError, shorten
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.dataset import BLOCK_ROWS
from ziggurat.data.encoded.stream import BlockSource, Order, PoolCache, Stream
from ziggurat.data.ingest import protocol
from ziggurat.data.ingest.protocol import (
    REFUSED,
    BatchTicket,
    BlockTicket,
    Description,
    FileList,
    ListedFile,
    ReaderIdentity,
    Request,
)
from ziggurat.data.ingest.wire import row_bytes, to_wire, wire_schema
from ziggurat.network.access import Access
from ziggurat.network.flight_server import Call, GuardedServer
from ziggurat.network.limits import Limits
from ziggurat.network.peer import Peer
from ziggurat.network.refusals import Refused
from ziggurat.network.reputation import Reputation
from ziggurat.network.turns import Turns

KEEP_POOLS = 3
"""The pool that most trainers read, the next one, for the fastest trainer, and one for a slow trainer."""

_KEEP_STREAMS = 8
_READING = 2
"""Pools that are read at a time."""
_MAX_WARMING = 4
"""Requests to prepare a pool that wait at a time; another one is dropped, which costs its trainer time alone."""
_POOL_BLOCKS = 8
_POOL_ROWS = _POOL_BLOCKS * BLOCK_ROWS
"""The most rows of a pool that has more blocks than usual."""
_FILE_PART_BYTES = 2**20


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


class IngestServer(GuardedServer):
    """A reader that starts on construction and serves in its own threads.

    Args:
        served: the dataset.
        host: the host to listen on.
        port: the port to listen on; 0 selects a free one, see ``self.port``.
        keep_pools: number of pools of blocks to keep in memory.
        access: what is demanded of trainers.
        limits: what they may take.

    Raises:
        ConfigError: the server cannot listen on the address, or other machines could reach it without token or TLS.
    """

    def __init__(
        self,
        served: ServedDataset,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_pools: int = KEEP_POOLS,
        access: Access = Access(),  # noqa: B008 - immutable
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> None:
        self._served = served
        self._identity = ReaderIdentity.of_this_process(served.fingerprint)
        self._schema = wire_schema(served.schema)
        self._row_bytes = row_bytes(served.schema)
        self._pools = PoolCache(keep_pools)
        self._streams_of = functools.lru_cache(_KEEP_STREAMS)(self._make_stream)
        self._warming = ThreadPoolExecutor(1, thread_name_prefix="warm")
        self._warming_places = threading.BoundedSemaphore(_MAX_WARMING)
        self._lock = threading.Lock()
        self._rows = 0
        reputation = Reputation()
        self._reading = Turns(_READING, reputation)
        super().__init__(host, port, access, limits, len(os.sched_getaffinity(0)), reputation)

    @property
    def figures(self) -> tuple[int, int]:
        """The number of rows served so far, and the number of requests being answered now."""
        return self._rows, self.open_streams

    def answer_action(self, call: Call) -> Iterator[bytes]:
        match call.name:
            case protocol.DESCRIBE:
                return iter([Description(self._identity, self._served.costly).to_bytes()])
            case protocol.WARM:
                self._warm(call)
                return iter([])
            case protocol.FILES:
                self._request(call)
                return self._files()
            case _:
                raise Refused("bad", f"the action {shorten(call.name)} is not offered")

    def answer_get(self, call: Call) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        try:
            ticket = self._request(call).ticket()
        except DataError as error:
            raise Refused("bad", error.problem) from None
        if isinstance(ticket, BatchTicket):
            return self._schema, self._batches(self._stream(ticket), ticket, call)
        return self._block(ticket, call)

    def stop(self) -> None:
        self._warming.shutdown(wait=False, cancel_futures=True)
        super().stop()

    def _request(self, call: Call) -> Request:
        """Parses a request; its identity must be that of this reader."""
        try:
            request = Request(call.request)
        except DataError as error:
            raise Refused("bad", error.problem) from None
        if request.identity != self._identity:
            raise Refused("foreign", f"asked for {request.identity}, this serves {self._identity}", REFUSED)
        return request

    def _warm(self, call: Call) -> None:
        try:
            ticket = self._request(call).batch_ticket()
        except DataError as error:
            raise Refused("bad", error.problem) from None
        stream = self._stream(ticket)
        if self._served.costly and self._warming_places.acquire(blocking=False):
            self._warming.submit(self._make_pool, stream, ticket.ranges[0].start, call.peer)

    def _load(self, stream: Stream, number: int, peer: Peer) -> None:
        """Brings a pool to the cache; while one is read, batches of others can be made."""
        with self._reading.turn(peer):
            stream.pool(number)

    def _make_pool(self, stream: Stream, position: int, peer: Peer) -> None:
        try:
            self._load(stream, stream.pool_at(position), peer)
        except DataError as error:
            self.refusals.add(peer, "failed", error.problem)
        finally:
            self._warming_places.release()

    def _files(self) -> Iterator[bytes]:
        manifest = json.dumps(dict(self._served.manifest), indent=2).encode()
        listed = [ListedFile("manifest.json", len(manifest), digest(manifest))]
        for name, path in self._served.files.items():
            listed.append(ListedFile(name, path.stat().st_size, digest_of_file(path)))
        yield FileList(tuple(listed)).to_bytes()
        for first in range(0, len(manifest), _FILE_PART_BYTES):
            yield manifest[first : first + _FILE_PART_BYTES]
        for path in self._served.files.values():
            with path.open("rb") as file:
                while part := file.read(_FILE_PART_BYTES):
                    yield part

    def _split(self, name: str) -> BlockSource:
        split = self._served.splits.get(name)
        if split is None:
            raise Refused("bad", f"the split {shorten(name)} is not served; {', '.join(self._served.splits)} are")
        return split

    def _block(self, ticket: BlockTicket, call: Call) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Returns the schema of a block, and the block as the only batch."""
        split = self._split(ticket.split)
        sizes = split.sizes
        if not 0 <= ticket.block < len(sizes):
            raise Refused(
                "bad", f"the ticket asks for block {shorten(ticket.block)} of {len(sizes)} of split {ticket.split}"
            )
        with call.making(sizes[ticket.block] * self._row_bytes):
            block = split.read(ticket.block)
        call.made(block.nbytes)
        return block.schema, iter([block])

    def _stream(self, ticket: BatchTicket) -> Stream:
        sizes = self._split(ticket.split).sizes
        largest = max(sizes, default=0)
        if ticket.order.pool_blocks > _POOL_BLOCKS and min(ticket.order.pool_blocks, len(sizes)) * largest > _POOL_ROWS:
            raise Refused(
                "bad",
                f"the ticket asks for pools of {shorten(ticket.order.pool_blocks)} blocks; "
                f"{max(_POOL_BLOCKS, _POOL_ROWS // largest)} are allowed",
            )
        stream = self._streams_of(ticket.split, ticket.order)
        for wanted in ticket.ranges:
            if wanted.stop > stream.rows:
                raise Refused(
                    "bad", f"the ticket asks for rows {wanted.start} to {wanted.stop}; the split has {stream.rows:,}"
                )
        return stream

    def _make_stream(self, split: str, order: Order) -> Stream:
        return Stream(self._served.splits[split], self._served.schema, order, self._pools, split)

    def _batches(self, stream: Stream, ticket: BatchTicket, call: Call) -> Iterator[pa.RecordBatch]:
        loaded = -1
        for wanted in ticket.ranges:
            number = stream.pool_at(wanted.start)
            if number != loaded:
                self._load(stream, number, call.peer)
                loaded = number
            with call.making(len(wanted) * self._row_bytes):
                if call.cancelled:
                    return
                message = to_wire(stream.batch(wanted.start, wanted.stop), self._schema)
            call.made(message.nbytes)
            yield message
            with self._lock:
                self._rows += len(wanted)
