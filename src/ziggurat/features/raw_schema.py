"""Derives the raw columns that a config needs, each with the type that all of its uses accept.

Ids declare their type. Numbers (numeric features, labels without a text, weight, time) accept INTEGER or FLOAT; keys
and groups accept INTEGER or TEXT. A column whose uses leave the type open is read as FLOAT or TEXT, respectively.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ziggurat.core.errors import ConfigError
from ziggurat.core.schema import RawColumn, RawSchema, ValueType, VectorElement
from ziggurat.data.readers.cells.times import ISO
from ziggurat.features.config import (
    BagFeature,
    DataConfig,
    EncodedFeature,
    FeatureConfig,
    LabelConfig,
    NumericFeature,
    SequenceFeature,
    Targets,
    TimeFeature,
    VectorFeature,
)
from ziggurat.features.several_columns import CrossedFeature, MissingTogetherFeature
from ziggurat.features.tables import resolve_tables
from ziggurat.features.vectors import vector_inputs

_NUMBER = (ValueType.FLOAT, ValueType.INTEGER)
_TIME = (ValueType.TIME,)
_KEY = (ValueType.TEXT, ValueType.INTEGER)


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a column.

    Attributes:
        column: name of the raw column.
        user: the feature or key that uses it, for messages.
        types: accepted types, the preferred one first.
        required: whether empty cells are rejected.
        delimiter: separates the values of a cell; None for single values.
        brackets: whether a cell is a list in brackets.
        vector: the number of a vector that the column is.
        time_format: how times are written, if they are read as times.
    """

    column: str
    user: str
    types: tuple[ValueType, ...]
    required: bool = False
    delimiter: str | None = None
    brackets: bool = False
    time_format: str = ISO
    vector: VectorElement | None = None


def raw_schema(data: DataConfig, features: Sequence[FeatureConfig]) -> RawSchema:
    """Returns the columns that readers must deliver to prepare a dataset, in order of first use.

    Raises:
        ConfigError: a column is used with incompatible types, or both as single values and as lists.
    """
    needed = {"data.split.key": data.split_key}
    if data.negatives is not None:
        needed |= {"data.negatives.user": data.negatives.user, "data.negatives.item": data.negatives.item}
    return columns_for(features, data.targets, {user: column for user, column in needed.items() if column is not None})


def columns_for(
    features: Sequence[FeatureConfig], targets: Targets | None, keys: Mapping[str, str] | None = None
) -> RawSchema:
    """Returns the columns of features, targets and keys, in order of first use.

    Args:
        features: the features of the config.
        targets: the targets; None for unlabelled rows.
        keys: what else needs a key in each row -> its column, such as the key of a split.

    Raises:
        ConfigError: a column is used with incompatible types, or both as single values and as lists.
    """
    resolve_tables(features)
    uses = [*_feature_uses(features), *(_target_uses(targets) if targets else ())]
    uses += [_Use(column, user, _KEY, required=True) for user, column in (keys or {}).items()]
    by_column: dict[str, list[_Use]] = {}
    for use in uses:
        by_column.setdefault(use.column, []).append(use)
    return RawSchema(tuple(_column(name, column_uses) for name, column_uses in by_column.items()))


def _feature_uses(features: Sequence[FeatureConfig]) -> Iterable[_Use]:
    for feature in features:
        user = f"feature {feature.name!r}"
        if isinstance(feature, TimeFeature):
            yield _Use(feature.source_column, user, _TIME, time_format=feature.time_format)
        elif isinstance(feature, EncodedFeature):
            yield _Use(feature.source_column, user, (feature.value_type,))
        elif isinstance(feature, MissingTogetherFeature):
            yield from (_Use(column, user, _NUMBER) for column in feature.columns)
        elif isinstance(feature, CrossedFeature):
            yield from (_Use(column, user, _KEY) for column in feature.columns)
        elif isinstance(feature, NumericFeature):
            yield _Use(feature.source_column, user, _NUMBER)
        elif isinstance(feature, VectorFeature):
            for number in vector_inputs(feature):
                yield _Use(number.source_column, user, (ValueType.FLOAT,), vector=number.vector)
        else:
            many = isinstance(feature, BagFeature | SequenceFeature)
            delimiter, brackets = (feature.delimiter, feature.brackets) if many else (None, False)
            yield _Use(feature.source_column, user, (feature.value_type,), delimiter=delimiter, brackets=brackets)


def _target_uses(targets: Targets) -> Iterable[_Use]:
    for label in targets.labels:
        for column in label.source_columns:
            yield _Use(column, f"label {label.name!r}", _label_types(label), required=True)
    if targets.weight is not None:
        yield _Use(targets.weight, "data.weight", _NUMBER, required=True)
    if targets.group is not None:
        yield _Use(targets.group, "data.group", _KEY)
    if targets.time is not None:
        if targets.time_format == "number":
            yield _Use(targets.time, "data.time", _NUMBER, required=True)
        else:
            yield _Use(targets.time, "data.time", _TIME, required=True, time_format=targets.time_format)


def _label_types(label: LabelConfig) -> tuple[ValueType, ...]:
    return (ValueType.TEXT,) if isinstance(label.equals, str) else _NUMBER


def _column(name: str, uses: list[_Use]) -> RawColumn:
    """Returns the column that satisfies all of its uses.

    Raises:
        ConfigError: the uses contradict each other.
    """
    first = uses[0]
    types = first.types
    for use in uses[1:]:
        if (use.delimiter is None) != (first.delimiter is None):
            many, single = (use, first) if use.delimiter is not None else (first, use)
            raise ConfigError(
                f"column {name!r}: {many.user} reads several values from a cell, {single.user} reads one",
                "use the column in the same way in both places, or drop one",
            )
        if use.delimiter != first.delimiter:
            raise ConfigError(
                f"column {name!r}: {first.user} splits it by {first.delimiter!r}, {use.user} by {use.delimiter!r}",
                "give both the same delimiter",
            )
        if use.brackets != first.brackets:
            listed, plain = (use, first) if use.brackets else (first, use)
            raise ConfigError(
                f"column {name!r}: {listed.user} reads lists in brackets, {plain.user} reads plain values",
                "give both `brackets: true`, or neither",
            )
        if use.vector != first.vector:
            raise ConfigError(
                f"column {name!r}: {first.user} and {use.user} read it as different vectors, or one as a plain column",
                "give vectors of one column the same `length`, and rename a column that is called like their numbers",
            )
        common = tuple(kind for kind in types if kind in use.types)
        if not common:
            raise ConfigError(
                f"column {name!r}: {use.user} needs it as {_either(use.types)}, {first.user} as {_either(types)}",
                "a column is read in one type: change the `type` of one of them, or use another column",
            )
        if common == _TIME and use.time_format != first.time_format:
            raise ConfigError(
                f"column {name!r}: {first.user} reads its times as {first.time_format!r}, {use.user} as "
                f"{use.time_format!r}",
                "give both the same format",
            )
        types = common
    return RawColumn(
        name=name,
        type=types[0],
        many=first.delimiter is not None,
        delimiter=first.delimiter or "|",
        required=any(use.required for use in uses),
        brackets=first.brackets,
        time_format=first.time_format,
        vector=first.vector,
    )


def _either(types: tuple[ValueType, ...]) -> str:
    return " or ".join(types)
