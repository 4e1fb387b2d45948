"""The raw columns that a config needs, with the type that all their uses agree on.

Ids state their type. Numbers (numeric features, ``at_least``, 0/1 labels, weight, time) are content with INTEGER or
FLOAT, keys and groups with INTEGER or TEXT; a column that nobody pins is read as FLOAT, respectively TEXT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ziggurat.core.errors import ConfigError
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.features.config import (
    BagFeature,
    DataConfig,
    FeatureConfig,
    LabelConfig,
    NumericFeature,
    SequenceFeature,
    Targets,
)
from ziggurat.features.tables import resolve_tables

_NUMBER = (ValueType.FLOAT, ValueType.INTEGER)
_TIME = (ValueType.TIME,)
_KEY = (ValueType.TEXT, ValueType.INTEGER)


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a column: who, which types will do (the preferred first), and whether a cell may be empty."""

    column: str
    user: str
    types: tuple[ValueType, ...]
    required: bool = False
    delimiter: str | None = None
    brackets: bool = False


def raw_schema(data: DataConfig, features: Sequence[FeatureConfig]) -> RawSchema:
    """The columns that readers must deliver to prepare a dataset, in order of first use.

    Raises:
        ConfigError: one column used in two types, or once as a single value and once as a list.
    """
    return columns_for(features, data.targets, data.split_key)


def columns_for(features: Sequence[FeatureConfig], targets: Targets | None, split_key: str | None = None) -> RawSchema:
    """The columns of features, then of the targets (None: unlabelled rows), then the key that splits.

    Raises:
        ConfigError: one column used in two types, or once as a single value and once as a list.
    """
    resolve_tables(features)
    uses = [*_feature_uses(features), *(_target_uses(targets) if targets else ())]
    if split_key is not None:
        uses.append(_Use(split_key, "data.split.key", _KEY, required=True))
    by_column: dict[str, list[_Use]] = {}
    for use in uses:
        by_column.setdefault(use.column, []).append(use)
    return RawSchema(tuple(_column(name, sharing) for name, sharing in by_column.items()))


def _feature_uses(features: Sequence[FeatureConfig]) -> Iterable[_Use]:
    for feature in features:
        user = f"feature {feature.name!r}"
        if isinstance(feature, NumericFeature):
            yield _Use(feature.source_column, user, _NUMBER)
        else:
            many = isinstance(feature, BagFeature | SequenceFeature)
            delimiter, brackets = (feature.delimiter, feature.brackets) if many else (None, False)
            yield _Use(feature.source_column, user, (feature.value_type,), delimiter=delimiter, brackets=brackets)


def _target_uses(targets: Targets) -> Iterable[_Use]:
    for label in targets.labels:
        yield _Use(label.source_column, f"label {label.name!r}", _label_types(label), required=True)
    if targets.weight is not None:
        yield _Use(targets.weight, "data.weight", _NUMBER, required=True)
    if targets.group is not None:
        yield _Use(targets.group, "data.group", _KEY)
    if targets.time is not None:
        yield _Use(targets.time, "data.time", _TIME if targets.time_format == "iso" else _NUMBER, required=True)


def _label_types(label: LabelConfig) -> tuple[ValueType, ...]:
    return (ValueType.TEXT,) if isinstance(label.equals, str) else _NUMBER


def _column(name: str, uses: list[_Use]) -> RawColumn:
    first = uses[0]
    types = first.types
    for use in uses[1:]:
        if (use.delimiter is None) != (first.delimiter is None):
            many, single = (use, first) if use.delimiter is not None else (first, use)
            raise ConfigError(
                f"column {name!r}: {many.user} reads many values from a cell, {single.user} reads one",
                "make both uses of the column the same, or drop one",
            )
        if use.delimiter != first.delimiter:
            raise ConfigError(
                f"column {name!r}: {first.user} splits it by {first.delimiter!r}, {use.user} by {use.delimiter!r}",
                "give both the same delimiter",
            )
        if use.brackets != first.brackets:
            listed, plain = (use, first) if use.brackets else (first, use)
            raise ConfigError(
                f"column {name!r}: {listed.user} reads lists in brackets, {plain.user} reads none",
                "give both `brackets: true`, or neither",
            )
        common = tuple(kind for kind in types if kind in use.types)
        if not common:
            raise ConfigError(
                f"column {name!r}: {use.user} needs it as {_either(use.types)}, {first.user} as {_either(types)}",
                "a column is read in one type: change the `type` of one of them, or use another column",
            )
        types = common
    return RawColumn(
        name=name,
        type=types[0],
        many=first.delimiter is not None,
        delimiter=first.delimiter or "|",
        required=any(use.required for use in uses),
        brackets=first.brackets,
    )


def _either(types: tuple[ValueType, ...]) -> str:
    return " or ".join(types)
