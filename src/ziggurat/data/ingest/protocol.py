"""The messages between trainers and readers: their identities, and which ranges of which stream are requested.

Readers keep no state about their trainers. A ticket names a stream and ranges of it, one per batch. The same ticket
gives the same batches from every reader, every time. So the trainer's cursor alone determines what was consumed, and
the ranges that a lost reader has not delivered are requested from another.

Neither side trusts the other: everything received is checked here, value by value, before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import numpy as np

from ziggurat._version import __version__
from ziggurat.core.errors import DataError, shorten
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import Damage, as_object, parse_json
from ziggurat.data.encoded.stream import Order

PROTOCOL = 2
DESCRIBE = "describe"
"""The action that returns the reader's :class:`Description`."""
WARM = "warm"
"""The action whose body is a ticket; the reader prepares the pool in which the ticket's first range begins."""
FILES = "files"
"""The action that returns the dataset's small files. Its body is an identity. The first result is a :class:`FileList`,
the others are the contents of the files, one after the other, in parts; a part belongs to one file."""
REFUSED = b"refused"
"""The detail of a permanent error: reader and trainer differ in dataset or version, so a retry is useless."""

MAX_RANGES = 4096
"""Ranges in a ticket."""
MAX_ROWS = 2**20
"""Rows in all ranges of a ticket."""
_MAX_TEXT = 256
_MAX_SEED = 2**64
_MAX_EPOCH = 2**31


@dataclass(frozen=True, slots=True)
class ReaderIdentity:
    """What must be equal on reader and trainer for a range to mean the same rows in the same order.

    Attributes:
        fingerprint: fingerprint of the dataset.
        ziggurat, numpy: versions; ziggurat determines the stream, numpy its random numbers.
        protocol: version of tickets and messages.
    """

    fingerprint: str
    ziggurat: str
    numpy: str
    protocol: int

    @classmethod
    def of_this_process(cls, fingerprint: str) -> Self:
        """Returns the identity of this process, for the dataset with this fingerprint."""
        return cls(fingerprint, __version__, np.__version__, PROTOCOL)

    def __str__(self) -> str:
        versions = f"ziggurat {self.ziggurat[:20]}, numpy {self.numpy[:20]}, protocol {self.protocol}"
        return f"dataset {self.fingerprint[:12]} ({versions})"

    def to_bytes(self) -> bytes:
        return json.dumps({"identity": asdict(self)}).encode()


@dataclass(frozen=True, slots=True)
class Description:
    """A reader's description of itself.

    Attributes:
        identity: the identity of the reader.
        costly: whether its blocks are made from raw logs, so that no two readers should make the same ones.
    """

    identity: ReaderIdentity
    costly: bool

    @classmethod
    def from_bytes(cls, data: bytes, where: str, damage: Damage) -> Self:
        """Parses what a reader sent.

        Raises:
            ZigguratError: of class ``damage.error``: it is no description.
        """
        found = declared(cls, _object(data, where, damage), where, damage)
        _check_identity_texts(found.identity, where, damage)
        return found

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A small file of a dataset: its name, size and checksum (XXH3-128)."""

    name: str
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class FileList:
    """The small files that a reader will send, in this order."""

    files: tuple[ListedFile, ...]

    @classmethod
    def from_bytes(cls, data: bytes, where: str, damage: Damage) -> Self:
        """Parses what a reader sent.

        Raises:
            ZigguratError: of class ``damage.error``: it is no list of files.
        """
        return declared(cls, _object(data, where, damage), where, damage)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The part of a ticket besides its identity that asks for batches."""

    split: str
    order: Order
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """The part of a ticket besides its identity that asks for a block."""

    split: str
    block: int


@dataclass(frozen=True, slots=True)
class BatchTicket:
    """A request for batches.

    Attributes:
        identity: the identity of the requesting process.
        split: the split of the dataset.
        order: the order of the stream.
        ranges: ranges of rows of the stream, one per batch.
    """

    identity: ReaderIdentity
    split: str
    order: Order
    ranges: Sequence[range]

    def to_bytes(self) -> bytes:
        values = {
            "identity": asdict(self.identity),
            "split": self.split,
            "order": asdict(self.order),
            "ranges": [[each.start, each.stop] for each in self.ranges],
        }
        return json.dumps(values).encode()


