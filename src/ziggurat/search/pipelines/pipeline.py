"""What a pipeline is: the named parts that turn one column into numbers, as values that a config can hold.

The names are those of the specification of ClusterP3S (arXiv 2302.14329); its primitives are not available to us, so
that the choices are ours: three imputers, nine scalers and five discretisers of numbers, two imputers and four encoders
of categories, three readings of times. ``pipelines.blocks`` computes what each makes of a column, and
``pipelines.features_section`` writes the entries of a config.
"""

from __future__ import annotations

import functools
import itertools
from typing import Annotated, Literal, get_args

import pydantic

from ziggurat.core.config import Config

Kind = Literal["numeric", "categorical", "time"]
Imputer = Literal["mean", "median", "min"]
Scaler = Literal[
    "none", "standard", "min_max", "max_abs", "robust", "power", "quantile_uniform", "quantile_normal", "log"
]
Discretiser = Literal["none", "uniform_bins", "quantile_bins", "kmeans_bins", "spline"]
Encoder = Literal["ordinal", "one_hot", "target", "hash"]
TimeEncoder = Literal["cyclic", "age", "cyclic_and_age"]

_LINEAR = ("standard", "min_max", "max_abs", "robust")


class NumericPipeline(Config):
    """A number: imputed, scaled, and possibly cut into intervals or spread over a spline's basis."""

    kind: Literal["numeric"] = "numeric"
    imputer: Imputer = "median"
    """What replaces a missing value: a statistic of the training values."""
    scaler: Scaler = "standard"
    """How values are scaled; ``log`` is sign(x) log(1 + |x|), ``power`` Yeo and Johnson's transform, standardised."""
    discretiser: Discretiser = "none"
    """Intervals, one-hot, or a cubic B-spline's basis."""
    bins: int = pydantic.Field(default=8, ge=2, le=256)
    """Number of intervals, or of the spline's basis functions less two."""
    missing_flag: bool = False
    """Whether a number that is 1 for missing values, else 0, is added."""


class CategoricalPipeline(Config):
    """A category: one number, or one for each category or bucket."""

    kind: Literal["categorical"] = "categorical"
    imputer: Literal["category", "most_frequent"] = "category"
    """Whether missing values are a category of their own, or become the most frequent one."""
    encoder: Encoder = "one_hot"
    """``one_hot`` has a number for each of the 62 most frequent categories; ``target`` is the mean of the label,
    smoothed and cross-fitted; ``ordinal`` the place in the order of texts, or of whole numbers."""
    buckets: int = pydantic.Field(default=32, ge=2, le=4096)
    """With ``hash``: number of buckets."""


class TimePipeline(Config):
    """A time: sines and cosines of the hour, the weekday and the month, its age in days, or both."""

    kind: Literal["time"] = "time"
    encoder: TimeEncoder = "cyclic"
    """``cyclic`` holds six numbers, ``age`` one, standardised."""


Pipeline = Annotated[NumericPipeline | CategoricalPipeline | TimePipeline, pydantic.Field(discriminator="kind")]

STANDARD: dict[Kind, NumericPipeline | CategoricalPipeline | TimePipeline] = {
    "numeric": NumericPipeline(),
    "categorical": CategoricalPipeline(),
    "time": TimePipeline(),
}
"""Standard scaling, the baseline of every comparison."""


def why_masked(pipeline: NumericPipeline | CategoricalPipeline | TimePipeline) -> str:
    """Returns why a search leaves a combination out; empty if it does not.

    All combinations compute something. What is masked computes the same as a shorter one, so that looking at it would
    be an evaluation for nothing.
    """
    if not isinstance(pipeline, NumericPipeline) or pipeline.discretiser == "none":
        return ""
    if pipeline.discretiser == "quantile_bins" and pipeline.scaler != "none":
        return f"quantile_bins hold the same rows after {pipeline.scaler}, which keeps the order: scaler none is it"
    if pipeline.scaler in _LINEAR:
        return f"{pipeline.discretiser} are the same after {pipeline.scaler}, which is linear: scaler none is it"
    if pipeline.discretiser == "uniform_bins" and pipeline.scaler == "quantile_uniform":
        return "uniform_bins of ranks are quantile_bins: discretiser quantile_bins with scaler none is it"
    return ""


@functools.cache
def possible(kind: Kind, *, has_missing: bool) -> tuple[NumericPipeline | CategoricalPipeline | TimePipeline, ...]:
    """Returns the combinations that a search draws from, in a fixed order.

    Args:
        kind: the kind of the column.
        has_missing: whether a training value is missing; without one, imputers and flags change nothing.
    """
    if kind == "time":
        return tuple(TimePipeline(encoder=each) for each in get_args(TimeEncoder))
    if kind == "categorical":
        imputers = ("category", "most_frequent") if has_missing else ("category",)
        return tuple(
            CategoricalPipeline(imputer=imputer, encoder=encoder)
            for imputer, encoder in itertools.product(imputers, get_args(Encoder))
        )
    every = (
        NumericPipeline(imputer=imputer, scaler=scaler, discretiser=discretiser, missing_flag=flag)
        for imputer, scaler, discretiser, flag in itertools.product(
            get_args(Imputer) if has_missing else ("median",),
            get_args(Scaler),
            get_args(Discretiser),
            (False, True) if has_missing else (False,),
        )
    )
    return tuple(each for each in every if not why_masked(each))


def simplest(
    pipeline: NumericPipeline | CategoricalPipeline | TimePipeline, *, has_missing: bool, missing_is_own: bool = False
) -> NumericPipeline | CategoricalPipeline | TimePipeline:
    """Returns what a pipeline is for a column, without the parts that change nothing there.

    Args:
        pipeline: the pipeline.
        has_missing: whether a training value is missing.
        missing_is_own: whether one-hot and hashed categories have a place of their own for missing ones in any case.
    """
    if isinstance(pipeline, NumericPipeline):
        if pipeline.discretiser != "none" and why_masked(pipeline):
            same = "quantile_bins" if pipeline.scaler == "quantile_uniform" else pipeline.discretiser
            pipeline = pipeline.model_copy(update={"scaler": "none", "discretiser": same})
        if not has_missing:
            pipeline = pipeline.model_copy(update={"imputer": "median", "missing_flag": False})
    if isinstance(pipeline, CategoricalPipeline) and (
        not has_missing or (missing_is_own and pipeline.encoder in {"one_hot", "hash"})
    ):
        pipeline = pipeline.model_copy(update={"imputer": "category"})
    return pipeline


def title(pipeline: NumericPipeline | CategoricalPipeline | TimePipeline) -> str:
    """Returns a pipeline in a few words, such as ``median, power, spline``."""
    match pipeline:
        case NumericPipeline():
            parts = [pipeline.imputer, pipeline.scaler, pipeline.discretiser, "missing_flag" * pipeline.missing_flag]
            return ", ".join(each for each in parts if each not in ("none", "")) or "none"
        case CategoricalPipeline():
            return f"{pipeline.imputer}, {pipeline.encoder}"
        case TimePipeline():
            return pipeline.encoder
