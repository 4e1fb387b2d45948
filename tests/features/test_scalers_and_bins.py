"""The steps that scale, bend, cut and spread numbers: against scikit-learn's transformers, and at their edges."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
)

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.features.numeric.bins import kmeans_centres
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.numeric.moments import Moments
from ziggurat.features.numeric.sample import NumericSample
from ziggurat.features.numeric.steps import StepConfig

NAN = float("nan")
DRAWN = np.random.default_rng(5)
COLUMNS = {
    "normal": DRAWN.normal(3.0, 2.0, 1_500),
    "skewed": DRAWN.lognormal(0.0, 1.0, 1_500),
    "negative": -DRAWN.gamma(2.0, 3.0, 1_500),
    "two humps": np.concatenate([DRAWN.normal(-5, 1, 700), DRAWN.normal(9, 2, 800)]),
}
FRESH = np.linspace(-40.0, 60.0, 401)  # also beyond the range of every column


class _Holder(Config):
    steps: tuple[StepConfig, ...]


def chain(values: npt.NDArray[np.float64], *steps: dict[str, Any], index: int = 0) -> NumericChain:
    configs = parse_config(_Holder, {"steps": list(steps)}).steps
    exact = None if np.isinf(values).any() else Moments.of(values)  # readers refuse infinite cells; steps may make some
    return NumericChain.fit(configs, NumericSample(values, exact), index)


REFERENCES: list[tuple[dict[str, Any], Any, float]] = [
    ({"name": "min_max"}, MinMaxScaler(), 1e-6),
    ({"name": "max_abs"}, MaxAbsScaler(), 1e-6),
    ({"name": "robust"}, RobustScaler(), 1e-6),
    ({"name": "power"}, PowerTransformer(), 2e-5),
    (
        {"name": "quantile", "bins": 200, "output": "normal"},
        QuantileTransformer(n_quantiles=201, output_distribution="normal", subsample=None),
        1e-5,
    ),
]


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(
    ("step", "reference", "tolerance"), REFERENCES, ids=lambda each: getattr(each, "get", str)("name")
)
def test_scalers_equal_those_of_scikit_learn(name: str, step: dict[str, Any], reference: Any, tolerance: float) -> None:
    """Within float32 for lines; of a power, the exponents of two optimizers differ a little more."""
    values = COLUMNS[name]
    fitted = chain(values, step)
    reference.fit(values[:, None])
    fresh = FRESH if step["name"] != "power" else np.linspace(values.min(), values.max(), 200)
    expected = reference.transform(fresh[:, None])[:, 0]
    np.testing.assert_allclose(fitted.apply(fresh), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("strategy", ["uniform", "quantile", "kmeans"])
def test_bins_equal_those_of_scikit_learn(name: str, strategy: str) -> None:
    values = COLUMNS[name]
    method = {"quantile_method": "linear"} if strategy == "quantile" else {}
    reference = KBinsDiscretizer(6, encode="ordinal", strategy=strategy, subsample=None, **method)
    reference.fit(values[:, None])
    fitted = chain(values, {"name": "bucketise", "bins": 6, "strategy": strategy})
    np.testing.assert_allclose(fitted.steps[-1].boundaries, reference.bin_edges_[0][1:-1], rtol=1e-9)  # type: ignore[union-attr]
    np.testing.assert_array_equal(fitted.apply(FRESH), 1 + reference.transform(FRESH[:, None])[:, 0])
    assert fitted.table_rows == 7
    assert fitted.apply(np.array([NAN])).tolist() == [0]


def test_kmeans_begins_lost_clusters_anew_and_finds_planted_ones() -> None:
    values = np.concatenate([np.full(50, 1.0), np.full(50, 1.1), np.full(20, 500.0), np.full(5, 1_000.0)])
    np.testing.assert_allclose(kmeans_centres(values + DRAWN.normal(0, 1e-3, 125), 3), [1.05, 500, 1_000], rtol=1e-2)
    assert kmeans_centres(np.array([2.0, 1.0, 2.0]), 5).tolist() == [1.0, 2.0]
    assert np.all(np.isfinite(kmeans_centres(np.array([-1.7e308, 0.0, 1.0, 1.7e308]), 2)))


@pytest.mark.parametrize("spacing", ["uniform", "quantile"])
@pytest.mark.parametrize(("knots", "degree"), [(5, 3), (2, 1), (8, 2)])
def test_splines_equal_those_of_scikit_learn(spacing: str, knots: int, degree: int) -> None:
    for values in COLUMNS.values():
        reference = SplineTransformer(knots, degree=degree, knots=spacing, extrapolation="constant").fit(
            values[:, None]
        )
        step = {"name": "spline", "knots": knots, "degree": degree, "spacing": spacing}
        fitted = [chain(values, step, index=index).apply(FRESH) for index in range(knots + degree - 1)]
        np.testing.assert_allclose(np.stack(fitted, axis=1), reference.transform(FRESH[:, None]), atol=1e-6)


EDGES = {
    "constant": np.full(9, 4.0),
    "large constant": np.full(9, -3e17),
    "zeros": np.zeros(5),
    "all missing": np.full(4, NAN),
    "one value": np.array([2.5]),
    "none": np.empty(0),
    "huge": np.array([-1.7e308, -1.0, 0.0, 3.0, 1.7e308]),
    "infinite": np.array([1.0, 2.0, np.inf, -np.inf, NAN]),
    "tiny spread": 2_020.0 + 1e-9 * np.arange(6),
    "years": 1_990.0 + DRAWN.integers(0, 30, 200),
    "mostly zero": np.concatenate([np.zeros(90), np.arange(10.0)]),
}
STEPS: list[dict[str, Any]] = [
    {"name": "min_max"},
    {"name": "max_abs"},
    {"name": "robust"},
    {"name": "power"},
    {"name": "quantile", "output": "normal"},
    {"name": "bucketise", "bins": 4, "strategy": "uniform"},
    {"name": "bucketise", "bins": 4, "strategy": "kmeans"},
    {"name": "spline"},
    {"name": "spline", "spacing": "quantile", "degree": 2},
    {"name": "missing_flag"},
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", EDGES)
def test_any_column_gives_numbers_and_is_saved_exactly(name: str) -> None:
    values = EDGES[name]
    fresh = np.concatenate([values, [NAN, 0.0, -1e308, 1e308, 5.5]])
    for step in STEPS:
        for index in (0, 3):
            fitted = chain(values, step, index=index)
            found = fitted.apply(fresh)
            assert np.isfinite(found).all(), step
            restored = NumericChain.from_json(json.loads(json.dumps(fitted.to_json(), allow_nan=False)))
            assert restored.apply(fresh).tobytes() == found.tobytes()
            halves = [fitted.apply(half) for half in (fresh[:3], fresh[3:])]
            assert np.concatenate(halves).tobytes() == found.tobytes(), "row by row"


def test_a_column_without_spread_is_shifted() -> None:
    constant = np.full(9, 4.0)
    assert chain(constant, {"name": "min_max"}).apply(np.array([4.0, 5.0])).tolist() == [0.0, 1.0]
    assert chain(constant, {"name": "robust"}).apply(np.array([4.0, 6.0])).tolist() == [0.0, 2.0]
    assert chain(constant, {"name": "power"}).apply(np.array([4.0])).tolist() == [0.0]
    assert chain(constant, {"name": "max_abs"}).apply(np.array([4.0, 8.0])).tolist() == [1.0, 2.0]


def test_ends_are_those_of_all_rows_also_after_other_steps() -> None:
    """The sample lacks the least and the greatest value, and has a missing one."""
    exact = Moments.of(np.array([-3.0, 1.0, 2.0, NAN, 15.0]))
    configs = parse_config(_Holder, {"steps": [{"name": "fill", "value": 20}, {"name": "log"}, {"name": "min_max"}]})
    fitted = NumericChain.fit(configs.steps, NumericSample(np.array([1.0, NAN, 2.0]), exact))
    np.testing.assert_allclose(fitted.apply(np.array([-3.0, NAN, 20.0])), [0.0, 1.0, 1.0], rtol=1e-6)
    whole = NumericChain.fit(configs.steps, NumericSample(np.array([1.0, 2.0]), Moments.of(np.array([1.0, 2.0, 15.0]))))
    np.testing.assert_allclose(whole.apply(np.array([1.0, 15.0])), [0.0, 1.0], atol=1e-7)


def test_numbers_of_a_spline_sum_to_one_everywhere() -> None:
    for values in (*COLUMNS.values(), EDGES["constant"], EDGES["mostly zero"]):
        total = sum(
            chain(values, {"name": "spline", "spacing": "quantile"}, index=index).apply(FRESH) for index in range(7)
        )
        np.testing.assert_allclose(total, 1.0, atol=1e-6)


def test_a_missing_flag_is_not_filled_before() -> None:
    values = np.array([1.0, NAN, 3.0])
    fitted = chain(values, {"name": "missing_flag"})
    assert not fitted.implicit_fill
    assert fitted.apply(values).tolist() == [0.0, 1.0, 0.0]
    standardised = chain(values, {"name": "missing_flag"}, {"name": "standardise"}).apply(values)
    np.testing.assert_allclose(standardised, [-(0.5**0.5), 2**0.5, -(0.5**0.5)], rtol=1e-6)


@pytest.mark.parametrize(
    ("step", "change", "problem"),
    [
        ({"name": "min_max"}, {"range": 0.0}, "not above 0"),
        ({"name": "power"}, {"std": -1.0}, "not above 0"),
        ({"name": "spline"}, {"knots": [1.0, 1.0, 2.0]}, "do not ascend"),
        ({"name": "spline"}, {"knots": [1.0]}, "too few"),
        ({"name": "robust"}, {"median": "3"}, "median"),
    ],
)
def test_a_damaged_step_is_refused(step: dict[str, Any], change: dict[str, Any], problem: str) -> None:
    saved = chain(COLUMNS["normal"], step).to_json()
    saved["steps"][-1] |= change
    with pytest.raises(DataError, match=problem):
        NumericChain.from_json(saved)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([{"name": "bucketise", "boundaries": [1], "strategy": "kmeans"}], "give bins, not boundaries"),
        ([{"name": "spline", "knots": 1}], "greater than or equal to 2"),
        ([{"name": "quantile", "output": "gaussian"}], "'uniform' or 'normal'"),
        ([{"name": "minmax"}], "did you mean"),
    ],
)
def test_steps_that_cannot_be(steps: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(_Holder, {"steps": steps})
