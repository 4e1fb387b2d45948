"""The messages between trainers and readers: their identities, and which ranges of which stream are requested.

Readers keep no state about their trainers. A ticket names a stream and ranges of it, one per batch. The same ticket
gives the same batches from every reader, every time. So the trainer's cursor alone determines what was consumed, and
the ranges that a lost reader has not delivered are requested from another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from ziggurat._version import __version__
from ziggurat.data.encoded.stream import Order

PROTOCOL = 1
DESCRIBE = "describe"
"""The action that returns the reader's :class:`Description`."""
WARM = "warm"
"""The action whose body is a ticket; the reader prepares the pool in which the ticket's first range begins."""
FILES = "files"
"""The action that returns the dataset's small files; each result is a name, a zero byte and a part of the content."""
REFUSED = b"refused"
"""The detail of a permanent error: reader and trainer differ in dataset or version, so a retry is useless."""


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
        versions = f"ziggurat {self.ziggurat}, numpy {self.numpy}, protocol {self.protocol}"
        return f"dataset {self.fingerprint[:12]} ({versions})"


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
    def from_bytes(cls, data: bytes) -> Self:
        values = json.loads(data)
        return cls(ReaderIdentity(**values["identity"]), values["costly"])

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


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

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        values = json.loads(data)
        ranges = [range(start, stop) for start, stop in values["ranges"]]
        return cls(ReaderIdentity(**values["identity"]), values["split"], Order(**values["order"]), ranges)

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

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        values = json.loads(data)
        return cls(ReaderIdentity(**values["identity"]), values["split"], values["block"])

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def parse_ticket(data: bytes) -> BatchTicket | BlockTicket:
    """Parses a ticket received by a reader."""
    return BlockTicket.from_bytes(data) if "block" in json.loads(data) else BatchTicket.from_bytes(data)