@dataclass(frozen=True, slots=True)
class BlockTicket:
    """A request for one encoded block of a prepared split, for trainers that store the rows they evaluate on."""

    identity: ReaderIdentity
    split: str
    block: int

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Request:
    """A ticket or the body of an action, as a reader received it. Its parts are parsed in turn, the identity first.

    Args:
        data: the received bytes.

    Raises:
        DataError: it is not a JSON object with an identity.
    """

    def __init__(self, data: bytes) -> None:
        self._values = _object(data, _TICKET, _MALFORMED)
        self.identity = declared(_Identified, self._values, _TICKET, _MALFORMED).identity
        _check_identity_texts(self.identity, _TICKET, _MALFORMED)

    def ticket(self) -> BatchTicket | BlockTicket:
        """Returns the ticket.

        Raises:
            DataError: a value is missing, or of another type or size than allowed.
        """
        if "block" in self._values:
            block = declared(_Block, self._values, _TICKET, _MALFORMED)
            return BlockTicket(self.identity, block.split, block.block)
        return self.batch_ticket()

    def batch_ticket(self) -> BatchTicket:
        """Returns the ticket, which must ask for batches.

        Raises:
            DataError: as :meth:`ticket`.
        """
        ranges = self._values.get("ranges")
        if isinstance(ranges, list) and len(ranges) > MAX_RANGES:  # before each of them is looked at
            raise _MALFORMED.of(_TICKET, f"has {len(ranges):,} ranges; 1 to {MAX_RANGES:,} are allowed")
        if isinstance(ranges, list):
            for each in cast("list[Any]", ranges):
                if isinstance(each, list) and len(each) != 2:
                    raise _MALFORMED.of(_TICKET, f"has the range {shorten(each)}; a range is [start, stop]")
        asked = declared(_Ranges, self._values, _TICKET, _MALFORMED)
        if not asked.ranges:
            raise _MALFORMED.of(_TICKET, f"has no range; 1 to {MAX_RANGES:,} are allowed")
        for start, stop in asked.ranges:
            if not 0 <= start < stop < 2**63:
                raise _MALFORMED.of(_TICKET, f"has the range [{_short(start)}, {_short(stop)}]; 0 <= start < stop")
        rows = sum(stop - start for start, stop in asked.ranges)
        if rows > MAX_ROWS:
            raise _MALFORMED.of(_TICKET, f"asks for {rows:,} rows; at most {MAX_ROWS:,} are allowed")
        order = asked.order
        for name, value, bound in (("epoch", order.epoch, _MAX_EPOCH), ("seed", order.seed, _MAX_SEED)):
            if not 0 <= value < bound:
                raise _MALFORMED.of(_TICKET, f"order.{name} is {_short(value)}; 0 to {bound - 1} are allowed")
        if order.pool_blocks < 1:
            raise _MALFORMED.of(_TICKET, f"order.pool_blocks is {_short(order.pool_blocks)}; 1 or more are allowed")
        return BatchTicket(self.identity, asked.split, order, [range(start, stop) for start, stop in asked.ranges])


@dataclass(frozen=True, slots=True)
class _Identified:
    identity: ReaderIdentity


_TICKET = "the ticket"
_MALFORMED = Damage(DataError, "")


def _object(data: bytes, where: str, damage: Damage) -> dict[str, Any]:
    return as_object(parse_json(data, where, damage), where, damage)


def _check_identity_texts(identity: ReaderIdentity, where: str, damage: Damage) -> None:
    for name in ("fingerprint", "ziggurat", "numpy"):
        text: str = getattr(identity, name)
        if len(text) > _MAX_TEXT or not text.isprintable():
            raise damage.of(where, f"identity.{name} is no text of at most {_MAX_TEXT} printable characters")


def _short(number: int) -> str:
    text = str(number)
    return text if len(text) <= 20 else f"{text[:20]}…"
