"""Which rows train, which validate, which test: split configs and their assignment, on whole columns.

An assignment is a uint8 array over rows whose values are positions in :data:`ziggurat.data.encoded.dataset.SPLITS`.
Splits by files or by a hash need one row at a time; splits by time need the times (and keys) of all rows at once.
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
    """Files given by hand: those of ``source.files`` train, these do not."""

    name: Literal["files"] = "files"
    validation: tuple[str, ...] | Share = ()
    """Files of the validation rows, or the share of training rows held out for it by a hash of their line numbers."""
    test: tuple[str, ...] = ()
    """Files of the test rows."""
    seed: int = 0
    """Seeds the hash where ``validation`` is a share."""

    @property
    def share(self) -> float:
        """Share of the rows of ``source.files`` that validate; 0 where validation has files of its own."""
        return 0.0 if isinstance(self.validation, tuple) else self.validation

    @property
    def validation_files(self) -> tuple[str, ...]:
        return self.validation if isinstance(self.validation, tuple) else ()


class _Shares(Config):
    validation: Share = 0.1
    """Share of the rows that validate."""
    test: Share = 0.1
    """Share of the rows that test."""

    @pydantic.model_validator(mode="after")
    def _leave_rows_to_train(self) -> _Shares:
        if self.validation + self.test >= 1.0:
            raise ValueError(f"validation + test = {self.validation + self.test:g} leaves no rows to train on")
        return self


class RandomSplit(_Shares):
    """Rows drawn at random, by a hash: the same row (or key) lands in the same split on every machine."""

    name: Literal["random"] = "random"
    key: str | None = None
    """Column whose value decides, so that all rows of a user stay together; null hashes each row's file and line."""
    seed: int = 0
    """Another seed, another draw."""


class TimeSplit(_Shares):
    """The last rows by time test, those before them validate. Needs ``data.time``."""

    name: Literal["time"] = "time"


class TimeWithinKeySplit(_Shares):
    """Each key's last rows by time test, those before them validate. Needs ``data.time``."""

    name: Literal["time_within_key"] = "time_within_key"
    key: str
    """Column of the key, usually the user."""


SplitConfig = Annotated[FilesSplit | RandomSplit | TimeSplit | TimeWithinKeySplit, pydantic.Field(discriminator="name")]


def assign_by_hash(hashes: UInt64Array, validation: float, test: float) -> Assignment:
    """Rows whose hash, as a float in [0, 1), lies below ``test`` test; the next ``validation`` share validates."""
    place = to_unit_interval(hashes)
    assignment = np.full(len(hashes), TRAIN, np.uint8)
    assignment[place < test + validation] = VALIDATION
    assignment[place < test] = TEST
    return assignment


def assign_by_time(
    times: npt.NDArray[np.int64] | npt.NDArray[np.float64], validation: float, test: float
) -> Assignment:
    """The last ``floor(n * test)`` of n rows by time test, the ``floor(n * validation)`` before them validate.

    Rows with equal times stay together: a boundary that falls within a tie moves back, so the later split takes the
    whole tie and gets more than its share.
    """
    rows = len(times)
    assignment = np.full(rows, TRAIN, np.uint8)
    testing, validating = _floor(rows, test), _floor(rows, validation)
    if testing + validating == 0:
        return assignment
    boundaries = [rows - testing - validating, rows - testing]
    ordered = np.partition(times, [place for place in boundaries if place < rows])
    if validating:
        assignment[times >= ordered[boundaries[0]]] = VALIDATION
    if testing:
        assignment[times >= ordered[boundaries[1]]] = TEST
    return assignment


def assign_by_time_within_key(
    keys: npt.NDArray[np.int64], times: npt.NDArray[np.int64] | npt.NDArray[np.float64], validation: float, test: float
) -> Assignment:
    """The last rows by time of each key test, those before them validate; rows with equal times keep their order.

    Of a key's n rows, ``max(1, floor(n * test))`` test and ``max(1, floor(n * validation))`` validate (none where the
    share is 0), but one row always trains: a key with two rows gives one to test, a key with one row only trains.
    """
    rows = len(keys)
    order = np.lexsort((times, keys))
    sorted_keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]])) if rows else np.empty(0, int)
    del sorted_keys
    counts = np.diff(np.append(starts, rows))
    testing = _share_of_each(counts, test, counts - 1)
    validating = _share_of_each(counts, validation, counts - 1 - testing)
    from_end = np.repeat(starts + counts, counts) - np.arange(rows)  # 1 is the key's last row
    testing_rows, both_rows = np.repeat(testing, counts), np.repeat(testing + validating, counts)
    in_order = np.full(rows, TRAIN, np.uint8)
    in_order[from_end <= both_rows] = VALIDATION
    in_order[from_end <= testing_rows] = TEST
    assignment = np.empty(rows, np.uint8)
    assignment[order] = in_order
    return assignment


def _share_of_each(counts: npt.NDArray[np.int64], share: float, room: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if share == 0.0:
        return np.zeros_like(counts)
    return np.minimum(np.maximum(1, np.floor(counts * share + 1e-9).astype(np.int64)), room)


def _floor(rows: int, share: float) -> int:
    """``floor(rows * share)``, forgiving the rounding of shares such as 0.29."""
    return math.floor(rows * share + 1e-9)
