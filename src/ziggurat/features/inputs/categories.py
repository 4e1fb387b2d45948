"""Turns ids into dense inputs of the model, by maps that are fitted on the training rows.

The numbers of an :class:`~ziggurat.features.config.EncodedFeature` are columns that exist in memory only, as those of
times; a numeric chain is fitted on them and applied to them as to any other number. A target encoding gives a training
row the figures of the training rows in other folds (:func:`~ziggurat.features.encoders.category_numbers.folds_of`), and
every other row those of all training rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import ConfigError, nearest
from ziggurat.features.columns import encode_column
from ziggurat.features.config import DataConfig, EncodedFeature, FeatureConfig, InputFeature, NumericFeature
from ziggurat.features.encoders.category_numbers import CategoryMap, TargetEncoding, folds_of
from ziggurat.features.encoders.encoder import Ids
from ziggurat.features.labels import LabelConfig
from ziggurat.features.negatives_config import InBatchNegatives


class CategoryNumber(NumericFeature):
    """A number that an encoded feature becomes; ``index`` counts from 0."""

    origin: EncodedFeature
    index: int

    @property
    def source_column(self) -> str:
        return f"@{self.index} of {self.origin.name}"

    @property
    def log_columns(self) -> tuple[str, ...]:
        return self.origin.log_columns


def category_inputs(feature: EncodedFeature) -> list[CategoryNumber]:
    """Returns the number ``city`` of an encoded feature ``city``, or its numbers ``city[0]``, ``city[1]``, …"""
    count = feature.encoding.numbers
    return [
        CategoryNumber(
            name=feature.name if count == 1 else f"{feature.name}[{index}]",
            transforms=feature.transforms,
            origin=feature,
            index=index,
        )
        for index in range(count)
    ]


def encoded_features(features: Sequence[FeatureConfig | InputFeature]) -> list[EncodedFeature]:
    """Returns the encoded features of a config, or those that inputs are made of."""
    origins = (each.origin if isinstance(each, CategoryNumber) else each for each in features)
    return list({each.name: each for each in origins if isinstance(each, EncodedFeature)}.values())


def target_label(feature: EncodedFeature, labels: Sequence[LabelConfig]) -> LabelConfig:
    """Returns the label whose mean a target encoding is.

    Raises:
        ConfigError: there is none of its name.
    """
    assert isinstance(feature.encoding, TargetEncoding)
    wanted = feature.encoding.label
    if wanted is None:
        return labels[0]
    names = [label.name for label in labels]
    if wanted not in names:
        close = nearest(wanted, names)
        hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(names)}"
        raise ConfigError(f"feature {feature.name!r}: encoding.label: there is no label {wanted!r}; {hint}")
    return labels[names.index(wanted)]


def check_target_labels(features: Sequence[FeatureConfig], data: DataConfig) -> None:
    """Checks that target encodings have a label whose mean differs between rows.

    Raises:
        ConfigError: there is no such label, or all of its training rows are ones.
    """
    for feature in encoded_features(features):
        if not isinstance(feature.encoding, TargetEncoding):
            continue
        label = target_label(feature, data.labels)
        if isinstance(data.negatives, InBatchNegatives) and label.name == data.negative_label:
            raise ConfigError(
                f"feature {feature.name!r}: label {label.name!r} is 1 in every training row, as its negatives are "
                "those of the batch, so that every id has the same mean",
                "sample negatives by uniform or popularity, or choose another encoding",
            )


def category_columns(
    table: pa.Table,
    features: Sequence[InputFeature],
    maps: Mapping[str, CategoryMap],
    places_B: npt.NDArray[np.int64] | None = None,
) -> dict[str, npt.NDArray[np.float64]]:
    """Returns the numbers of encoded features, by the column that their inputs read.

    Args:
        table: raw columns.
        features: the inputs of the model.
        maps: the fitted map of each encoded feature.
        places_B: the places of training rows among all usable rows of the log, -1 for other rows; None: no training
            row is among them.
    """
    found: dict[str, npt.NDArray[np.float64]] = {}
    known: dict[str, tuple[Ids, Ids | None]] = {}
    for number in features:
        if not isinstance(number, CategoryNumber):
            continue
        feature = number.origin
        if feature.name not in known:
            values, codes = encode_column(table.column(feature.source_column))
            rows_B = maps[feature.name].rows_of(values)[codes.codes]
            known[feature.name] = rows_B, training_folds(feature, places_B)
        found[number.source_column] = maps[feature.name].apply(number.index, *known[feature.name])
    return found


def training_folds(feature: EncodedFeature, places_B: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64] | None:
    """Returns the folds of training rows, -1 for other rows; None if there are none, or the encoding has no folds."""
    if places_B is None or not isinstance(feature.encoding, TargetEncoding):
        return None
    return np.where(places_B >= 0, folds_of(places_B, feature.encoding.folds), -1)
