"""The ``planning`` section of an experiment: the devices, the planner, and constraints for single tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.errors import InvalidSection, within
from ziggurat.core.parts import Importable, built_in_names
from ziggurat.core.plan import Placement, Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.autoshard.baseline import BaselinePlanner
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.constraints import check_names, check_placement, check_sharding
from ziggurat.planning.contract import PlannerSettings
from ziggurat.planning.flexshard import FlexShard
from ziggurat.planning.offload import BeyondMemoryConfig
from ziggurat.planning.problem import TableConstraint
from ziggurat.planning.quantities import Bandwidth, Bytes
from ziggurat.planning.recshard import RecShard
from ziggurat.planning.rules import Rules
from ziggurat.planning.torchrec_planner import TorchRec

DeviceName = Literal["local", "cpu", "l4", "v100", "a100-40gb", "a100-80gb", "h100", "h200"]


class TopologyConfig(Config):
    """The devices that tables are placed on. Figures given here override those of the device."""

    device: DeviceName = "local"
    """Kind of device. ``local``: this machine's devices, measured when a plan is made; ``cpu``: a process on a machine
    whose figures are all given here; the others have the figures of their data sheets."""
    hosts: int | None = pydantic.Field(default=None, ge=1)
    """Number of machines; default: those that training runs on, or one for `ziggurat plan`."""
    devices: int | None = pydantic.Field(default=None, ge=1)
    """Number of devices, and so of ranks, on each host; default: those that training runs on, or one for
    `ziggurat plan`."""
    memory: Bytes | None = None
    """Memory of each device: bytes, or as in 8GB."""
    lookup_bandwidth: Bandwidth | None = None
    """Bandwidth at which a device reads rows from its memory: bytes a second, or as in 900GB/s."""
    intra_bandwidth: Bandwidth | None = None
    """Bandwidth at which a device sends to the other devices of its host: bytes a second, or as in 300GB/s."""
    inter_bandwidth: Bandwidth | None = None
    """Bandwidth at which a host sends to other hosts, shared by its devices: bytes a second, or as in 25Gbit/s. With
    several hosts, 10 Gbit/s is assumed if it is not given, and the plan notes that."""
    slow_memory: Bytes | None = None
    """Slow memory of each device, in addition to its fast memory, for planners that distinguish hot from cold rows:
    bytes, or as in 64GB. Needs slow_bandwidth."""
    slow_bandwidth: Bandwidth | None = None
    """Bandwidth at which a device reads rows from its slow memory, at most lookup_bandwidth: bytes a second, or as in
    3GB/s."""

    @pydantic.model_validator(mode="after")
    def _slow_memory_is_whole(self) -> Self:
        if (self.slow_memory is None) != (self.slow_bandwidth is None):
            given, missing = (
                ("slow_memory", "slow_bandwidth") if self.slow_memory else ("slow_bandwidth", "slow_memory")
            )
            raise ValueError(f"{given} is given without {missing}; give both or neither")
        return self


PlannerConfig = Annotated[
    Annotated[
        Rules.Config | RecShard.Config | FlexShard.Config | AutoShard.Config | TorchRec.Config | BaselinePlanner.Config,
        pydantic.Field(discriminator="name"),
    ],
    Importable(PlannerSettings, "planner"),
]
"""The config of any planner, discriminated by ``name``, or by ``import`` for one from outside the package."""
PLANNERS = built_in_names(PlannerConfig)
"""The planners' names."""


class TablePlacement(Config):
    """A constraint for one table, which every planner keeps to."""

    sharding: Sharding
    """How the table is split."""
    ranks: tuple[int, ...] | None = None
    """The ranks of the shards, in order; column-wise, a rank may be named several times. Default: the planner
    chooses."""


class PlanningConfig(Config):
    """Decides which device holds which shard of which table. A single process holds all tables, whatever this says."""

    topology: TopologyConfig = TopologyConfig()
    """The devices."""
    planner: PlannerConfig = Rules.Config()
    """The planner that places the tables."""
    new_plan: Literal["never", "drifted", "always"] = "never"
    """When a run takes a new plan as it resumes, made by the look-ups of the batches ahead. ``drifted``: if by
    these other copies save 3 % of the modelled time of the tables in tiers; ``always``: at every resume."""
    beyond_memory: BeyondMemoryConfig | None = None
    """Allows tables larger than memory; default: all rows are in memory. Also applies to a single process."""
    reserve: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Share of each device's memory that tables leave to the model, its activations and the libraries."""
    tables: dict[str, TablePlacement] = pydantic.Field(default_factory=dict[str, TablePlacement])
    """Constraints for single tables, by table name."""

    def check(self, tables: Sequence[TableSpec]) -> None:
        """Validates that constraints and planner name existing tables; returns None or raises.

        Raises:
            InvalidSection: at ``tables.NAME`` or ``planner.tables.NAME``.
        """
        check_names("tables", list(self.tables), tables)
        check_names("planner.tables", self.planner.named_tables, tables)

    def constraints(self, tables: Sequence[TableSpec], topology: Topology) -> dict[str, TableConstraint]:
        """Returns the constraints, validated against the tables and the topology.

        Raises:
            InvalidSection: at ``tables.NAME.sharding`` or ``.ranks``.
        """
        self.check(tables)
        specs = {table.name: table for table in tables}
        constraints: dict[str, TableConstraint] = {}
        for name, constraint in self.tables.items():
            with within(f"tables.{name}"):
                if constraint.sharding == "row_tiers":
                    raise InvalidSection(
                        "sharding",
                        "'row_tiers', but the numbers of copied rows are for a planner to choose",
                        f"leave it out and use planning.planner: {{name: flexshard, tables: [{name}]}}",
                    )
                if constraint.ranks is not None:
                    check_placement(specs[name], Placement(constraint.sharding, constraint.ranks), topology)
                else:
                    check_sharding(specs[name], constraint.sharding, topology)
            constraints[name] = TableConstraint(constraint.sharding, constraint.ranks)
        return constraints
