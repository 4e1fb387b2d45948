"""Inputs that are made of numbers: the numbers of a spline, and the product of several missing flags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ziggurat.features.columns import numbers
from ziggurat.features.config import InputFeature, NumericFeature
from ziggurat.features.numeric.spline import SplineConfig
from ziggurat.features.several_columns import MissingTogetherFeature


class SplineNumber(NumericFeature):
    """A number of a numeric feature whose last step is ``spline``; ``index`` counts from 0."""

    origin: NumericFeature
    index: int

    @property
    def source_column(self) -> str:
        return self.origin.source_column


class MissingTogetherNumber(NumericFeature):
    """The number that a product of missing flags becomes."""

    origin: MissingTogetherFeature

    @property
    def source_column(self) -> str:
        return f"@missing together in {', '.join(self.origin.columns)}"

    @property
    def log_columns(self) -> tuple[str, ...]:
        return self.origin.log_columns


def spline_inputs(feature: NumericFeature, spline: SplineConfig) -> list[SplineNumber]:
    """Returns the numbers ``age[0]``, ``age[1]``, … of a numeric feature ``age`` that ends in ``spline``."""
    return [
        SplineNumber(name=f"{feature.name}[{index}]", transforms=feature.transforms, origin=feature, index=index)
        for index in range(spline.numbers)
    ]


def missing_input(feature: MissingTogetherFeature) -> MissingTogetherNumber:
    """Returns the number that a product of missing flags becomes."""
    return MissingTogetherNumber(name=feature.name, origin=feature)


def with_missing_columns(table: pa.Table, features: Sequence[InputFeature]) -> pa.Table:
    """Returns the raw columns with a column of 0 and 1 for each product of missing flags.

    Args:
        table: raw columns.
        features: the inputs of the model.
    """
    for feature in features:
        if isinstance(feature, MissingTogetherNumber) and feature.source_column not in table.column_names:
            flags = [np.isnan(numbers(table.column(name))) for name in feature.origin.columns]
            values = np.logical_and.reduce(flags).astype(np.float64)
            table = table.append_column(feature.source_column, pa.array(values))
    return table
