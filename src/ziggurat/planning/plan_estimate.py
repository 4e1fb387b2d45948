"""A plan with its prediction by the cost model: bytes and seconds of every shard and device."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ziggurat.core.plan import Plan, Shard
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.constraints import stays_fused
from ziggurat.planning.cost import ShardCost
from ziggurat.planning.problem import Problem
from ziggurat.planning.tier_estimate import TierEstimate, tier_estimates


@dataclass(frozen=True, slots=True)
class PlacedShard:
    """A shard of a table on its device, with its cost."""

    table: str
    shard: Shard
    cost: ShardCost


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """The prediction for one device: bytes, and the seconds of a step.

    Attributes:
        weight_bytes, state_bytes: bytes of weights and optimizer states, in fast and slow memory together.
        buffer_bytes: ids, vectors and gradients of a step, for its shards and for its own examples.
        spare_bytes: fast memory left after the reserve, the buffers, and the weights and states in fast memory.
        slow_bytes: bytes of weights and states in slow memory.
        slow_spare_bytes: slow memory left.
        lookups, slow_lookups: ids that reach the device in a step, and the part of them whose rows are in slow memory.
        intra_bytes, inter_bytes: bytes exchanged in a step with devices of the same host, and of other hosts.
        seconds: modelled seconds of a step.
    """

    rank: int
    host: int
    weight_bytes: int
    state_bytes: int
    buffer_bytes: int
    spare_bytes: int
    slow_bytes: int
    slow_spare_bytes: int
    lookups: float
    slow_lookups: float
    intra_bytes: float
    inter_bytes: float
    seconds: float

    @property
    def fast_bytes(self) -> int:
        """Bytes of weights and states in fast memory."""
        return self.weight_bytes + self.state_bytes - self.slow_bytes


@dataclass(frozen=True, slots=True)
class PlanEstimate:
    """A plan and its prediction.

    Attributes:
        plan: the placement of every table.
        topology: the devices that the plan is for.
        batch_size: examples per rank and step that the figures assume.
        reserve: share of each device's memory kept for everything but tables.
        tables: the model's tables.
        ids_per_row: table -> ids looked up for an example, over all its features.
        shards: the shards of every table, in the order of the plan and of its shards.
        devices: the load of each device, by rank.
        notes: remarks for the user: assumed figures, splits that cost more than predicted.
        tiers: the tables whose rows are in tiers, with what each tier costs, and other ways to place the table.
    """

    plan: Plan
    topology: Topology
    batch_size: int
    reserve: float
    tables: tuple[TableSpec, ...]
    ids_per_row: dict[str, float]
    shards: tuple[PlacedShard, ...]
    devices: tuple[DeviceLoad, ...]
    notes: tuple[str, ...]
    tiers: tuple[TierEstimate, ...] = ()

    @property
    def step_seconds(self) -> float:
        """Modelled seconds of a step on the slowest device, which all others wait for."""
        return max(device.seconds for device in self.devices)

    @property
    def imbalance(self) -> float:
        """Seconds of the slowest device divided by the mean; 1 if all devices take equally long."""
        mean = sum(device.seconds for device in self.devices) / len(self.devices)
        return self.step_seconds / mean if mean else 1.0

    @property
    def slow_share(self) -> float:
        """Share of all look-ups that are of rows in slow memory."""
        total = sum(device.lookups for device in self.devices)
        return sum(device.slow_lookups for device in self.devices) / total if total else 0.0

    def shards_of(self, table: str) -> tuple[PlacedShard, ...]:
        """Returns the shards of one table.

        Raises:
            ConfigError: the plan has no such table.
        """
        self.plan.placement(table)
        return tuple(placed for placed in self.shards if placed.table == table)

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_json(),
            "topology": self.topology.to_json(),
            "batch_size": self.batch_size,
            "reserve": self.reserve,
            "step_seconds": self.step_seconds,
            "imbalance": self.imbalance,
            "slow_share": self.slow_share,
            "tables": [
                {
                    "name": table.name,
                    "rows": table.rows,
                    "dim": table.dim,
                    "optimizer": table.optimizer["name"],
                    "ids_per_row": self.ids_per_row[table.name],
                }
                for table in self.tables
            ],
            "devices": [{**asdict(device), "fast_bytes": device.fast_bytes} for device in self.devices],
            "shards": [{"table": each.table, **asdict(each.shard), **asdict(each.cost)} for each in self.shards],
            **({"tiers": [each.to_json() for each in self.tiers]} if self.tiers else {}),
            "notes": list(self.notes),
        }


def predict(problem: Problem, plan: Plan) -> PlanEstimate:
    """Returns the cost model's prediction for any plan of the problem's tables."""
    shards = tuple(
        PlacedShard(table.name, shard, cost) for table in problem.tables for shard, cost in problem.costs(table, plan)
    )
    devices = tuple(_device(problem, rank, shards) for rank in range(problem.topology.world_size))
    return PlanEstimate(
        plan=plan,
        topology=problem.topology,
        batch_size=problem.batch_size,
        reserve=problem.reserve,
        tables=problem.tables,
        ids_per_row={name: usage.ids_per_row for name, usage in problem.usages.items()},
        shards=shards,
        devices=devices,
        notes=tuple(_notes(problem, plan)),
        tiers=tier_estimates(problem, plan),
    )


def _device(problem: Problem, rank: int, shards: tuple[PlacedShard, ...]) -> DeviceLoad:
    costs = [placed.cost for placed in shards if placed.shard.rank == rank]
    slow_bytes = sum(cost.slow_bytes for cost in costs)
    return DeviceLoad(
        rank=rank,
        host=problem.topology.host(rank),
        weight_bytes=sum(cost.weight_bytes for cost in costs),
        state_bytes=sum(cost.state_bytes for cost in costs),
        buffer_bytes=problem.client_bytes + sum(cost.buffer_bytes for cost in costs),
        spare_bytes=int(problem.capacity) - sum(cost.kept_bytes for cost in costs),
        slow_bytes=slow_bytes,
        slow_spare_bytes=problem.topology.slow_memory_bytes - slow_bytes,
        lookups=sum(cost.lookups for cost in costs),
        slow_lookups=sum(cost.slow_lookups for cost in costs),
        intra_bytes=sum(cost.intra_bytes for cost in costs),
        inter_bytes=sum(cost.inter_bytes for cost in costs),
        seconds=sum(cost.seconds for cost in costs),
    )


def _notes(problem: Problem, plan: Plan) -> list[str]:
    notes = [*plan.notes, *problem.topology.assumed]
    if problem.statistics is None:
        notes.append("no statistics: assumes one id for each feature, and that all rows are looked up equally often")
    notes += [
        f"table {table.name!r}: {sharding} of row-wise Adagrad is looked up by torch instead of FBGEMM's kernel, which "
        "takes longer than predicted"
        for table in problem.tables
        if (sharding := plan.placements[table.name].sharding)
        and len(plan.placements[table.name].ranks) > 1
        and not stays_fused(table, sharding)
    ]
    return notes
