"""The contract of encoders: they map raw ids of a table to its rows, are fitted once, and are saved as JSON and arrays.

An encoder belongs to an embedding table and serves all features that look the table up. Row 0 of a vocabulary or hash
table is for missing values; :meth:`Encoder.transform` itself is never given a missing value.
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
"""The saved state of an encoder: values for JSON, arrays for safetensors."""


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """How often each distinct value of a table's columns occurs in the training rows.

    Attributes:
        values: distinct int64 or string values without nulls, shape (n,), in any order.
        counts: int64 (n,), 0 for values that occur only in other splits.
    """

    values: pa.Array
    counts: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        assert len(self.values) == len(self.counts)
        assert self.values.null_count == 0


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The proxy model that an encoder asks for.

    Attributes:
        dim: numbers of a value's vector.
        seed: seed of its initial weights and of the order of rows.
        passes: the most passes over the training rows.
        clusterings: after how many of the first passes the values of composed tables are clustered; 0: each value has
            a row of its own.
    """

    dim: int
    seed: int
    passes: int
    clusterings: int = 0


@dataclass(frozen=True, slots=True)
class ProxyVectors:
    """What a proxy model learned of a table's values.

    Attributes:
        vectors_ND: float32 (n, dim + 1), in the order of the counted values: the squared distance of two of them is
            how much the logit of an average row changes, squared, if one value takes the place of the other.
    """

    vectors_ND: npt.NDArray[np.float32]


class Encoder(Protocol):
    """Maps the values of one embedding table's features to its rows.

    Encoders are deterministic: the same counts, in any order, give the same encoder, and the same value always gives
    the same id.
    """

    @property
    def rows(self) -> int:
        """Number of rows of the table, 1 or more; every id is in ``[0, rows)``."""
        ...

    @property
    def unknown_rows(self) -> range:
        """The ids of values that did not occur in training; empty for encoders that accept any value."""
        ...

    def transform(self, values: pa.Array) -> Ids:
        """Returns the ids of int64 or string values without nulls, shape (n,) -> (n,).

        An encoder whose config says that a value has several ``codes`` returns (n, codes), -1 for a code that a value
        does not have; each value has one or more. The rows of all codes are pooled.

        The id depends on the value alone, and is the same in every process. Every value of the type has one, whether it
        occurred when the encoder was fitted or not.
        """
        ...

    def to_state(self) -> State:
        """Returns the state for :meth:`from_state`; the JSON part of a built-in encoder has its name and version.

        Of an encoder from outside the package, the import reference and :attr:`EncoderSettings.version` are saved
        beside the state, without its doing.
        """
        ...

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        """Restores an encoder from the result of :meth:`to_state`.

        Raises:
            DataError: the state was saved in an unknown version.
        """
        ...


class EncoderSettings(PartConfig):
    """The base class of encoder configs: a config fits its encoder and knows which class reads the saved state.

    Attributes:
        version: version of the ids that fitted encoders return and of the state that they save. Raise it when either
            changes: it is part of a prepared dataset's fingerprint, so that data of an older version is prepared again,
            and encoders that another version fitted are refused.
        counts_values: whether :meth:`fit` needs the counts of the training values. If not, the distinct values
            of a table need not be in memory together.
    """

    version: ClassVar[int] = 1
    counts_values: ClassVar[bool] = True

    @property
    def codes(self) -> int:
        """The most rows that a value looks up; above 1, a feature with one id a row is looked up as a bag."""
        return 1

    @property
    def proxy(self) -> ProxySettings | None:
        """The proxy model that :meth:`fit_with_proxy` needs; None: the encoder is fitted by :meth:`fit`."""
        return None

    @property
    def kept_from(self) -> str | None:
        """The folder of a run or a dataset whose encoder of the same table :meth:`fit_with_proxy` continues."""
        return None

    @property
    def valid_ids(self) -> range | None:
        """The integers allowed as raw values; rows with other values are rejected. None: all values are allowed."""
        return None

    def check_type(self, value_type: ValueType) -> None:
        """Checks the type of raw ids that a feature declares.

        Raises:
            InvalidSection: the encoder cannot encode ids of this type.
        """
        del value_type

    @abstractmethod
    def fit(self, counts: ValueCounts | None) -> Encoder:
        """Returns the encoder fitted on the training rows.

        Args:
            counts: how often each value occurs; None if :attr:`counts_values` is False.
        """

    def fit_with_ids(self, counts: ValueCounts) -> tuple[Encoder, Ids | None]:
        """Returns the fitted encoder, with the ids (n,) of ``counts.values`` if fitting finds them anyway."""
        return self.fit(counts), None

    def fit_with_proxy(
        self, counts: ValueCounts, proxy: ProxyVectors, previous: Encoder | None = None
    ) -> tuple[Encoder, Ids | None]:
        """Returns the encoder fitted with what a proxy learned, and the ids of ``counts.values`` if it finds them.

        Args:
            counts: how often each value occurs.
            proxy: the vectors of these values.
            previous: the encoder of :attr:`kept_from`, whose rows values keep where that is right still.
        """
        del counts, proxy, previous
        raise NotImplementedError(f"{self.title} asks for a proxy, but is not fitted with one")

    @classmethod
    @abstractmethod
    def encoder_class(cls) -> type[Encoder]:
        """Returns the class whose ``from_state`` reads the saved state."""
