"""Pass 2 of preparation: fits numeric chains on a sample of the training rows; computes statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.core.schema import WEIGHT_COLUMN
from ziggurat.core.statistics import FeatureStatistics, NumericStatistics, TableStatistics
from ziggurat.data.encoded.split import TRAIN, Assignment
from ziggurat.features.config import NumericFeature, Targets
from ziggurat.features.inputs.numbers import SplineNumber
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.numeric.moments import Moments, MomentsStream, RowSample, quantiles
from ziggurat.features.numeric.sample import NumericSample
from ziggurat.features.preparation.parts import StagedParts
from ziggurat.features.preparation_plan import Preparation


@dataclass(frozen=True, slots=True)
class StagedNumbers:
    """A sample and the exact moments of a raw numeric column's training values."""

    sample: npt.NDArray[np.float64]
    moments: Moments


@dataclass(frozen=True, slots=True)
class FittedNumbers:
    """Fitted numeric features: their chains and statistics, and the table statistics of bucketised ones."""

    chains: dict[str, NumericChain]
    features: dict[str, FeatureStatistics]
    tables: dict[str, TableStatistics]


_COLUMNS_AT_ONCE = 32
"""As many samples are in memory together: an encoded feature may have hundreds of columns."""


def measure_numbers(
    columns: Sequence[str], parts: StagedParts, assignments: Sequence[Assignment]
) -> dict[str, StagedNumbers]:
    """Returns exact moments and a sample of numeric columns over the training rows."""
    sample = RowSample(len(columns))
    moments = {name: MomentsStream() for name in columns}
    if columns:
        for part, (start, assignment) in enumerate(zip(parts.starts, assignments, strict=True)):
            training = np.flatnonzero(assignment == TRAIN)
            values = {name: parts.numbers(part, name)[training] for name in columns}
            for name, column in values.items():
                moments[name].add(column)
            sample.add(start + training, [values[name] for name in columns])
    return {
        name: StagedNumbers(sampled, moments[name].result())
        for name, sampled in zip(columns, sample.columns(), strict=True)
    }


def fit_numbers(plan: Preparation, parts: StagedParts, assignments: Sequence[Assignment]) -> FittedNumbers:
    """Fits the chain of every numeric feature."""
    fitted = FittedNumbers({}, {}, {})
    for first in range(0, len(plan.number_columns), _COLUMNS_AT_ONCE):
        columns = plan.number_columns[first : first + _COLUMNS_AT_ONCE]
        _fit_columns(plan, measure_numbers(columns, parts, assignments), parts, assignments, fitted)
    return fitted


def _fit_columns(
    plan: Preparation,
    columns: Mapping[str, StagedNumbers],
    parts: StagedParts,
    assignments: Sequence[Assignment],
    fitted: FittedNumbers,
) -> None:
    """Adds the features of some columns to ``fitted``."""
    for feature in plan.features:
        if not isinstance(feature, NumericFeature) or feature.source_column not in columns:
            continue
        column = columns[feature.source_column]
        index = feature.index if isinstance(feature, SplineNumber) else 0
        chain = NumericChain.fit(feature.transforms, NumericSample(column.sample, column.moments), index)
        fitted.chains[feature.name] = chain
        fitted.features[feature.name] = _statistics(feature, column)
        if chain.table_rows is not None:
            accesses = np.zeros(chain.table_rows, np.int64)
            for part, assignment in enumerate(assignments):
                values = parts.numbers(part, feature.source_column)
                ids = chain.apply(values[assignment == TRAIN])
                accesses += np.bincount(ids.astype(np.int64), minlength=chain.table_rows)
            fitted.tables[feature.name] = TableStatistics(feature.name, chain.table_rows, accesses)


def check_weights(
    targets: Targets, parts: StagedParts, assignments: Sequence[Assignment], files: Sequence[str]
) -> None:
    """Validates that a training row has a weight above 0: rows of weight 0 alone say nothing to learn.

    Args:
        targets: the targets; nothing is checked without a weight.
        parts: the staged parts.
        assignments: the split of each row, for each part.
        files: names of the raw files, for the message.

    Raises:
        DataError: all training rows have weight 0.
    """
    if targets.weight is None:
        return
    rows = 0
    for part, assignment in enumerate(assignments):
        weights = parts.target(part, WEIGHT_COLUMN)[assignment == TRAIN]
        if weights.any():
            return
        rows += len(weights)
    raise DataError(
        f"{', '.join(files)}: column {targets.weight!r}: the weights of all {rows:,} training rows are 0",
        "name another column as data.weight, leave it out, or choose another data.split",
    )


def _statistics(feature: NumericFeature, column: StagedNumbers) -> FeatureStatistics:
    moments = column.moments
    rows = moments.count + moments.missing
    return FeatureStatistics(
        name=feature.name,
        kind="numeric",
        table=feature.name if feature.bucketised else None,
        coverage=moments.count / rows,
        missing_share=moments.missing / rows,
        mean_pooling=1.0 if feature.bucketised else 0.0,
        max_pooling=1 if feature.bucketised else 0,
        numeric=NumericStatistics(
            count=moments.count,
            mean=moments.mean,
            std=moments.std,
            min=moments.min,
            max=moments.max,
            zeros=moments.zeros,
            non_zero_share=(moments.count - moments.zeros) / rows,
            quantiles=quantiles(column.sample),
        ),
    )
