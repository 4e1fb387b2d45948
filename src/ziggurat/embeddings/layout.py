"""The layout of a model's input, determined before weights exist: the tables, and the fields made of their rows.

A *field* is one of the F vectors of D floats that a model receives. Most features give one field each. A feature of a
table with several vectors per row gives as many fields, and a group of features gives one field together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ziggurat.core.errors import ConfigError, nearest
from ziggurat.core.schema import Schema
from ziggurat.core.tables import Pooling, TableSpec
from ziggurat.embeddings.config import EmbeddingsConfig, GroupConfig, check_groups, table_specs
from ziggurat.interactions.sequences.sequence_pooling import SequenceEncoderConfig


@dataclass(frozen=True, slots=True)
class Positions:
    """Encodes a sequence by looking up its last ``count`` ids individually and passing them through ``encoder``."""

    encoder: SequenceEncoderConfig
    count: int


@dataclass(frozen=True, slots=True)
class FieldSource:
    """Features whose concatenated rows become one or more fields; several features only if they are a group."""

    features: tuple[str, ...]
    fields: tuple[str, ...]
    group: GroupConfig | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of a model and how fields are made of their rows.

    Attributes:
        schema: the encoded columns.
        tables: the tables, in the order in which the schema's features first name them.
        positions: the sequences that are encoded by position instead of being pooled by their table.
        sources: the features behind the fields, in field order: that of ``schema.sparse``, a group at its first
            feature.
        dim: D.
        numbers: the dense features that become fields too, after those of ``sources``.
        bins: the intervals of each of these.
    """

    schema: Schema
    tables: tuple[TableSpec, ...]
    positions: dict[str, Positions]
    sources: tuple[FieldSource, ...]
    dim: int
    numbers: tuple[str, ...] = ()
    bins: int = 0

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the F fields."""
        return (*(field for source in self.sources for field in source.fields), *self.numbers)

    @property
    def table_of(self) -> dict[str, TableSpec]:
        """A map from each feature to its table."""
        return {feature: spec for spec in self.tables for feature in spec.features}

    @property
    def projected(self) -> tuple[TableSpec, ...]:
        """The tables whose vectors a learned matrix projects to D."""
        alone = {feature for source in self.sources if source.group is None for feature in source.features}
        return tuple(spec for spec in self.tables if spec.vector_dim != self.dim and alone.intersection(spec.features))

    @property
    def direct(self) -> bool:
        """Whether the pooled rows are the fields, without any learned step between."""
        return not (self.positions or self.projected or any(source.group for source in self.sources))


def lay_out(
    config: EmbeddingsConfig,
    schema: Schema,
    pooling: Mapping[str, Pooling | Positions],
    dim: int | None = None,
    ranked: Collection[str] = (),
) -> Layout:
    """Returns the layout that the ``embeddings`` section and the features' poolings describe.

    Args:
        config: the ``embeddings`` section.
        schema: the encoded dataset's schema.
        pooling: bag or sequence feature -> how its rows become one.
        dim: the width that the model requires; overrides ``config.dim``.
        ranked: the dense features that hold ranks between 0 and 1; ``config.numeric_bins`` makes fields of them.

    Raises:
        ConfigError: an exception for a table that does not exist; two poolings for one table; an invalid target of a
            sequence or an invalid member of a group.
    """
    check_groups(config, schema)
    plain: dict[str, Pooling] = {name: how for name, how in pooling.items() if not isinstance(how, Positions)}
    positions = {name: how for name, how in pooling.items() if isinstance(how, Positions)}
    counts = {name: how.count for name, how in positions.items()}
    tables = tuple(table_specs(config, schema, plain, dim, counts))
    numbers = tuple(name for name in schema.dense if name in ranked) if config.numeric_bins else ()
    sources = tuple(_sources(config, schema, tables))
    layout = Layout(schema, tables, positions, sources, dim or config.dim, numbers, config.numeric_bins or 0)
    for feature in positions:
        _check_target(layout, feature)
    return layout


def _sources(config: EmbeddingsConfig, schema: Schema, tables: tuple[TableSpec, ...]) -> Iterator[FieldSource]:
    vectors = {feature: spec.vectors for spec in tables for feature in spec.features}
    group_of = {feature: group for group in config.groups for feature in group.features}
    for feature in schema.sparse:
        group = group_of.get(feature)
        if group is None:
            several = vectors[feature] > 1
            names = [f"{feature} {number + 1}" if several else feature for number in range(vectors[feature])]
            yield FieldSource((feature,), tuple(names))
        else:
            members = tuple(name for name in schema.sparse if group_of.get(name) is group)
            if feature == members[0]:
                yield FieldSource(members, (" + ".join(members),), group)


def _check_target(layout: Layout, feature: str) -> None:
    target = layout.positions[feature].encoder.target_feature
    if target is None:
        return
    key, table_of = f"features.{feature}.pooling.target", layout.table_of
    if target not in layout.schema.categorical:
        close = nearest(target, layout.schema.categorical)
        hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(layout.schema.categorical) or 'none'}"
        raise ConfigError(
            f"{key}: {target!r} is not a categorical feature; {hint}",
            "name the feature (one id per row) that the sequence is a history of",
        )
    own, other = table_of[feature], table_of[target]
    if own.dim != other.dim:
        raise ConfigError(
            f"{key}: rows of {feature!r} (table {own.name!r}) hold {own.dim} floats, "
            f"those of its target {target!r} (table {other.name!r}) {other.dim}",
            "name a target that shares the sequence's table, "
            f"or give both tables the same dim and vectors in embeddings.tables.{own.name} and .{other.name}",
        )
