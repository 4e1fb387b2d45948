"""Streaming moments and the uniform row sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.features.numeric.moments import Moments, MomentsStream, RowSample, quantiles

VALUE = st.floats(-1e6, 1e6) | st.just(float("nan")) | st.just(0.0)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(VALUE, max_size=12), max_size=6))
def test_merged_moments_equal_those_of_the_whole(parts: list[list[float]]) -> None:
    merged = Moments()
    for part in parts:
        merged = merged.merge(Moments.of(np.array(part, np.float64)))
    whole = np.array([value for part in parts for value in part], np.float64)
    present = whole[~np.isnan(whole)]
    assert (merged.count, merged.missing) == (len(present), len(whole) - len(present))
    assert merged.zeros == np.count_nonzero(present == 0)
    if len(present):
        assert (merged.min, merged.max) == (present.min(), present.max())
        assert merged.mean == pytest.approx(present.mean(), rel=1e-9, abs=1e-6)
        assert merged.std == pytest.approx(present.std(), rel=1e-6, abs=1e-5)
    else:
        assert math.isnan(merged.mean)
        assert math.isnan(merged.std)


def test_moments_are_stable_far_from_zero() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=10_000)
    merged = Moments()
    for part in np.array_split(values, 7):
        merged = merged.merge(Moments.of(part))
    assert merged.std == pytest.approx(values.std(), rel=1e-6)


def test_streamed_moments_do_not_depend_on_the_blocks() -> None:
    values = np.random.default_rng(0).normal(size=200_000)
    values[::7] = np.nan
    results: list[Moments] = []
    for cuts in (1, 3, 50):
        stream = MomentsStream()
        for part in np.array_split(values, cuts):
            stream.add(part)
        results.append(stream.result())
    assert results[0] == results[1] == results[2]
    assert results[0].mean == pytest.approx(np.nanmean(values), abs=1e-12)
    assert MomentsStream().result().count == 0


def test_a_small_sample_contains_all_rows_in_order() -> None:
    sample = RowSample(2, size=10)
    sample.add(np.array([4, 5]), [np.array([4.0, 5.0]), np.array([40.0, 50.0])])
    sample.add(np.array([0, 9]), [np.array([0.0, 9.0]), np.array([0.0, 90.0])])
    first, second = sample.columns()
    assert first.tolist() == [0, 4, 5, 9]
    assert second.tolist() == [0, 40, 50, 90]


def sampled(blocks: list[np.ndarray], size: int) -> np.ndarray:
    sample = RowSample(1, size)
    for rows in blocks:
        sample.add(rows, [rows.astype(np.float64)])
    return sample.columns()[0]


def test_the_sample_does_not_depend_on_the_blocks() -> None:
    rows = np.arange(10_000)
    whole = sampled([rows], 500)
    assert len(whole) == 500
    np.testing.assert_array_equal(sampled(np.array_split(rows, 37), 500), whole)
    np.testing.assert_array_equal(sampled([rows[5000:], rows[:5000]], 500), whole)
    assert np.all(np.diff(whole) > 0)


def test_the_sample_is_uniform() -> None:
    whole = sampled([np.arange(100_000)], 10_000)
    counts, _ = np.histogram(whole, bins=10, range=(0, 100_000))
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(1000)


def test_quantiles_ignore_missing_values() -> None:
    found = quantiles(np.array([float("nan"), *range(101)]))
    assert found == {"0.01": 1, "0.05": 5, "0.25": 25, "0.5": 50, "0.75": 75, "0.95": 95, "0.99": 99}
    assert all(math.isnan(value) for value in quantiles(np.array([float("nan")])).values())
