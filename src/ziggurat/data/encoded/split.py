"""Assigns rows to the training, validation and test splits: the split configs, and functions on whole columns.

An assignment is a uint8 array over rows whose values are indices into :data:`ziggurat.data.encoded.dataset.SPLITS`.
Splits by files or by a hash can be computed row by row; splits by time need the times (and keys) of all rows.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import pydantic

from ziggurat.core.config import Config
from ziggurat.core.hashing import UInt64Array, to_unit_interval

TRAIN, VALIDATION, TEST = 0, 1, 2

Assignment = npt.NDArray[np.uint8]
Share = Annotated[float, pydantic.Field(ge=0.0, lt=1.0)]


class FilesSplit(Config):
    """Splits given as files: ``source.files`` are the training rows, the files here the validation and test rows."""

    name: Literal["files"] = "files"
    validation: tuple[str, ...] | Share = ()
    """Files of the validation rows, or the share of training rows to use instead, chosen by a hash of line numbers."""
    test: tuple[str, ...] = ()
    """Files of the test rows."""
    seed: int = 0
    """Seed of the hash, if ``validation`` is a share."""

    @property
    def share(self) -> float:
        """Share of the rows of ``source.files`` used for validation; 0 if validation has its own files."""
        return 0.0 if isinstance(self.validation, tuple) else self.validation

    @property
    def validation_files(self) -> tuple[str, ...]:
        return self.validation if isinstance(self.validation, tuple) else ()


class _Shares(Config):
    validation: Share = 0.1
    """Share of the rows used for validation."""
    test: Share = 0.1
    """Share of the rows used for testing."""

    @pydantic.model_validator(mode="after")
    def _leave_rows_to_train(self) -> _Shares:
        if self.validation + self.test >= 1.0:
            raise ValueError(f"validation + test = {self.validation + self.test:g} leaves no rows to train on")
        return self


class RandomSplit(_Shares):
    """A random split by hash: the same row (or key) is in the same split on every machine."""

    name: Literal["random"] = "random"
    key: str | None = None
    """Column whose value is hashed, so that all rows of a user stay together; null hashes file and line."""
    seed: int = 0
    """Seed of the hash; each seed gives a different split."""


class TimeSplit(_Shares):
    """The last rows by time are test rows, those before them validation rows. Requires ``data.time``."""

    name: Literal["time"] = "time"


class TimeWithinKeySplit(_Shares):
    """The last rows of each key by time are test rows, those before them validation rows. Requires ``data.time``."""

    name: Literal["time_within_key"] = "time_within_key"
    key: str
    """Column of the key, usually the user."""


SplitConfig = Annotated[FilesSplit | RandomSplit | TimeSplit | TimeWithinKeySplit, pydantic.Field(discriminator="name")]


def assign_by_hash(hashes: UInt64Array, validation: float, test: float) -> Assignment:
    """Assigns rows by hash, as a float in [0, 1): below ``test`` to test, the next ``validation`` to validation."""
    position = to_unit_interval(hashes)
    assignment = np.full(len(hashes), TRAIN, np.uint8)
    assignment[position < test + validation] = VALIDATION
    assignment[position < test] = TEST
    return assignment


def assign_by_time(
    times: npt.NDArray[np.int64] | npt.NDArray[np.float64], validation: float, test: float
) -> Assignment:
    """Assigns the last of n rows by time: ``floor(n * test)`` to test, ``floor(n * validation)`` before to validation.

    Rows with equal times stay together: a boundary within a tie moves back, so that the later split gets the whole tie
    and more than its share.
    """
    rows = len(times)
    assignment = np.full(rows, TRAIN, np.uint8)
    testing, validating = _floor(rows, test), _floor(rows, validation)
    if testing + validating == 0:
        return assignment
    boundaries = [rows - testing - validating, rows - testing]
    ordered = np.partition(times, [position for position in boundaries if position < rows])
    if validating:
        assignment[times >= ordered[boundaries[0]]] = VALIDATION
    if testing:
        assignment[times >= ordered[boundaries[1]]] = TEST
    return assignment


def assign_by_time_within_key(
    keys: npt.NDArray[np.int64], times: npt.NDArray[np.int64] | npt.NDArray[np.float64], validation: float, test: float
) -> Assignment:
    """Assigns the last rows of each key by time to test, those before to validation; equal times keep the row order.

    Of a key's n rows, ``max(1, floor(n * test))`` are test rows and ``max(1, floor(n * validation))`` validation rows
    (none if the share is 0), but at least one is a training row: of two rows one is a test row, a single row is a
    training row.
    """
    rows = len(keys)
    order = np.lexsort((times, keys))
    sorted_keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]])) if rows else np.empty(0, int)
    del sorted_keys
    counts = np.diff(np.append(starts, rows))
    testing = _share_of_each(counts, test, counts - 1)
    validating = _share_of_each(counts, validation, counts - 1 - testing)
    from_end = np.repeat(starts + counts, counts) - np.arange(rows)  # 1 for the last row of the key
    testing_rows, both_rows = np.repeat(testing, counts), np.repeat(testing + validating, counts)
    in_order = np.full(rows, TRAIN, np.uint8)
    in_order[from_end <= both_rows] = VALIDATION
    in_order[from_end <= testing_rows] = TEST
    assignment = np.empty(rows, np.uint8)
    assignment[order] = in_order
    return assignment


def _share_of_each(counts: npt.NDArray[np.int64], share: float, limits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if share == 0.0:
        return np.zeros_like(counts)
    return np.minimum(np.maximum(1, np.floor(counts * share + 1e-9).astype(np.int64)), limits)


def _floor(rows: int, share: float) -> int:
    """Returns ``floor(rows * share)``, tolerating the rounding error of shares such as 0.29."""
    return math.floor(rows * share + 1e-9)
