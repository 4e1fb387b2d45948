"""Which features share which embedding table, and the one encoder that each table gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ziggurat.core.errors import ConfigError, InvalidSection
from ziggurat.core.schema import ValueType, duplicates
from ziggurat.features.config import FeatureConfig, IdFeature, NumericFeature
from ziggurat.features.encoders.encoder import EncoderSettings
from ziggurat.features.encoders.vocabulary import VocabularyConfig


@dataclass(frozen=True, slots=True)
class TableEncoding:
    """An embedding table before it is fitted.

    Attributes:
        encoder: how the ids of all its features become rows.
        type: INTEGER or TEXT, the same for all its features.
        features: the features that look it up, in config order.
    """

    name: str
    encoder: EncoderSettings
    type: ValueType
    features: tuple[IdFeature, ...]


def resolve_tables(features: Sequence[FeatureConfig]) -> dict[str, TableEncoding]:
    """Table name -> encoding, in order of first mention; tables of bucketised numbers need none and are left out.

    Raises:
        ConfigError: no features, a name used twice, or features that share a table but disagree about it.
    """
    if not features:
        raise ConfigError("features: none are given", "list at least one feature")
    twice = duplicates(feature.name for feature in features)
    if twice:
        raise ConfigError(
            f"features: the name {twice[0]!r} is used twice", "rename one, and give its column by `column`"
        )
    members: dict[str, list[IdFeature]] = {}
    for feature in features:
        if not isinstance(feature, NumericFeature):
            members.setdefault(feature.table_name, []).append(feature)
    for feature in features:
        if isinstance(feature, NumericFeature) and feature.bucketised and feature.name in members:
            other = members[feature.name][0].name
            raise ConfigError(
                f"features: table {feature.name!r} belongs to the bucketised feature of that name, "
                f"but feature {other!r} names it too",
                "name another table",
            )
    return {name: _agree(name, tuple(sharing)) for name, sharing in members.items()}


def _agree(table: str, features: tuple[IdFeature, ...]) -> TableEncoding:
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
                f"features: {stated[0].name!r} and {feature.name!r} share table {table!r} but state different encoders",
                "state the encoder once, or give each feature a table of its own",
            )
    encoder = stated[0].encoder if stated else VocabularyConfig()
    assert encoder is not None
    try:
        encoder.check_type(first.value_type)
    except InvalidSection as error:
        raise ConfigError(f"feature {first.name!r}: {error.fault}", error.hint) from None
    return TableEncoding(table, encoder, first.value_type, features)
