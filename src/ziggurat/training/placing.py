"""Which plan a world of ranks gets."""

from __future__ import annotations

import torch

from ziggurat.core.plan import Placement, Plan, Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.replicated import must_replicate
from ziggurat.parallel.world import World
from ziggurat.planning.balance import Room, balanced
from ziggurat.training.experiment import Experiment


def place(experiment: Experiment, layout: Layout, world: World, device: torch.device) -> Plan:
    """Whole tables on ranks, as many bytes each; those larger than a rank's even share of all by rows."""
    if world.size == 1:
        return Plan.single_device(table.name for table in layout.tables)
    ranks = tuple(range(world.size))
    share = sum(table.weight_bytes for table in layout.tables) / world.size
    placements: dict[str, Placement] = {}
    whole: list[TableSpec] = []
    for table in layout.tables:
        sharding: Sharding | None = None
        if must_replicate(table, device.type):
            sharding = "data_parallel"
        elif table.weight_bytes > share and table.rows >= world.size:
            sharding = "row_wise"
        if sharding is None:
            whole.append(table)
        else:
            placements[table.name] = Placement(sharding, ranks)
    sizes = [float(table.weight_bytes) for table in whole]
    room = Room(sizes, [0.0] * len(whole), [1.0] * world.size, [table.name for table in whole])
    for table, rank in zip(whole, balanced(room).bins if whole else (), strict=True):
        placements[table.name] = Placement("table_wise", (rank,))
    return Plan(world.size, placements, world.local_size)
