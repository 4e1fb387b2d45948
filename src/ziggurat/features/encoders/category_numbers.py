"""Ids as dense numbers: which numbers an id becomes, and the fitted map from ids to them.

===========  ==========================================================================================================
an encoding  gives
===========  ==========================================================================================================
target       one number: the mean label of the id's training rows, drawn towards that of all by as much as it is
             uncertain
one_hot      ``categories + 2`` numbers, of which one is 1: for missing ids, for rare and unknown ones, and for each of
             the most frequent ids
hash         ``buckets + 1`` numbers, of which one is 1: for missing ids, and for each bucket of a hash
ordinal      one number: the id's place among the known ones, in ascending order from 0; -1 if it is unknown, -2 if it
             is missing
===========  ==========================================================================================================

Each stands on an encoder of ids (:mod:`vocabulary <ziggurat.features.encoders.vocabulary>`, or :mod:`hash
<ziggurat.features.encoders.hashed>`) and a table of numbers for its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pydantic

from ziggurat.core.config import Config
from ziggurat.core.hashing import hash_integers, to_buckets
from ziggurat.features.encoders.encoder import MISSING_ROW, Ids
from ziggurat.features.encoders.hashed import HashConfig, HashEncoder
from ziggurat.features.encoders.target_means import TargetCounts
from ziggurat.features.encoders.vocabulary import VocabularyConfig, VocabularyEncoder
from ziggurat.features.versions import DAMAGED, check_version, saved_integer

CATEGORY_VERSION = 1
_ENCODER_ARRAY = "encoder."

Numbers = npt.NDArray[np.float64]


class TargetEncoding(Config):
    """The mean label of an id's training rows, smoothed. Training rows are given the mean of *other* training rows."""

    name: Literal["target"] = "target"
    label: str | None = None
    """The label; default: the first one. Of a number, its mean; of events out of trials, their share."""
    smooth: Literal["auto"] | Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = "auto"
    """How much the mean of all rows counts. ``auto``: empirical Bayes, the more the label varies within the id. A
    number: as that many rows."""
    folds: int = pydantic.Field(default=5, ge=2, le=20)
    """In how many parts the training rows are divided; a row is given the figures of the other parts."""
    min_count: int = pydantic.Field(default=1, ge=1)
    """Ids that occur less often than this in the training rows count as one rare id."""

    @property
    def numbers(self) -> int:
        """How many numbers an id becomes."""
        return 1

    @property
    def ids(self) -> VocabularyConfig:
        """The encoder of ids that it stands on."""
        return VocabularyConfig(min_count=self.min_count)


class OneHotEncoding(Config):
    """A number for each of the most frequent ids, 1 for the row's own and 0 for others."""

    name: Literal["one_hot"] = "one_hot"
    categories: int = pydantic.Field(ge=1, le=510)
    """The most ids with a number of their own; two further numbers are for missing ids and for all others."""
    min_count: int = pydantic.Field(default=1, ge=1)
    """Ids that occur less often than this in the training rows have no number of their own."""

    @property
    def numbers(self) -> int:
        """How many numbers an id becomes."""
        return self.categories + 2

    @property
    def ids(self) -> VocabularyConfig:
        """The encoder of ids that it stands on."""
        return VocabularyConfig(min_count=self.min_count, max_size=self.categories)


class HashedEncoding(Config):
    """A number for each bucket of a hash, 1 for that of the row's id and 0 for others."""

    name: Literal["hash"] = "hash"
    buckets: int = pydantic.Field(ge=2, le=511)
    """Number of buckets; one further number is for missing ids."""
    seed: int = 0
    """Seed of the hash; it determines which ids share a bucket."""

    @property
    def numbers(self) -> int:
        """How many numbers an id becomes."""
        return self.buckets + 1

    @property
    def ids(self) -> HashConfig:
        """The encoder of ids that it stands on."""
        return HashConfig(rows=self.buckets + 1, seed=self.seed)


class OrdinalEncoding(Config):
    """The id's place among the known ones, in the order of numbers or of the texts' characters."""

    name: Literal["ordinal"] = "ordinal"
    min_count: int = pydantic.Field(default=1, ge=1)
    """Ids that occur less often than this in the training rows are unknown."""

    @property
    def numbers(self) -> int:
        """How many numbers an id becomes."""
        return 1

    @property
    def ids(self) -> VocabularyConfig:
        """The encoder of ids that it stands on."""
        return VocabularyConfig(min_count=self.min_count)


CategoryEncoding = Annotated[
    TargetEncoding | OneHotEncoding | HashedEncoding | OrdinalEncoding, pydantic.Field(discriminator="name")
]


