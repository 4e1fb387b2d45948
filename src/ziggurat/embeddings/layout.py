"""What the model is fed, decided before there are weights: the tables, and the fields that are made of their rows.

A *field* is one of the F vectors of D floats that a model sees. Most features are one field each; a table with
several vectors a row gives its features as many, and a group of features is one together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ziggurat.core.errors import ConfigError, nearest
from ziggurat.core.schema import Schema
from ziggurat.core.tables import Pooling, TableSpec
from ziggurat.embeddings.config import EmbeddingsConfig, GroupConfig, check_groups, table_specs
from ziggurat.interactions.sequences.sequence_pooling import SequencePooling, target_of


@dataclass(frozen=True, slots=True)
class Positions:
    """How a sequence becomes one row whose last ``count`` ids are looked up each by itself."""

    encoder: SequencePooling
    count: int


@dataclass(frozen=True, slots=True)
class FieldSource:
    """Features whose rows, side by side, become some of the fields; several features only where they are a group."""

    features: tuple[str, ...]
    fields: tuple[str, ...]
    group: GroupConfig | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """From ids to fields.

    Attributes:
        schema: the encoded columns.
        tables: in the order in which the schema's features first name them.
        positions: the sequences that are not pooled by their table.
        parts: what the fields are made of, in their order: that of ``schema.sparse``, a group where its first is.
        dim: D.
    """

    schema: Schema
    tables: tuple[TableSpec, ...]
    positions: dict[str, Positions]
    parts: tuple[FieldSource, ...]
    dim: int

    @property
    def fields(self) -> tuple[str, ...]:
        """A name for each of the F vectors."""
        return tuple(field for part in self.parts for field in part.fields)

    @property
    def table_of(self) -> dict[str, TableSpec]:
        """Feature -> its table."""
        return {feature: spec for spec in self.tables for feature in spec.features}

    @property
    def projected(self) -> tuple[TableSpec, ...]:
        """Tables whose vectors a learned matrix brings to D."""
        alone = {feature for part in self.parts if part.group is None for feature in part.features}
        return tuple(spec for spec in self.tables if spec.vector_dim != self.dim and alone.intersection(spec.features))

    @property
    def direct(self) -> bool:
        """Whether what the tables give is what the model sees."""
        return not (self.positions or self.projected or any(part.group for part in self.parts))


def lay_out(
    config: EmbeddingsConfig, schema: Schema, pooling: Mapping[str, Pooling | Positions], dim: int | None = None
) -> Layout:
    """The layout that the ``embeddings`` section and the features' poolings ask for.

    Args:
        config: the ``embeddings`` section.
        schema: the encoded dataset's schema.
        pooling: bag or sequence feature -> how its rows become one.
        dim: width that the model insists on, overriding ``config.dim``.

    Raises:
        ConfigError: exceptions for a table that does not exist; two poolings for one table; a target or a member of a
            group that cannot be one.
    """
    check_groups(config, schema)
    plain: dict[str, Pooling] = {name: how for name, how in pooling.items() if not isinstance(how, Positions)}
    positions = {name: how for name, how in pooling.items() if isinstance(how, Positions)}
    counts = {name: how.count for name, how in positions.items()}
    tables = tuple(table_specs(config, schema, plain, dim, counts))
    layout = Layout(schema, tables, positions, tuple(_parts(config, schema, tables)), dim or config.dim)
    for feature in positions:
        _check_target(layout, feature)
    return layout


def _parts(config: EmbeddingsConfig, schema: Schema, tables: tuple[TableSpec, ...]) -> Iterator[FieldSource]:
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
    target = target_of(layout.positions[feature].encoder)
    if target is None:
        return
    key, table_of = f"features.{feature}.pooling.target", layout.table_of
    if target not in layout.schema.categorical:
        close = nearest(target, layout.schema.categorical)
        hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(layout.schema.categorical) or 'none'}"
        raise ConfigError(
            f"{key}: {target!r} is no categorical feature; {hint}",
            "name the feature with one id a row that the sequence is a history of",
        )
    own, other = table_of[feature], table_of[target]
    if own.dim != other.dim:
        raise ConfigError(
            f"{key}: rows of {feature!r} (table {own.name!r}) hold {own.dim} floats, "
            f"those of its target {target!r} (table {other.name!r}) {other.dim}",
            "name a target that shares the sequence's table, "
            f"or give both tables the same dim and vectors in embeddings.tables.{own.name} and .{other.name}",
        )
