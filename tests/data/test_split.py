"""Assignment of rows to the training, validation and test splits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.core.hashing import hash_integers
from ziggurat.data.encoded.split import (
    TEST,
    TRAIN,
    VALIDATION,
    FilesSplit,
    SplitConfig,
    TimeWithinKeySplit,
    assign_by_hash,
    assign_by_time,
    assign_by_time_within_key,
)

SHARE = st.sampled_from([0.0, 0.1, 0.29, 0.5])


class _Holder(Config):
    split: SplitConfig


def test_the_name_selects_the_config() -> None:
    split = parse_config(_Holder, {"split": {"name": "time_within_key", "key": "user"}}).split
    assert split == TimeWithinKeySplit(key="user", validation=0.1, test=0.1)
    files = parse_config(_Holder, {"split": {"name": "files", "validation": ["v.csv"], "test": ["t.csv"]}}).split
    assert isinstance(files, FilesSplit)
    assert (files.validation_files, files.share) == (("v.csv",), 0.0)
    held_out = parse_config(_Holder, {"split": {"name": "files", "validation": 0.2, "test": ["t.csv"]}}).split
    assert isinstance(held_out, FilesSplit)
    assert (held_out.validation_files, held_out.share) == ((), 0.2)


def test_shares_must_leave_rows_to_train() -> None:
    with pytest.raises(ConfigError, match=r"validation \+ test = 1 leaves no rows to train on"):
        parse_config(_Holder, {"split": {"name": "random", "validation": 0.5, "test": 0.5}})


def test_hash_split_has_its_shares_and_depends_on_the_value_only() -> None:
    hashes = hash_integers(np.arange(100_000))
    assignment = assign_by_hash(hashes, 0.2, 0.1)
    np.testing.assert_allclose(np.bincount(assignment) / 100_000, [0.7, 0.2, 0.1], atol=0.005)
    shuffled = np.random.default_rng(0).permutation(100_000)
    np.testing.assert_array_equal(assign_by_hash(hashes[shuffled], 0.2, 0.1), assignment[shuffled])


def test_a_larger_test_share_only_adds_test_rows() -> None:
    hashes = hash_integers(np.arange(10_000))
    small, large = assign_by_hash(hashes, 0.0, 0.1), assign_by_hash(hashes, 0.0, 0.2)
    assert np.all(large[small == TEST] == TEST)


def test_time_split_takes_the_last_rows() -> None:
    times = np.array([5, 1, 9, 3, 7, 2, 8, 4, 6, 0])
    assignment = assign_by_time(times, 0.2, 0.1)
    assert times[assignment == TEST].tolist() == [9]
    assert sorted(times[assignment == VALIDATION].tolist()) == [7, 8]


def test_time_split_keeps_ties_together_in_the_later_split() -> None:
    times = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 8, 8])
    assert assign_by_time(times, 0.0, 0.1).tolist() == [TRAIN] * 7 + [TEST] * 3
    assert assign_by_time(np.array([1.0, 2, 3, 3, 3, 3, 3, 9, 9, 9]), 0.2, 0.3).tolist() == (
        [TRAIN] * 2 + [VALIDATION] * 5 + [TEST] * 3
    )
    assert assign_by_time(np.full(10, 4.5), 0.1, 0.1).tolist() == [TEST] * 10  # no training rows: rejected by prepare


def test_shares_that_round_to_no_row_leave_all_to_train() -> None:
    assert assign_by_time(np.arange(9), 0.1, 0.1).tolist() == [TRAIN] * 9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), SHARE, st.sampled_from([0.0, 0.1, 0.4]))
def test_time_split_properties(values: list[int], validation: float, test: float) -> None:
    times = np.array(values)
    assignment = assign_by_time(times, validation, test)
    for earlier, later in ((TRAIN, VALIDATION), (VALIDATION, TEST), (TRAIN, TEST)):
        before, after = times[assignment == earlier], times[assignment == later]
        assert not len(before) or not len(after) or before.max() < after.min()
    assert np.count_nonzero(assignment == TEST) >= np.floor(len(times) * test + 1e-9)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (1, (1, 0, 0)),
        (2, (1, 0, 1)),
        (3, (1, 1, 1)),
        (9, (7, 1, 1)),
        (10, (8, 1, 1)),
        (19, (17, 1, 1)),
        (20, (16, 2, 2)),
        (30, (24, 3, 3)),
        (100, (80, 10, 10)),
    ],
)
def test_rows_of_a_key_by_its_number_of_events(events: int, expected: tuple[int, int, int]) -> None:
    assignment = assign_by_time_within_key(np.zeros(events, np.int64), np.arange(events), 0.1, 0.1)
    assert tuple(np.bincount(assignment, minlength=3).tolist()) == expected
    assert assignment.tolist() == [TRAIN] * expected[0] + [VALIDATION] * expected[1] + [TEST] * expected[2]


def test_shares_with_rounding_error_are_exact() -> None:
    assignment = assign_by_time_within_key(np.zeros(100, np.int64), np.arange(100), 0.0, 0.29)
    assert np.count_nonzero(assignment == TEST) == 29  # 100 * 0.29 = 28.999999999999996


def test_ties_keep_row_order_and_keys_may_interleave() -> None:
    keys = np.array([7, -2, 7, -2, 7, -2, 7])
    times = np.array([3.0, 1, 3, 1, 3, 0, 1])
    assignment = assign_by_time_within_key(keys, times, 0.1, 0.1)
    #                  7 v    -2 v       7 v: third of the 3.0s is last, so test
    assert assignment.tolist() == [TRAIN, VALIDATION, VALIDATION, TEST, TEST, TRAIN, TRAIN]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), max_size=60), SHARE, st.sampled_from([0.0, 0.1, 0.4]))
def test_each_key_is_split_as_if_it_were_alone(rows: list[tuple[int, int]], validation: float, test: float) -> None:
    keys, times = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    assignment = assign_by_time_within_key(keys, times, validation, test)
    for key in set(keys.tolist()):
        own = assignment[keys == key]
        alone = assign_by_time_within_key(keys[keys == key], times[keys == key], validation, test)
        np.testing.assert_array_equal(own, alone)
        assert np.any(own == TRAIN)
        if validation and test and len(own) >= 3:
            assert set(own.tolist()) == {TRAIN, VALIDATION, TEST}
