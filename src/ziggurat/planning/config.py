"""The ``planning`` section of an experiment: on what, by which planner, with which exceptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.errors import within
from ziggurat.core.parts import Importable, built_in_names
from ziggurat.core.plan import Placement, Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.baseline import BaselinePlanner
from ziggurat.planning.constraints import check_names, check_placement, check_sharding
from ziggurat.planning.contract import PlannerSettings
from ziggurat.planning.offload import BeyondMemoryConfig
from ziggurat.planning.problem import TableConstraint
from ziggurat.planning.quantities import Bandwidth, Bytes
from ziggurat.planning.recshard import RecShard
from ziggurat.planning.rules import Rules
from ziggurat.planning.torchrec_planner import TorchRec

DeviceName = Literal["local", "cpu", "l4", "v100", "a100-40gb", "a100-80gb", "h100", "h200"]


class TopologyConfig(Config):
    """The devices that tables are placed on. Figures given here count, whatever the device."""

    device: DeviceName = "local"
    """What a device is. ``local``: this machine's, measured when a plan is made; ``cpu``: a process on a machine of
    which all figures are given here; the others by their data sheets."""
    hosts: int | None = pydantic.Field(default=None, ge=1)
    """Machines; default: those that training runs on, for a plan alone one."""
    devices: int | None = pydantic.Field(default=None, ge=1)
    """Devices, and so ranks, on each host; default: those that training runs on, for a plan alone one."""
    memory: Bytes | None = None
    """Of one device: bytes, or as in 8GB."""
    lookup_bandwidth: Bandwidth | None = None
    """At which a device reads rows of its memory: bytes a second, or as in 900GB/s."""
    intra_bandwidth: Bandwidth | None = None
    """At which a device sends to the others of its host: bytes a second, or as in 300GB/s."""
    inter_bandwidth: Bandwidth | None = None
    """At which a host sends to others, shared by its devices: bytes a second, or as in 25Gbit/s; 10 Gbit/s, and said
    so, where there are several hosts and nothing is given."""
    slow_memory: Bytes | None = None
    """Of one device, beside its fast memory, for planners that tell hot rows from cold: bytes, or as in 64GB; with
    slow_bandwidth."""
    slow_bandwidth: Bandwidth | None = None
    """At which a device reads rows of its slow memory, at most lookup_bandwidth: bytes a second, or as in 3GB/s."""

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
        Rules.Config | RecShard.Config | AutoShard.Config | TorchRec.Config | BaselinePlanner.Config,
        pydantic.Field(discriminator="name"),
    ],
    Importable(PlannerSettings, "planner"),
]
"""The config of any planner, told apart by ``name``, or by ``import`` for one from outside the package."""
PLANNERS = built_in_names(PlannerConfig)
"""The planners' names."""


class TablePlacement(Config):
    """What is asked of one table, whatever the planner."""

    sharding: Sharding
    """How it is split."""
    ranks: tuple[int, ...] | None = None
    """On which ranks, in the order of the shards; column-wise, a rank may be named for several. Default: the planner's
    choice."""


class PlanningConfig(Config):
    """Which shard of which table goes where. One process holds all of them, whatever else this says."""

    topology: TopologyConfig = TopologyConfig()
    """The devices."""
    planner: PlannerConfig = Rules.Config()
    """What decides."""
    beyond_memory: BeyondMemoryConfig | None = None
    """Let tables be larger than memory; default: all rows are there. Counts for one process, too."""
    reserve: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Share of each device's memory that tables leave to the model, its activations and the libraries."""
    tables: dict[str, TablePlacement] = pydantic.Field(default_factory=dict[str, TablePlacement])
    """Exceptions by table name."""

    def check(self, tables: Sequence[TableSpec]) -> None:
        """Nothing, where each exception is of a table that there is.

        Raises:
            Misfit: at ``tables.NAME``.
        """
        check_names("tables", list(self.tables), tables)

    def constraints(self, tables: Sequence[TableSpec], topology: Topology) -> dict[str, TableConstraint]:
        """The exceptions, checked against the tables and the world that they are for.

        Raises:
            Misfit: at ``tables.NAME.sharding`` or ``.ranks``.
        """
        self.check(tables)
        specs = {table.name: table for table in tables}
        constraints: dict[str, TableConstraint] = {}
        for name, asked in self.tables.items():
            with within(f"tables.{name}"):
                if asked.ranks is not None:
                    check_placement(specs[name], Placement(asked.sharding, asked.ranks), topology)
                else:
                    check_sharding(specs[name], asked.sharding, topology)
            constraints[name] = TableConstraint(asked.sharding, asked.ranks)
        return constraints
