"""The loader of a trainer that pulls from readers. It yields the batches of the local loader, bit for bit."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ziggurat.core.batch import Batch
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.columns import Rows, concatenate
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.ingest.connection import Connection
from ziggurat.data.ingest.protocol import MAX_RANGES, MAX_ROWS, ReaderIdentity
from ziggurat.data.ingest.pull import Pull, Segment
from ziggurat.network.access import Credentials

SEGMENT_ROWS = 32_768
"""Large enough to make the cost of a request negligible, small enough to request again cheaply."""

_SPARE_SEGMENTS = 2
_REPORTED_WAIT_SECONDS, _REPORTED_WAIT_SHARE = 5.0, 0.1
"""Waiting time, in seconds and as a share of the epoch, above which it is reported."""


class IngestLoader:
    """Pulls the batches that ``local`` would make.

    It holds at most one segment per reader plus two, however fast the readers are.

    Args:
        local: determines the rows of each step; its data need not exist.
        readers: the addresses of the readers.
        split: the split that ``local`` iterates over.
        fingerprint: the fingerprint of the dataset.
        schema: the schema of the dataset.
        seconds: how long all readers may be silent before an error is raised; one answer may take half of this time.
        segment_rows: number of rows requested together, or one batch if that is larger; at most a million.
        note: called with a message when a reader is lost or comes back, and when an epoch waited long for readers.
        credentials: what to show the readers, and by what to check them.

    Raises:
        ConfigError: an address is malformed, or the token would travel unencrypted.
    """

    def __init__(
        self,
        local: Loader,
        readers: Sequence[str],
        split: str,
        fingerprint: str,
        schema: Schema,
        *,
        seconds: float = 60.0,
        segment_rows: int = SEGMENT_ROWS,
        note: Callable[[str], None] = lambda message: None,
        credentials: Credentials = Credentials(),  # noqa: B008 - immutable
    ) -> None:
        self._local, self._split, self._schema = local, split, schema
        self._identity = ReaderIdentity.of_this_process(fingerprint)
        self._seconds, self._segment_rows, self._note = seconds, min(segment_rows, MAX_ROWS), note
        self._credentials = credentials
        self._readers = list(dict.fromkeys(each.address for each in map(self._connection, readers)))
        self._idle: dict[str, Connection] = {}
        """Connections between epochs. Readers under attack prefer those from which they know the trainer."""
        self.waited_seconds = 0.0
        """How long the consumer waited for batches, over all epochs that ended or were abandoned."""

    @property
    def rows(self) -> int:
        """Number of rows in an epoch, over all ranks."""
        return self._local.rows

    @property
    def steps_per_epoch(self) -> int:
        return self._local.steps_per_epoch

    def epoch(self, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        """Yields the remaining batches of ``start.epoch``, each with the cursor after it.

        Raises:
            ReadersLost: no reader has sent anything for the permitted time.
            DataError: a reader serves another dataset, has another version, refuses this trainer, or sends something
                other than was asked for.
        """
        connections = [self._idle.pop(address, None) or self._connection(address) for address in self._readers]
        pools = self._local.stream(start.epoch).starts
        pull = Pull(
            connections,
            self._split,
            self._local.order(start.epoch),
            self._segments(start, pools),
            pools[:-1].tolist(),
            len(connections) + _SPARE_SEGMENTS,
            self._seconds,
            self._note,
        )
        started = time.monotonic()
        try:
            with contextlib.closing(pull.batches()) as batches:
                for step in self._local.steps(start):
                    parts = list(itertools.islice(batches, len(_parts(step.rows, pools))))
                    batch = parts[0] if len(parts) == 1 else concatenate(parts, self._schema)
                    yield replace(batch, largest=step.largest), step.next_cursor
            self._report_waiting(pull.waited_seconds, time.monotonic() - started)
        finally:
            self.waited_seconds += pull.waited_seconds
            self._idle |= {each.address: each for each in pull.reusable}

    def _report_waiting(self, waited: float, elapsed: float) -> None:
        if waited > max(_REPORTED_WAIT_SECONDS, _REPORTED_WAIT_SHARE * elapsed):
            self._note(f"waited {waited:.0f} s of this epoch's {elapsed:.0f} s for readers: more of them would help")

    def _segments(self, start: Cursor, pools: Rows) -> Iterator[Segment]:
        """Splits the rest of an epoch into parts that are each within one pool, and groups these into segments."""
        pending: deque[range] = deque()
        number, rows, pool = 0, 0, -1
        for step in self._local.steps(start):
            for part in _parts(step.rows, pools):
                part_pool = int(np.searchsorted(pools, part.start, side="right")) - 1
                full = rows + len(part) > self._segment_rows or len(pending) == MAX_RANGES
                if pending and (part_pool != pool or full):
                    yield Segment(number, pool, pending)
                    pending, number, rows = deque(), number + 1, 0
                pending.append(part)
                rows, pool = rows + len(part), part_pool
        if pending:
            yield Segment(number, pool, pending)

    def _connection(self, address: str) -> Connection:
        return Connection(address, self._identity, self._schema, self._seconds / 2, self._credentials)


def _parts(rows: range, pools: Rows) -> list[range]:
    """Splits ``rows`` where a pool begins, so that a reader need not make another pool for a few rows of it.

    The parts are no larger than a ticket allows.
    """
    pool_starts = pools[np.searchsorted(pools, rows.start, side="right") : np.searchsorted(pools, rows.stop)].tolist()
    bounds = [rows.start, *pool_starts, rows.stop]
    return [
        range(start, min(start + MAX_ROWS, stop))
        for first, stop in itertools.pairwise(bounds)
        for start in range(first, stop, MAX_ROWS)
    ]
