"""The blocks of numbers by NumPy: what scikit-learn's transformers compute, without their checks.

A search makes thousands of blocks of one column, of which checks are most of the time. The tests compare each with the
transformer that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.interpolate import BSpline
from scipy.optimize import brent
from scipy.special import ndtri

from ziggurat.features.numeric.bins import kmeans_centres
from ziggurat.features.numeric.power import yeo_johnson
from ziggurat.features.numeric.steps import Log
from ziggurat.search.pipelines.pipeline import NumericPipeline
from ziggurat.search.pipelines.table import Floats

Function = Callable[[Floats], Floats]
_QUANTILES = 100
_BOUND = 1e-7
_NARROW = 1e-8
_TINY = 10 * np.finfo(np.float64).eps
_DEGREE = 3


def numeric_block(pipeline: NumericPipeline, train: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Returns (n, w) of the training values (n,) and (m, w) of the others, fitted on the training values alone."""
    fill = _fill_value(pipeline.imputer, train)
    filled, rest = (np.where(np.isnan(each), fill, each) for each in (train, other))
    scale = _scaling(pipeline.scaler, filled)
    filled, rest = scale(filled), scale(rest)
    spread = _spreading(pipeline.discretiser, filled, pipeline.bins)
    blocks = [spread(filled), spread(rest)]
    if pipeline.missing_flag:
        flags = [np.isnan(each).astype(np.float64)[:, None] for each in (train, other)]
        blocks = [np.concatenate(each, axis=1) for each in zip(blocks, flags, strict=True)]
    return blocks[0], blocks[1]


def _fill_value(imputer: str, train: Floats) -> float:
    present = train[~np.isnan(train)]
    if len(present) == 0:
        return 0.0
    match imputer:
        case "mean":
            return float(present.mean())
        case "min":
            return float(present.min())
        case _:
            return float(np.median(present))


def _scaling(scaler: str, train: Floats) -> Function:
    match scaler:
        case "standard":
            return _standard(train)
        case "min_max":
            low, width = float(train.min()), _nonzero(float(np.ptp(train)))
            return lambda values: (values - low) / width
        case "max_abs":
            most = _nonzero(float(np.abs(train).max()))
            return lambda values: values / most
        case "robust":
            low, middle, high = np.percentile(train, [25.0, 50.0, 75.0])
            width = _nonzero(float(high - low))
            return lambda values: (values - middle) / width
        case "power":
            return _power(train)
        case "quantile_uniform":
            return _quantile(train, normal=False)
        case "quantile_normal":
            return _quantile(train, normal=True)
        case "log":
            return Log().apply
        case _:
            return lambda values: values


def _nonzero(width: float) -> float:
    return 1.0 if width < _TINY else width


def _standard(train: Floats) -> Function:
    mean, variance = float(train.mean()), float(train.var())
    eps, rows = np.finfo(np.float64).eps, len(train)
    constant = variance <= rows * eps * variance + (rows * mean * eps) ** 2
    std = 1.0 if constant else np.sqrt(variance)
    return lambda values: (values - mean) / std


def _power(train: Floats) -> Function:
    """Returns Yeo and Johnson's transform with the power of the greatest likelihood, then standardised."""
    if train.var() <= _TINY * abs(float(train.mean())) or np.ptp(train) == 0:
        return _standard(train)
    logs = float(np.sum(np.copysign(np.log1p(np.abs(train)), train)))
    rows = len(train)

    def loss(power: float) -> float:
        variance = yeo_johnson(train, power).var()
        return np.inf if not variance > 0 else 0.5 * rows * np.log(variance) - (power - 1) * logs

    found: Any = brent(loss, brack=(-2.0, 2.0))
    power = float(found)
    scale = _standard(yeo_johnson(train, power))
    return lambda values: scale(yeo_johnson(values, power))


def _quantile(train: Floats, *, normal: bool) -> Function:
    levels = np.linspace(0.0, 1.0, max(1, min(_QUANTILES, len(train))))
    knots = np.maximum.accumulate(np.percentile(train, levels * 100))

    def apply(values: Floats) -> Floats:
        ranks = 0.5 * (np.interp(values, knots, levels) - np.interp(-values, -knots[::-1], -levels[::-1]))
        margin = _BOUND if normal else 0.0
        ranks = np.where(values + margin > knots[-1] if normal else values == knots[-1], 1.0, ranks)
        ranks = np.where(values - margin < knots[0] if normal else values == knots[0], 0.0, ranks)
        if not normal:
            return ranks
        low, high = ndtri(_BOUND - np.spacing(1)), ndtri(1 - (_BOUND - np.spacing(1)))
        return np.clip(ndtri(ranks), low, high)

    return apply


def _spreading(discretiser: str, train: Floats, bins: int) -> Function:
    low, high = float(train.min()), float(train.max())
    if discretiser == "none":
        return lambda values: values[:, None]
    if discretiser == "spline":
        return _spline(low, high, bins)
    if low == high:
        return lambda values: np.ones((len(values), 1))
    match discretiser:
        case "uniform_bins":
            edges = np.linspace(low, high, bins + 1)
        case "quantile_bins":
            edges = np.percentile(train, np.linspace(0, 100, bins + 1), method="averaged_inverted_cdf")
        case _:
            centres = kmeans_centres(train, bins)
            edges = np.concatenate([[low], (centres[1:] + centres[:-1]) / 2, [high]])
    if discretiser != "uniform_bins":
        edges = edges[np.ediff1d(edges, to_begin=np.inf) > _NARROW]
    inner, count = edges[1:-1], max(1, len(edges) - 1)
    return lambda values: _one_hot(np.searchsorted(inner, values, side="right"), count)


def _one_hot(places: npt.NDArray[np.intp], count: int) -> Floats:
    hot = np.zeros((len(places), count))
    hot[np.arange(len(places)), places] = 1.0
    return hot


def _spline(low: float, high: float, knots: int) -> Function:
    """Returns the cubic B-spline basis over equal intervals; beyond its ends the values at the ends."""
    if low == high:
        return lambda values: np.zeros((len(values), knots + _DEGREE - 1))
    base = np.linspace(low, high, knots)
    step = base[1] - base[0]
    before = base[0] - step * np.arange(_DEGREE, 0, -1)
    after = base[-1] + step * np.arange(1, _DEGREE + 1)
    every = np.concatenate([before, base, after])

    def apply(values: Floats) -> Floats:
        inside = np.clip(values, low, high)
        return np.asarray(BSpline.design_matrix(inside, every, _DEGREE, extrapolate=False).toarray())

    return apply
