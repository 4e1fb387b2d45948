"""Collects the input of an experiment's plan: tables, devices with memory and disk, statistics, measured costs."""

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
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.offload import row_traffic_bytes
from ziggurat.planning.planner import problem_of
from ziggurat.planning.problem import Problem
from ziggurat.storage.row_log import LOG_BYTES_PER_ROW_BYTE
from ziggurat.storage.tier_benchmark import disk_tiers
from ziggurat.towers.placement import with_towers_on_hosts
from ziggurat.towers.upstream import transforms
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement.cost_cache import with_measured_costs
from ziggurat.training.placement.shard_benchmark import make_shard_benchmark, without_measuring
from ziggurat.training.placement.step_examples import StepExamples

MEASURE_S, MEASURED_BYTES = 0.2, 2**27
"""Seconds to measure each figure of a disk for a plan, and the maximal size of the file used for it."""


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """A planning problem with the planner that the experiment names for it.

    Attributes:
        problem: tables and devices.
        settings: the planner's config, with the costs measured on this machine if they apply.
        time_parts: measures shards on this machine; None if the planner does not measure plans.
    """

    problem: Problem
    settings: PlannerSettings
    time_parts: TimeParts | None

    def planner(self, progress: Progress | None = None) -> Planner:
        """Returns the planner.

        Args:
            progress: where a planner that measures shows its progress.
        """
        return self.settings.build_checked(self.time_parts, progress)


def planning_input(
    experiment: Experiment,
    topology: Topology,
    tables: Sequence[TableSpec],
    prepared: Path,
    run: Path,
    *,
    measure_plans: bool = True,
    statistics: DatasetStatistics | None = None,
) -> PlanningInput:
    """Returns everything that determines a plan.

    Args:
        experiment: the config; its ``planning`` and ``training`` sections count.
        topology: the devices, without the disk for offloaded rows.
        tables: the model's embedding tables.
        prepared: folder of the encoded dataset, with its statistics.
        run: the run folder, where offloaded rows are stored unless the config names another.
        measure_plans: whether a planner may measure plans while it makes them.
        statistics: how tables are looked up; default: as preparation has counted.

    Raises:
        ConfigError: the ``planning`` section contradicts itself or the devices.
        DataError: the speed of the disk cannot be measured.
    """
    config = experiment.planning if measure_plans else without_measuring(experiment.planning)
    topology = with_disk(config, topology, run, tables)
    config, statistics = with_measured_costs(config, topology.kind), statistics or Dataset(prepared).statistics()
    examples = StepExamples.of(experiment, statistics, topology.world_size)
    problem = problem_of(tables, statistics, topology, config, examples.batch)
    problem = problem.but(kept_share=examples.kept_share, read_share=examples.read_share)
    if experiment.towers is not None and transforms(experiment.parallel, topology.hosts):
        problem = with_towers_on_hosts(problem, experiment.towers.resolve([table.features for table in tables]))
    return PlanningInput(problem, config.planner, make_shard_benchmark(config, topology.kind))


def with_disk(config: PlanningConfig, topology: Topology, run: Path, tables: Sequence[TableSpec]) -> Topology:
    """Returns ``topology`` with the disk as additional memory if the config sets ``planning.beyond_memory``.

    Each device then has ``planning.beyond_memory.memory`` and an equal share of the free disk. They count as one
    memory, or as a fast and a slow one for a planner that distinguishes hot from cold rows.

    Args:
        config: the ``planning`` section.
        topology: the devices, without the disk.
        run: the run folder, where offloaded rows are stored unless the config names another folder.
        tables: the model's embedding tables.

    Raises:
        ConfigError: the config also declares a slow memory.
        DataError: the speed of the disk cannot be measured.
    """
    offload = config.beyond_memory
    if offload is None:
        return topology
    folder = (offload.folder or run).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = int(shutil.disk_usage(existing).free / LOG_BYTES_PER_ROW_BYTE) // topology.devices
    memory, device = int(offload.memory), f"{topology.device} and its disk"
    if not config.planner.uses_slow_memory:
        return replace(topology, device=device, memory_bytes=memory + free)
    if topology.slow_memory_bytes:
        raise ConfigError(
            "planning: both topology.slow_memory and beyond_memory are given, but rows have two places at most",
            "leave out one of them",
        )
    rate = offload.bandwidth
    if not rate:
        rate = row_traffic_bytes(tables) * disk_tiers(existing, MEASURE_S, max_bytes=MEASURED_BYTES)[0].reads
    slow = min(rate / topology.devices, topology.lookup_bandwidth)
    return replace(topology, device=device, memory_bytes=memory, slow_memory_bytes=free, slow_bandwidth=slow)
