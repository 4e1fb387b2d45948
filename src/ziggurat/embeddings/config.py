"""The ``embeddings`` section: defaults for all tables, exceptions by table, groups, and the ``TableSpec``s they
imply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.errors import ConfigError, nearest
from ziggurat.core.schema import Schema
from ziggurat.core.tables import Pooling, TableSpec
from ziggurat.interactions.mlp import MLP
from ziggurat.optim.rows import RowOptimizerConfig, RowwiseAdagrad

DIM_MULTIPLE = 4
"""FBGEMM's kernels read and write rows in units of four floats."""

Dim = Annotated[int, pydantic.Field(ge=DIM_MULTIPLE, le=2**16, multiple_of=DIM_MULTIPLE)]


class TableConfig(Config):
    """Settings of one table that differ from the defaults; a key left out keeps the default."""

    dim: Dim | None = None
    """Floats per vector. A table whose dim differs from ``embeddings.dim`` is projected to it by a learned matrix."""
    vectors: int = pydantic.Field(default=1, ge=1, le=2**10)
    """Vectors per row: each feature of the table reaches the model as this many fields. Use more than one for the most
    important features (Wukong, arXiv 2403.02545, section 3.1)."""
    optimizer: RowOptimizerConfig | None = pydantic.Field(default=None, discriminator="name")
    """The optimizer of this table's rows."""
    init_std: float | None = pydantic.Field(default=None, ge=0)
    """Standard deviation of the initial weights."""


class GroupConfig(Config):
    """Minor features that reach the model as one field: their rows are concatenated and mapped to ``embeddings.dim``
    floats.

    Source: Zhang et al., "Wukong", arXiv 2403.02545, section 3.1.
    """

    features: tuple[str, ...] = pydantic.Field(min_length=1)
    """Categorical, bag or sequence features; each may be in at most one group."""
    dim: Dim = DIM_MULTIPLE
    """Floats per vector of tables that only features of this group look up; a table's own ``dim`` takes precedence."""
    mlp: MLP.Config = MLP.Config(hidden=())
    """Hidden layers between the rows and the field; without any, the map is linear."""


class EmbeddingsConfig(Config):
    """Size, initialisation and optimizer of the embedding tables."""

    dim: Dim = 16
    """Floats per vector, and the width D of every field that reaches the model."""
    optimizer: RowOptimizerConfig = pydantic.Field(default_factory=RowwiseAdagrad, discriminator="name")
    """The optimizer applied to each touched row inside backward."""
    init_std: float = pydantic.Field(default=0.01, ge=0)
    """Standard deviation of the normal initial weights."""
    l2: float = pydantic.Field(default=0.0, ge=0)
    """Adds l2/2 * (squared norm of the vectors that reach the model from tables, per row of the batch) to the loss."""
    dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of the elements of those vectors that is zeroed during training."""
    numeric_bins: int | None = pydantic.Field(default=None, ge=1, le=1024)
    """Makes a field of each number whose transforms end in ``quantile``: a vector that is linear within each of so many
    intervals with equally many training rows. The number itself remains an input. Default: no such fields."""
    tables: dict[str, TableConfig] = pydantic.Field(default_factory=dict[str, TableConfig])
    """Exceptions by table name."""
    groups: tuple[GroupConfig, ...] = ()
    """Groups of minor features that share one field each."""


def check_groups(config: EmbeddingsConfig, schema: Schema) -> None:
    """Validates that every group consists of sparse features, each named once.

    Raises:
        ConfigError: a group names a feature that has no table, does not exist or is already grouped.
    """
    seen: dict[str, str] = {}
    for number, group in enumerate(config.groups):
        key = f"embeddings.groups.{number}.features"
        for feature in group.features:
            if feature in schema.dense:
                raise ConfigError(
                    f"{key}: {feature!r} is a number and has no table",
                    "end its transforms in bucketise, or leave it out",
                )
            if feature not in schema.sparse:
                close = nearest(feature, schema.sparse)
                hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(schema.sparse) or 'none'}"
                raise ConfigError(f"{key}: there is no feature {feature!r}; {hint}")
            if feature in seen:
                raise ConfigError(f"{key}: {feature!r} is in {seen[feature]} already", "name each feature once")
            seen[feature] = key


def table_specs(
    config: EmbeddingsConfig,
    schema: Schema,
    pooling: Mapping[str, Pooling],
    dim: int | None = None,
    positions: Mapping[str, int] | None = None,
) -> list[TableSpec]:
    """Returns the tables of a model, in the order in which the schema's features first name them.

    Args:
        config: the ``embeddings`` section.
        schema: the encoded dataset's schema.
        pooling: bag or sequence feature -> how its rows are pooled.
        dim: the width that the model requires; overrides ``config.dim``.
        positions: sequence -> how many of its last ids are looked up individually instead of being pooled.

    Raises:
        ConfigError: an exception for a table that does not exist; two poolings for one table.
    """
    names = list(dict.fromkeys(schema.tables[feature] for feature in schema.sparse))
    for name in config.tables:
        if name not in names:
            close = nearest(name, names)
            hint = f"did you mean {close!r}?" if close else f"tables: {', '.join(names)}"
            raise ConfigError(f"embeddings.tables.{name}: no feature uses such a table; {hint}")
    counts = positions or {}
    specs: list[TableSpec] = []
    for name in names:
        own = config.tables.get(name, TableConfig())
        features = tuple(feature for feature in schema.sparse if schema.tables[feature] == name)
        optimizer = own.optimizer or config.optimizer
        specs.append(
            TableSpec(
                name=name,
                rows=schema.rows[name],
                dim=own.vectors * (own.dim or _group_dim(config, features) or dim or config.dim),
                features=features,
                pooling=_pooling(name, features, pooling),
                optimizer=optimizer.model_dump(),
                init_std=config.init_std if own.init_std is None else own.init_std,
                vectors=own.vectors,
                positions={feature: counts[feature] for feature in features if feature in counts},
            )
        )
    return specs


def _pooling(table: str, features: tuple[str, ...], pooling: Mapping[str, Pooling]) -> Pooling:
    """Returns the pooling of a table; only bags and sequences matter, as a single id is its own mean and sum."""
    found: dict[Pooling, str] = {pooling[feature]: feature for feature in features if feature in pooling}
    if len(found) > 1:
        pairs = ", ".join(f"{feature}: {kind}" for kind, feature in found.items())
        raise ConfigError(
            f"features of table {table!r} pool differently ({pairs}), but a table has one pooling",
            "give them the same `pooling`, or a table each",
        )
    return next(iter(found)) if found else "sum"


def _group_dim(config: EmbeddingsConfig, features: tuple[str, ...]) -> int | None:
    """Returns the dim of the group that contains all of these features; None if there is no such group."""
    return next((group.dim for group in config.groups if {*features} <= {*group.features}), None)
