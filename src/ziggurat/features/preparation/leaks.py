"""What tells a model the label that it is to predict: inputs made of its column, and histories with their own row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ziggurat.core.statistics import FeatureStatistics
from ziggurat.features.config import FeatureConfig
from ziggurat.features.labels import LabelConfig
from ziggurat.features.preparation.own_ids import leak_warnings


def leaks(
    configs: Sequence[FeatureConfig], labels: Sequence[LabelConfig], statistics: Mapping[str, FeatureStatistics]
) -> list[str]:
    """Returns a sentence for each leak that the configs or the statistics of the prepared features show."""
    return label_inputs(configs, labels) + leak_warnings(statistics)


def label_inputs(configs: Sequence[FeatureConfig], labels: Sequence[LabelConfig]) -> list[str]:
    """Returns a sentence for each feature that is made of a label's column."""
    columns = {column: label.name for label in labels for column in label.source_columns}
    return [
        f"a leak: the feature {feature.name!r} is made of column {feature.source_column!r}, which the label "
        f"{columns[feature.source_column]!r} is made of too: leave it out, as it is not known when predicting"
        for feature in configs
        if feature.source_column in columns
    ]