@dataclass(frozen=True, slots=True)
class CategoryMap:
    """A fitted encoding of ids as numbers.

    Attributes:
        encoder: gives an id one of R rows.
        missing_row: the row of a missing id.
        numbers_RN: float64, the numbers of each row.
        folds_KR: float64, of a target encoding: the number of each row as the training rows outside a fold give it.
    """

    encoder: VocabularyEncoder | HashEncoder
    missing_row: int
    numbers_RN: Numbers
    folds_KR: Numbers | None = None

    @classmethod
    def fit(
        cls,
        encoding: CategoryEncoding,
        encoder: VocabularyEncoder | HashEncoder,
        missing_row: int,
        target: TargetCounts | None = None,
    ) -> Self:
        """Returns the map for an encoder that is fitted; a target encoding also needs the counts of its rows."""
        rows = encoder.rows
        if isinstance(encoding, TargetEncoding):
            assert target is not None
            smooth = None if encoding.smooth == "auto" else encoding.smooth
            means_R, folds_KR = target.means(smooth), target.means_of_others(smooth)
            return cls(encoder, missing_row, means_R[:, None], folds_KR)
        if isinstance(encoding, OrdinalEncoding):
            assert isinstance(encoder, VocabularyEncoder)
            return cls(encoder, missing_row, _places(encoder)[:, None])
        return cls(encoder, missing_row, np.eye(rows, encoding.numbers))

    def rows_of(self, values: pa.Array) -> Ids:
        """Returns rows by code: those of distinct values (n,), then that of a missing one, (n + 1,)."""
        return np.append(self.encoder.transform(values), self.missing_row)

    def apply(self, index: int, rows_B: Ids, folds_B: Ids | None = None) -> Numbers:
        """Returns one of the numbers of some rows of the log, (B,).

        Args:
            index: which number, counted from 0.
            rows_B: the row of each one's id.
            folds_B: the fold of each one, -1 for one that is no training row; None: none is.
        """
        numbers_B = self.numbers_RN[rows_B, index]
        if folds_B is None or self.folds_KR is None:
            return numbers_B
        return np.where(folds_B >= 0, self.folds_KR[np.maximum(folds_B, 0), rows_B], numbers_B)

    def to_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Returns the values for JSON and the arrays that :meth:`from_state` restores it from."""
        figures, arrays = self.encoder.to_state()
        found = {f"{_ENCODER_ARRAY}{name}": array for name, array in arrays.items()}
        found["numbers"] = np.ascontiguousarray(self.numbers_RN)
        if self.folds_KR is not None:
            found["folds"] = np.ascontiguousarray(self.folds_KR)
        return {"version": CATEGORY_VERSION, "missing_row": self.missing_row, "encoder": figures}, found

    @classmethod
    def from_state(
        cls, encoding: CategoryEncoding, figures: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Self:
        """Restores a map.

        Raises:
            DataError: it was saved in an unknown version, or is not that of the encoding.
        """
        what = "encoded feature"
        check_version(what, figures.get("version"), CATEGORY_VERSION)
        of_encoder = figures.get("encoder")
        kind = encoding.ids.encoder_class()
        if not isinstance(of_encoder, dict) or of_encoder.get("name") != encoding.ids.name:
            raise DAMAGED.of(what, f"its encoder of ids is not of the kind {encoding.ids.name}")
        size = len(_ENCODER_ARRAY)
        inner = {name[size:]: array for name, array in arrays.items() if name.startswith(_ENCODER_ARRAY)}
        encoder = kind.from_state(of_encoder, inner)
        missing_row = saved_integer(figures, "missing_row", 0)
        numbers_RN, folds_KR = arrays.get("numbers"), arrays.get("folds")
        folds = (encoding.folds, encoder.rows) if isinstance(encoding, TargetEncoding) else None
        fits = (
            missing_row < encoder.rows
            and _is_table(numbers_RN, (encoder.rows, encoding.numbers))
            and (folds_KR is None if folds is None else _is_table(folds_KR, folds))
        )
        if not fits:
            raise DAMAGED.of(what, "its numbers are not those of its encoder of ids")
        assert numbers_RN is not None
        return cls(encoder, missing_row, numbers_RN, folds_KR)


def folds_of(places_B: Ids, folds: int) -> Ids:
    """Returns the fold of training rows by their place among all usable rows of the log, counted from 0."""
    return to_buckets(hash_integers(places_B), folds).astype(np.int64)


def _places(encoder: VocabularyEncoder) -> Numbers:
    """Returns the place of each row's value in ascending order: -2 for a missing one, -1 for unknown ones."""
    found = np.full(encoder.rows, -1.0)
    found[MISSING_ROW] = -2.0
    keys: list[Any] = encoder.keys.to_pylist()
    order = sorted(range(len(keys)), key=keys.__getitem__)
    found[encoder.rows - len(keys) + np.array(order, np.int64)] = np.arange(len(keys))
    return found


def _is_table(array: npt.NDArray[Any] | None, shape: tuple[int, int]) -> bool:
    return array is not None and array.dtype == np.float64 and array.shape == shape and bool(np.isfinite(array).all())
