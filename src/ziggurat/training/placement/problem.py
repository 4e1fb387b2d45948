"""What a plan of an experiment is made from: tables, devices with their memory and disk, statistics, measured costs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Progress
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.offload import row_traffic_bytes
from ziggurat.planning.planner import problem_of
from ziggurat.planning.problem import Problem
from ziggurat.storage.row_log import LOG_BYTES_PER_ROW_BYTE
from ziggurat.storage.tier_benchmark import disk_tiers
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement.cost_cache import with_measured
from ziggurat.training.placement.shard_benchmark import parts_timer, unmeasured

MEASURE_S, MEASURED_BYTES = 0.2, 2**27
"""Seconds that each figure of a disk is measured for a plan, and bytes of the file that it is measured on, at most."""


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """A planning problem with the planner that the experiment names for it.

    Attributes:
        problem: tables and devices.
        settings: the planner's config, with the costs that were measured on this machine where they apply.
        time_parts: measures shards on this machine, for a planner that asks for it; None where none does.
    """

    problem: Problem
    settings: PlannerSettings
    time_parts: TimeParts | None

    def planner(self, progress: Progress | None = None) -> Planner:
        """Returns the planner.

        Args:
            progress: where one that measures shows it.
        """
        return self.settings.build(self.time_parts, progress)


def planning_input(
    experiment: Experiment,
    topology: Topology,
    tables: Sequence[TableSpec],
    prepared: Path,
    run: Path,
    *,
    measure_plans: bool = True,
) -> PlanningInput:
    """Returns everything that decides a plan.

    Args:
        experiment: whose ``planning`` and ``training`` sections count.
        topology: the devices, without the disk of offloaded rows.
        tables: the model's embedding tables.
        prepared: folder of the encoded dataset, with its statistics.
        run: the run folder, where offloaded rows are stored unless the config names another.
        measure_plans: whether a planner that runs its plans while it makes them may do so.

    Raises:
        ConfigError: ``planning`` asks for what cannot be.
        DataError: the speed of the disk cannot be measured.
    """
    config = experiment.planning if measure_plans else unmeasured(experiment.planning)
    topology = with_disk(config, topology, run, tables)
    batch_size = -(-experiment.training.batch_size // topology.world_size)  # of a rank
    config = with_measured(config, topology.kind)
    problem = problem_of(tables, DatasetStatistics.load(prepared), topology, config, batch_size)
    return PlanningInput(problem, config.planner, parts_timer(config, topology.kind))


def with_disk(config: PlanningConfig, topology: Topology, run: Path, tables: Sequence[TableSpec]) -> Topology:
    """``topology``, whose devices have ``planning.beyond_memory.memory`` and an even share of the free disk, where that
    is asked for: as one memory, or for a planner that tells hot rows from cold, as a fast and a slow one.

    Args:
        config: the ``planning`` section.
        topology: of devices as they are.
        run: folder of the run, where rows lie unless the config names another.
        tables: whose rows move.

    Raises:
        ConfigError: the config declares a slow memory besides.
        DataError: how fast the disk is cannot be measured.
    """
    beyond = config.beyond_memory
    if beyond is None:
        return topology
    folder = (beyond.folder or run).absolute()
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    free = int(shutil.disk_usage(there).free / LOG_BYTES_PER_ROW_BYTE) // topology.devices
    memory, named = int(beyond.memory), f"{topology.device} and its disk"
    if not config.planner.uses_slow_memory:
        return replace(topology, device=named, memory_bytes=memory + free)
    if topology.slow_memory_bytes:
        raise ConfigError(
            "planning: both topology.slow_memory and beyond_memory are given, and rows lie in two places at most",
            "leave out one of them",
        )
    rate = (
        beyond.bandwidth or row_traffic_bytes(tables) * disk_tiers(there, MEASURE_S, max_bytes=MEASURED_BYTES)[0].reads
    )
    slow = min(rate / topology.devices, topology.lookup_bandwidth)
    return replace(topology, device=named, memory_bytes=memory, slow_memory_bytes=free, slow_bandwidth=slow)
