"""What trainers and readers say to each other: who they are, and which ranges of which stream are wanted.

Readers keep no state of their trainers. A ticket names the stream and the ranges of it, one for each batch, and the
same ticket gives the same batches from every reader, however often it is asked. So the trainer's cursor alone decides
what was consumed, and what a lost reader still owed is asked of another.
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
"""The action that answers with the reader's :class:`Description`."""
WARM = "warm"
"""The action whose body is a ticket, and which has the reader make ready the pool where its first range begins."""
FILES = "files"
"""The action that answers with the dataset's small files: results of a name, a zero byte and some of the content."""
REFUSED = b"refused"
"""The detail of an error that another attempt would meet again: the two sides are not of one dataset and version."""


@dataclass(frozen=True, slots=True)
class ReaderIdentity:
    """What must be equal on both sides for a range to mean the same rows in the same order.

    Attributes:
        fingerprint: of the dataset.
        ziggurat, numpy: versions; the one decides the stream, the other its random numbers.
        protocol: of tickets and messages.
    """

    fingerprint: str
    ziggurat: str
    numpy: str
    protocol: int

    @classmethod
    def here(cls, fingerprint: str) -> Self:
        """This process, with the dataset of this fingerprint."""
        return cls(fingerprint, __version__, np.__version__, PROTOCOL)

    def __str__(self) -> str:
        versions = f"ziggurat {self.ziggurat}, numpy {self.numpy}, protocol {self.protocol}"
        return f"dataset {self.fingerprint[:12]} ({versions})"


@dataclass(frozen=True, slots=True)
class Description:
    """What a reader says of itself.

    Attributes:
        identity: of the reader.
        costly: its blocks are made from raw logs, so that no two readers should have to make the same ones.
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
    """Which batches are wanted.

    Attributes:
        identity: of who asks.
        split: of the dataset.
        order: of the stream.
        ranges: rows of the stream, a range for each batch.
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
    """One encoded block of a split as a prepared dataset has it, for trainers that keep the rows they evaluate on."""

    identity: ReaderIdentity
    split: str
    block: int

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        values = json.loads(data)
        return cls(ReaderIdentity(**values["identity"]), values["split"], values["block"])

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def asked(data: bytes) -> BatchTicket | BlockTicket:
    """What a reader is asked for."""
    return BlockTicket.from_bytes(data) if "block" in json.loads(data) else BatchTicket.from_bytes(data)
