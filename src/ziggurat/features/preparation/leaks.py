"""What tells a model the label: inputs made of its column or known only after it, and histories with their own row."""

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
    of_labels = {column for label in labels for column in label.source_columns}
    known = {config.name for config in configs if of_labels.intersection(config.log_columns)}  # said already
    telling = [_telling(each) for name, each in statistics.items() if each.tells and name not in known]
    return label_inputs(configs, labels) + telling + leak_warnings(statistics)


def _telling(feature: FeatureStatistics) -> str:
    return (
        f"a likely leak: {feature.name!r} alone tells {' and '.join(map(repr, feature.tells))} in every training row. "
        "If it is known only after the label, leave it out; if it is known when predicting, nothing is wrong"
    )


def label_inputs(configs: Sequence[FeatureConfig], labels: Sequence[LabelConfig]) -> list[str]:
    """Returns a sentence for each feature that is made of a label's column."""
    columns = {column: label.name for label in labels for column in label.source_columns}
    return [
        f"a leak: the feature {feature.name!r} is made of column {column!r}, which the label {columns[column]!r} is "
        "made of too: leave it out, as it is not known when predicting"
        for feature in configs
        for column in feature.log_columns
        if column in columns
    ]
