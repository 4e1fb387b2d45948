"""What the tower transform needs of an experiment; what it does not support is refused by name."""

from __future__ import annotations

from collections.abc import Iterator

from ziggurat.core.errors import ConfigError
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import Layout
from ziggurat.optim.dense_optimizer import DenseOptimizerSettings
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.parallel.config import DDP, ParallelConfig
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.constraints import must_replicate
from ziggurat.towers.config import NoModule, TowersConfig
from ziggurat.towers.modules.wukong import WukongTower

_FLAT = "or set parallel.embeddings: {name: flat}"


def check_tower_transform(
    towers: TowersConfig | None,
    layout: Layout,
    parallel: ParallelConfig,
    planning: PlanningConfig,
    embeddings: EmbeddingsConfig,
    optimizer: DenseOptimizerSettings,
) -> None:
    """Checks that the tower transform can train an experiment.

    Args:
        towers: its ``towers`` section.
        layout: its tables and fields.
        parallel, planning, embeddings, optimizer: its sections of these names.

    Raises:
        ConfigError: it cannot; the message names the key that stands against it.
    """
    if towers is None:
        raise ConfigError(
            "parallel.embeddings: tower_transform needs the section towers, which says which features are together",
            f"add one, such as towers: {{partition: {{name: strided, towers: 2}}}}, {_FLAT}",
        )
    found = next(obstacles(towers, layout, parallel, planning, embeddings, optimizer), None)
    if found is not None:
        key, reason, hint = found
        raise ConfigError(f"{key}: tower_transform {reason}", f"{hint}, {_FLAT}")


def obstacles(
    towers: TowersConfig,
    layout: Layout,
    parallel: ParallelConfig,
    planning: PlanningConfig,
    embeddings: EmbeddingsConfig,
    optimizer: DenseOptimizerSettings,
) -> Iterator[tuple[str, str, str]]:
    """Yields what stands against the transform: the key, what it cannot do, and what to do about it.

    The arguments are those of :func:`check_tower_transform`.
    """
    for feature in layout.positions:
        yield f"features.{feature}.pooling", "exchanges pooled rows, no positions", "set it to sum or mean"
    if embeddings.groups:
        yield "embeddings.groups", "exchanges rows that are fields as they are", "leave them out"
    for spec in layout.projected:
        yield f"embeddings.tables.{spec.name}.dim", f"needs rows of {layout.dim} floats", f"set it to {layout.dim}"
    for spec in layout.tables:
        if must_replicate(spec, "cpu"):
            yield (
                "embeddings.optimizer",
                f"needs each table on one host, but adam replicates table {spec.name!r}",
                "choose rowwise_adagrad, adagrad or sgd",
            )
    if planning.planner.uses_slow_memory:
        yield "planning.planner", "does not order rows by frequency so far", "choose rules"
    if planning.planner.uses_row_tiers:
        yield "planning.planner", "keeps each table on one host, so that its rows have no tiers", "choose rules"
    if isinstance(towers.module, NoModule):
        return
    if not isinstance(parallel.dense, DDP):
        yield "parallel.dense", "keeps each tower's module on its host, which only ddp allows", "set it to {name: ddp}"
    if isinstance(optimizer, ShampooConfig):
        yield "optimizer", "has other modules on each host, while shampoo divides all over the ranks", "choose adam"
    if embeddings.l2:
        yield "embeddings.l2", "returns outputs of modules, while l2 is of the tables' rows", "leave it out"
    if embeddings.dropout:
        yield "embeddings.dropout", "returns outputs of modules, while dropout is of the tables' rows", "leave it out"
    if isinstance(towers.module, WukongTower.Config) and towers.module.fm_mlp.norm == "batch":
        yield "towers.module.fm_mlp.norm", "has no batch norms in modules", "choose layer"
