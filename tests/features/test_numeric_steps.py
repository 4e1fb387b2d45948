"""Numeric steps against hand-computed values, and whole chains."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.numeric.moments import Moments
from ziggurat.features.numeric.power import Power, PowerConfig
from ziggurat.features.numeric.steps import (
    Bucketise,
    BucketiseConfig,
    Clip,
    ClipConfig,
    Fill,
    FillConfig,
    Log,
    NumericSample,
    Quantile,
    QuantileConfig,
    Standardise,
    StandardiseConfig,
    StepConfig,
)

NAN = float("nan")


class _Holder(Config):
    steps: tuple[StepConfig, ...]


def steps(*values: object) -> tuple[StepConfig, ...]:
    return parse_config(_Holder, {"steps": list(values)}).steps


def sample(*values: float, exact: bool = False) -> NumericSample:
    array = np.array(values, np.float64)
    return NumericSample(array, Moments.of(array) if exact else None)


def test_even_levels_give_rare_values_room() -> None:
    values = np.concatenate([np.zeros(9_000), np.arange(1.0, 1_001.0)])  # nine of ten rows are 0
    fitted = Quantile.fit(QuantileConfig(bins=10, levels="even"), NumericSample(values))
    assert len(fitted.knots) == 11
    np.testing.assert_allclose(fitted.levels, np.linspace(0, 1, 11))
    shares = Quantile.fit(QuantileConfig(bins=10), NumericSample(values))
    assert np.ptp(shares.apply(np.array([1.0, 1_000.0]))) < 0.2 < 0.7 < np.ptp(fitted.apply(np.array([1.0, 1_000.0])))
    few = Quantile.fit(QuantileConfig(bins=64, levels="even"), sample(3, 3, 3, 7, 9))
    assert (few.knots, few.levels) == ((3.0, 7.0, 9.0), (0.0, 0.5, 1.0))
    assert Quantile.fit(QuantileConfig(levels="even"), sample(5, 5)).levels == (0.5,)
    assert Quantile.fit(QuantileConfig(levels="even"), sample(NAN)).levels == (0.5,)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("value", "expected"), [("mean", 4.0), ("median", 3.0), ("min", 1.0), (-1.5, -1.5)])
def test_fill(value: float, expected: float, exact: bool) -> None:
    fitted = Fill.fit(FillConfig(value=value), sample(1, 3, NAN, 8, NAN, exact=exact))
    assert fitted.apply(np.array([NAN, 2.0])).tolist() == [expected, 2.0]


@pytest.mark.parametrize("value", ["mean", "median", "min"])
def test_fill_without_any_training_value_is_zero(value: str) -> None:
    assert Fill.fit(FillConfig.model_validate({"value": value}), sample(NAN, NAN, exact=True)).value == 0.0


def test_clip_by_numbers_and_quantiles() -> None:
    fitted = Clip.fit(ClipConfig(low=0, high_quantile=0.75), sample(0, 10, 20, 30, NAN))
    assert (fitted.low, fitted.high) == (0.0, 22.5)
    assert fitted.apply(np.array([-5.0, 7.0, 99.0])).tolist() == [0.0, 7.0, 22.5]
    assert math.isnan(fitted.apply(np.array([NAN]))[0])
    assert Clip.fit(ClipConfig(low=3), sample(1, 2)).apply(np.array([1.0, 1e300])).tolist() == [3.0, 1e300]


def test_log_is_an_odd_function() -> None:
    values = Log().apply(np.array([0.0, np.e - 1, -(np.e - 1), 1e300]))
    np.testing.assert_allclose(values, [0, 1, -1, math.log(1e300)], rtol=1e-12)


def test_standardise_equals_scikit_learn_and_handles_constants() -> None:
    values = np.random.default_rng(0).gamma(2.0, 3.0, 1000)
    fitted = Standardise.fit(StandardiseConfig(), NumericSample(values))
    expected = StandardScaler().fit_transform(values[:, None])[:, 0]
    np.testing.assert_allclose(fitted.apply(values), expected, rtol=1e-12, atol=1e-12)
    constant = Standardise.fit(StandardiseConfig(), sample(0.1, 0.1, 0.1))
    np.testing.assert_allclose(constant.apply(np.array([0.1, 1.1])), [0.0, 1.0], atol=1e-15)


def test_quantile_is_uniform_and_maps_ties_to_the_middle() -> None:
    fitted = Quantile.fit(QuantileConfig(bins=4), sample(0, 10, 20, 30, 40))
    assert fitted.apply(np.array([-1.0, 0, 5, 10, 35, 40, 99])).tolist() == [0, 0, 0.125, 0.25, 0.875, 1, 1]
    tied = Quantile.fit(QuantileConfig(bins=4), sample(0, 0, 0, 0, 1))
    assert tied.apply(np.array([0.0, 1.0])).tolist() == [0.375, 1.0]  # the value 0 has the levels 0 to 0.75
    values = np.random.default_rng(1).lognormal(0, 2, 20_000)
    uniform = Quantile.fit(QuantileConfig(bins=200), NumericSample(values)).apply(values)
    np.testing.assert_allclose(np.quantile(uniform, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.003)


def test_bucketise_by_boundaries() -> None:
    fitted = Bucketise.fit(BucketiseConfig(boundaries=(18, 65)), sample())
    assert fitted.rows == 4
    assert fitted.apply(np.array([NAN, 17.9, 18.0, 64.0, 65.0, 1e9])).tolist() == [0, 1, 2, 2, 3, 3]


def test_bucketise_into_equal_masses_drops_empty_buckets() -> None:
    fitted = Bucketise.fit(BucketiseConfig(bins=4), NumericSample(np.arange(1.0, 101.0)))
    ids = fitted.apply(np.arange(1.0, 101.0)).astype(int)
    assert np.bincount(ids).tolist() == [0, 25, 25, 25, 25]
    tied = Bucketise.fit(BucketiseConfig(bins=10), sample(*([0] * 80), *range(1, 21)))
    occupied = np.bincount(tied.apply(np.array([0.0] * 80 + list(range(1, 21)))).astype(int), minlength=tied.rows)[1:]
    assert occupied.min() > 0
    assert Bucketise.fit(BucketiseConfig(bins=3), sample(NAN)).rows == 2


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"name": "clip"}, "give at least one of low, high"),
        ({"name": "clip", "low": 1, "low_quantile": 0.1}, "give low or low_quantile, not both"),
        ({"name": "clip", "low": 2, "high": 1}, "low 2 is above high 1"),
        ({"name": "bucketise"}, "give either bins or boundaries"),
        ({"name": "bucketise", "boundaries": [1, 1]}, "boundaries must ascend"),
        ({"name": "bucketise", "boundaries": []}, "at least one"),
        ({"name": "fill", "value": "mode"}, "'mean', 'median' or 'min'"),
        ({"name": "fill", "value": float("inf")}, "finite number"),
        ({"name": "standardize"}, "did you mean 'standardise'"),
    ],
)
def test_bad_steps_are_rejected(step: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        steps(step)


def test_each_step_is_fitted_on_the_output_of_the_previous_one() -> None:
    chain = NumericChain.fit(
        steps({"name": "clip", "high": 100}, {"name": "log"}, {"name": "standardise"}), sample(0, 1, 10, 1e6, NAN)
    )
    assert chain.implicit_fill
    assert isinstance(chain.steps[0], Fill)
    assert chain.steps[0].value == 5.5  # the median of 0, 1, 10, 1e6
    logs = np.log1p(np.array([0, 1, 10, 100, 5.5]))
    expected = (logs - logs.mean()) / logs.std()
    actual = chain.apply(np.array([0, 1, 10, 1e9, NAN]))
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_the_output_of_a_chain_is_finite() -> None:
    for configs in (steps(), steps({"name": "standardise"}), steps({"name": "quantile", "bins": 3})):
        for training in (sample(1e308, -1e308, 3, exact=True), sample(NAN, NAN, exact=True), sample(2.0, exact=True)):
            with np.errstate(over="ignore"):
                out = NumericChain.fit(configs, training).apply(np.array([NAN, 0.0, 1e308, -1e308]))
            assert np.isfinite(out).all()


def test_a_chain_that_fills_or_bucketises_has_no_implicit_fill() -> None:
    assert not NumericChain.fit(steps({"name": "log"}, {"name": "fill", "value": 0}), sample(1, NAN)).implicit_fill
    chain = NumericChain.fit(steps({"name": "log"}, {"name": "bucketise", "bins": 2}), sample(1, 2, 3, 4, NAN))
    assert not chain.implicit_fill
    assert chain.table_rows == 4 - 1
    ids = chain.apply(np.array([NAN, 1, 4]))
    assert ids.dtype == np.int64
    assert ids.tolist() == [0, 1, 2]


def test_exact_moments_are_used_until_a_step_changes_the_values() -> None:
    exact = Moments(count=100, missing=0, mean=7.0, squares=400.0, min=-3.0, max=20.0)
    sampled = NumericSample(np.array([5.0, 9.0]), exact)
    chain = NumericChain.fit(steps({"name": "fill"}, {"name": "standardise"}), sampled)
    assert chain.steps[1] == Standardise(7.0, 2.0)
    after_log = NumericChain.fit(steps({"name": "fill"}, {"name": "log"}, {"name": "standardise"}), sampled)
    assert after_log.steps[2] == Standardise(float(np.log1p([5.0, 9.0]).mean()), float(np.log1p([5.0, 9.0]).std()))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.just(NAN), min_size=1, max_size=50), st.permutations(range(4)))
def test_chains_round_trip_through_json_exactly(values: list[float], order: list[int]) -> None:
    available = ({"name": "clip", "low_quantile": 0.1, "high": 500}, {"name": "log"}, {"name": "standardise"})
    chosen = [(*available, {"name": "quantile", "bins": 7})[i] for i in order]
    for configs in (steps(*chosen), steps(*chosen, {"name": "bucketise", "bins": 5})):
        chain = NumericChain.fit(configs, sample(*values, exact=True))
        loaded = NumericChain.from_json(json.loads(json.dumps(chain.to_json(), allow_nan=False)))
        assert loaded == chain
        probe = np.array([*values, NAN, 0.0, 1e9])
        np.testing.assert_array_equal(loaded.apply(probe), chain.apply(probe))


def test_a_chain_of_another_version_is_rejected() -> None:
    values = NumericChain.fit((), sample(1)).to_json()
    with pytest.raises(DataError, match="version 7"):
        NumericChain.from_json({**values, "version": 7})


def test_scipy_is_imported_where_a_step_needs_it_and_not_with_every_command() -> None:
    modules = "ziggurat.features.config, ziggurat.towers.partitioner.balanced_kmeans"
    code = f"import sys, {modules}; print('scipy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_a_power_of_values_far_from_zero_is_no_constant_by_rounding() -> None:
    for seed in range(20):
        years = np.random.default_rng(seed).integers(2000, 2024, 2_000).astype(np.float64)
        step = Power.fit(PowerConfig(), NumericSample(years))
        transformed = step.apply(years)
        assert len(np.unique(transformed)) == 24
        assert transformed.std() == pytest.approx(1.0, abs=1e-6)
        assert np.corrcoef(transformed, years)[0, 1] > 0.99
    huge = 1e15 + np.arange(1_000.0)
    assert Power.fit(PowerConfig(), NumericSample(huge)).exponent == 1.0
