"""Determines which features share an embedding table, and the encoder of each table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ziggurat.core.errors import ConfigError, InvalidSection
from ziggurat.core.schema import ValueType, duplicates
from ziggurat.features.config import FeatureConfig, IdFeature, InputFeature, NumericFeature
from ziggurat.features.encoders.encoder import EncoderSettings
from ziggurat.features.encoders.vocabulary import VocabularyConfig
from ziggurat.features.inputs.of_features import inputs_of


@dataclass(frozen=True, slots=True)
class TableEncoding:
    """The encoding of an embedding table, before it is fitted.

    Attributes:
        name: name of the table.
        encoder: the config of its encoder, which serves all of its features.
        type: INTEGER or TEXT, the same for all of its features.
        features: the features that look it up, in config order.
    """

    name: str
    encoder: EncoderSettings
    type: ValueType
    features: tuple[IdFeature, ...]


def resolve_tables(features: Sequence[FeatureConfig | InputFeature]) -> dict[str, TableEncoding]:
    """Returns the encoding of each table, by name, in order of first use; bucketised numbers need no encoding.

    Raises:
        ConfigError: there are no features, a name is used twice, or features that share a table contradict each other.
    """
    if not features:
        raise ConfigError("features: none are given", "list at least one feature")
    inputs = inputs_of(features)
    twice = duplicates(feature.name for feature in inputs)
    if twice:
        raise ConfigError(
            f"features: the name {twice[0]!r} is used twice", "rename one, and name its column with `column`"
        )
    members: dict[str, list[IdFeature]] = {}
    for feature in inputs:
        if not isinstance(feature, NumericFeature):
            members.setdefault(feature.table_name, []).append(feature)
    for feature in inputs:
        if isinstance(feature, NumericFeature) and feature.bucketised and feature.name in members:
            other = members[feature.name][0].name
            raise ConfigError(
                f"features: table {feature.name!r} belongs to the bucketised feature of that name, "
                f"but feature {other!r} uses it too",
                "use another table",
            )
    return {name: _shared_encoding(name, tuple(sharing)) for name, sharing in members.items()}


def _shared_encoding(table: str, features: tuple[IdFeature, ...]) -> TableEncoding:
    first = features[0]
    stated = [feature for feature in features if feature.encoder is not None]
    for feature in features[1:]:
        if feature.type != first.type:
            raise ConfigError(
                f"features: {first.name!r} reads ids of table {table!r} as {first.type}, "
                f"{feature.name!r} as {feature.type}",
                "give both features one type, or each a table of its own",
            )
    for feature in stated[1:]:
        if feature.encoder != stated[0].encoder:
            raise ConfigError(
                f"features: {stated[0].name!r} and {feature.name!r} share table {table!r} but set different encoders",
                "set the encoder once, or give each feature a table of its own",
            )
    encoder = stated[0].encoder if stated else VocabularyConfig()
    assert encoder is not None
    try:
        encoder.check_type(first.value_type)
    except InvalidSection as error:
        raise ConfigError(f"feature {first.name!r}: {error.fault}", error.hint) from None
    return TableEncoding(table, encoder, first.value_type, features)
