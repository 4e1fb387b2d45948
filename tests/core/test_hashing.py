"""The hash function: golden values, a plain reference, and uniformity."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.core.hashing import HASH_VERSION, hash_array, hash_integers, hash_text, to_buckets, to_unit_interval

INT64 = st.integers(-(2**63), 2**63 - 1)
WORD = (1 << 64) - 1

GOLDEN_INTEGERS = [
    0xA706DD2F4D197E6F,
    0x08B4FDA8C892B50E,
    0x2DD82C88FA32B270,
    0xC7B1E67948F2A0D0,
    0x5385D77FF33B218D,
]
GOLDEN_TEXTS = [
    0xA706DD2F4D197E6F,
    0xED673BABE737FE57,
    0x0EAD8573B15A09D9,
    0xE77B2003B48A986F,
    0xBE845402272ED7C5,
    0xE6FA18C0AC1A3770,
]


def reference_mix(state: int) -> int:
    """The splitmix64 finaliser, in Python integers."""
    state = (state + 0x9E3779B97F4A7C15) & WORD
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
    return state ^ (state >> 31)


def reference_integer(value: int, seed: int = 0) -> int:
    return reference_mix((value & WORD) ^ reference_mix(seed & WORD))


def reference_text(text: str, seed: int = 0) -> int:
    data = text.encode()
    state = reference_mix(len(data) ^ reference_mix(seed & WORD))
    for start in range(0, len(data), 8):
        state = reference_mix(state ^ int.from_bytes(data[start : start + 8], "little"))
    return state


def test_golden_hashes_never_change_within_a_version() -> None:
    assert HASH_VERSION == 1
    integers = hash_integers(np.array([0, 1, -1, 2**63 - 1, -(2**63)]))
    assert integers.tolist() == GOLDEN_INTEGERS
    assert hash_text(pa.array(["", "a", "12", "68fd1e64", "ünïcödé ☃", "x" * 33])).tolist() == GOLDEN_TEXTS
    assert hash_integers(np.array([42]), seed=7).tolist() == [reference_integer(42, 7)]


@settings(max_examples=50, deadline=None)
@given(st.lists(INT64, max_size=20), INT64)
def test_integers_equal_the_reference(values: list[int], seed: int) -> None:
    assert hash_integers(np.array(values, np.int64), seed).tolist() == [reference_integer(v, seed) for v in values]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=20), INT64, st.integers(0, 5))
def test_text_equals_the_reference_also_in_slices(values: list[str], seed: int, start: int) -> None:
    array = pa.array(values, pa.string()).slice(start)
    assert hash_text(array, seed).tolist() == [reference_text(v, seed) for v in values[start:]]
    assert hash_text(array.cast(pa.large_utf8()), seed).tolist() == hash_text(array, seed).tolist()


def test_a_hash_depends_on_the_declared_type() -> None:
    assert hash_array(pa.array([12]))[0] != hash_array(pa.array(["12"]))[0]
    assert hash_array(pa.array([12], pa.int32()))[0] == hash_array(pa.array([12], pa.int64()))[0]


def test_trailing_zero_bytes_are_not_padding() -> None:
    hashes = hash_text(pa.array(["", "\0", "\0\0", "a", "a\0", "aaaaaaaa", "aaaaaaaa\0"]))
    assert len(set(hashes.tolist())) == 7


@pytest.mark.parametrize("buckets", [2, 7, 1000])
def test_buckets_are_even(buckets: int) -> None:
    rows = 200_000
    counts = np.bincount(to_buckets(hash_integers(np.arange(rows)), buckets), minlength=buckets)
    expected = rows / buckets
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < buckets - 1 + 5 * np.sqrt(2 * (buckets - 1))  # five standard deviations


def test_unit_interval_is_uniform_and_below_one() -> None:
    unit = to_unit_interval(hash_integers(np.arange(100_000)))
    assert unit.min() >= 0.0
    assert unit.max() < 1.0
    assert to_unit_interval(np.array([WORD], np.uint64))[0] < 1.0
    np.testing.assert_allclose(np.quantile(unit, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.005)
