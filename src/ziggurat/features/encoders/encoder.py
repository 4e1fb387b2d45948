"""The contract of encoders: raw ids of one table -> rows of that table, fitted once, saved as JSON + arrays.

An encoder belongs to an embedding table and serves every feature that looks the table up. Row 0 of a vocabulary or hash
table stands for "missing"; :meth:`Encoder.transform` itself never sees a missing value.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.parts import PartConfig
from ziggurat.core.schema import ValueType

MISSING_ROW = 0

Ids = npt.NDArray[np.int64]
State = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]
"""What an encoder saves: figures for JSON, arrays for safetensors."""


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """How often each distinct value of a table's columns occurs in the training rows.

    Attributes:
        values: distinct int64 or string values without nulls, shape (n,), in any order.
        counts: int64 (n,), 0 for values that only other splits hold.
    """

    values: pa.Array
    counts: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        assert len(self.values) == len(self.counts)
        assert self.values.null_count == 0


class Encoder(Protocol):
    """Turns the values of one embedding table's features into its row numbers.

    Deterministic: the same counts, in any order, give the same encoder; the same value always gives the same id.
    """

    @property
    def rows(self) -> int:
        """Rows of the table: every id lies in ``[0, rows)``."""
        ...

    @property
    def unknown_rows(self) -> range:
        """The ids that stand for values never seen in training; empty for encoders that take any value."""
        ...

    def transform(self, values: pa.Array) -> Ids:
        """Ids of int64 or string values without nulls, shape (n,) -> (n,)."""
        ...

    def to_state(self) -> State:
        """Everything :meth:`from_state` needs; the JSON part names the encoder and its version."""
        ...

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        """The encoder that :meth:`to_state` described.

        Raises:
            DataError: a version that this ziggurat does not know.
        """
        ...


class EncoderSettings(PartConfig):
    """The base config of encoders: it fits them, and it knows which class reads their saved state.

    Attributes:
        version: of the ids that a fitted encoder gives and of the state that it saves. Raise it when either changes: it
            is part of a prepared dataset's fingerprint, so that data of an older version is prepared again.
        counts_values: whether :meth:`fit` needs the counts of the training values. Without them the distinct values
            of a table never have to be in memory together.
    """

    version: ClassVar[int] = 1
    counts_values: ClassVar[bool] = True

    @property
    def valid_ids(self) -> range | None:
        """The integers that may occur as raw values; rows with any other value are rejected. None: all values may."""
        return None

    def check_type(self, value_type: ValueType) -> None:
        """Accepts the type of raw ids that a feature declares.

        Raises:
            InvalidSection: the encoder cannot encode ids of this type.
        """
        del value_type

    @abstractmethod
    def fit(self, counts: ValueCounts | None) -> Encoder:
        """Returns the encoder fitted on the training rows.

        Args:
            counts: how often each value occurs; None where :attr:`counts_values` is False.
        """

    def fit_with_ids(self, counts: ValueCounts) -> tuple[Encoder, Ids]:
        """Returns the fitted encoder with the ids (n,) of ``counts.values``."""
        encoder = self.fit(counts)
        return encoder, encoder.transform(counts.values)

    @classmethod
    @abstractmethod
    def encoder_class(cls) -> type[Encoder]:
        """Returns the class whose ``from_state`` reads what the fitted encoder saved."""
