"""Ids that combine the ids of several columns of a row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ziggurat.core.errors import ConfigError
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.features.columns import plain
from ziggurat.features.config import CategoricalFeature, DataConfig, FeatureConfig, InputFeature
from ziggurat.features.several_columns import CrossedFeature, MissingTogetherFeature

BETWEEN = " × "
"""What separates the ids of a combination."""


class CrossedId(CategoricalFeature):
    """The id that a crossed feature becomes: the text of its columns' ids, separated by :data:`BETWEEN`."""

    origin: CrossedFeature

    @property
    def source_column(self) -> str:
        return f"@{BETWEEN.join(self.origin.columns)}"

    @property
    def log_columns(self) -> tuple[str, ...]:
        return self.origin.log_columns


def crossed_input(feature: CrossedFeature) -> CrossedId:
    """Returns the id that a crossed feature becomes."""
    return CrossedId(name=feature.name, origin=feature, encoder=feature.encoder)


def with_crossed_columns(table: pa.Table, features: Sequence[InputFeature]) -> pa.Table:
    """Returns the raw columns with one of combined ids for each crossed feature, null where one of the ids is.

    Args:
        table: raw columns.
        features: the inputs of the model.
    """
    for feature in features:
        if isinstance(feature, CrossedId) and feature.source_column not in table.column_names:
            texts = [plain(table.column(name)).cast(pa.string()) for name in feature.origin.columns]
            table = table.append_column(feature.source_column, pc.binary_join_element_wise(*texts, BETWEEN))
    return table


def check_crosses(features: Sequence[FeatureConfig], data: DataConfig) -> None:
    """Checks that sampled negatives do not tear a combination apart.

    Raises:
        ConfigError: a feature is made of columns of the item and of others, which have no common value in a row whose
            item was drawn.
    """
    if data.negatives is None:
        return
    described = {data.negatives.item, *data.negatives.item_columns}
    for feature in features:
        if isinstance(feature, CrossedFeature | MissingTogetherFeature):
            torn = [name for name in feature.columns if name in described]
            if torn and len(torn) < len(feature.columns):
                raise ConfigError(
                    f"feature {feature.name!r}: it combines {torn[0]!r}, which describes the item, with other columns; "
                    "data.negatives draws another item for these",
                    "leave the feature out, or bring a log that has its negatives",
                )
