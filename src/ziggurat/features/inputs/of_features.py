"""Turns the features of a config into the inputs of the model, each of which is one number or one column of ids.

Times, vectors, splines, encoded categories, crosses and products of missing flags become inputs of their own; others
are inputs as they stand.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ziggurat.features.config import (
    EncodedFeature,
    FeatureConfig,
    InputFeature,
    NumericFeature,
    TimeFeature,
    VectorFeature,
)
from ziggurat.features.inputs.categories import category_inputs
from ziggurat.features.inputs.crosses import crossed_input, with_crossed_columns
from ziggurat.features.inputs.numbers import SplineNumber, missing_input, spline_inputs, with_missing_columns
from ziggurat.features.several_columns import CrossedFeature, MissingTogetherFeature
from ziggurat.features.time_inputs import time_inputs, with_time_columns
from ziggurat.features.vectors import vector_inputs


def inputs_of(features: Sequence[FeatureConfig | InputFeature]) -> tuple[InputFeature, ...]:
    """Returns the inputs of the model, in order; inputs remain what they are."""
    found: list[InputFeature] = []
    for feature in features:
        match feature:
            case TimeFeature():
                found.extend(time_inputs(feature))
            case VectorFeature():
                found.extend(vector_inputs(feature))
            case EncodedFeature():
                found.extend(category_inputs(feature))
            case MissingTogetherFeature():
                found.append(missing_input(feature))
            case CrossedFeature():
                found.append(crossed_input(feature))
            case NumericFeature() if feature.spline is not None and not isinstance(feature, SplineNumber):
                found.extend(spline_inputs(feature, feature.spline))
            case _:
                found.append(feature)
    return tuple(found)


def with_derived_columns(table: pa.Table, features: Sequence[InputFeature]) -> pa.Table:
    """Returns the raw columns with those that follow from a row's own cells, without anything fitted.

    Args:
        table: raw columns.
        features: the inputs of the model.
    """
    return with_crossed_columns(with_missing_columns(with_time_columns(table, features), features), features)
