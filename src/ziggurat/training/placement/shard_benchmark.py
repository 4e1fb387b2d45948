"""Measures the shards that a plan gives to one device, with ids that follow the frequencies of the training rows."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch

from ziggurat.core.errors import ConfigError
from ziggurat.core.plan import Shard
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import DeviceKind
from ziggurat.embeddings.kernel_time import OPTIMIZERS, Bags, CacheEviction, SlowdownGauge, TableMemory, kernel_seconds
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.contract import Parts
from ziggurat.planning.problem import Problem
from ziggurat.planning.usage import Usage
from ziggurat.training.placement.kernel_benchmark import ids_in_range, single_threaded

Ints = npt.NDArray[np.int64]

STEPS, REPEATS = 2, 7


class ShardBenchmark:
    """Measures the shards of a device; a :data:`~ziggurat.planning.contract.TimeParts`.

    Each call allocates the memory of the shards; on a CPU, the next call reuses it. The ids of :data:`STEPS` steps are
    also kept, for the next shards of the same tables.

    Args:
        device: a device of this machine; of a CPU, one thread is measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._between: CacheEviction | None = None
        self._memory = TableMemory()
        self._problem: Problem | None = None
        self._ids: dict[tuple[str, int], tuple[Ints, Ints]] = {}

    def __call__(self, problem: Problem, parts: Parts) -> float:
        """Returns the median seconds of a step: forward, backward and update.

        On a CPU, seconds are corrected by a :class:`~ziggurat.embeddings.kernel_time.SlowdownGauge`.

        Raises:
            ConfigError: FBGEMM has no kernel for the optimizer of a table.
        """
        optimizer = lambda part: _optimizer(part[0])  # noqa: E731
        with single_threaded(self._device):
            if self._between is None:
                self._between = (
                    SlowdownGauge(self._device) if self._device.type == "cpu" else CacheEviction(self._device)
                )
            kernels = groupby(sorted(parts, key=optimizer), optimizer)
            return sum(self._kernel(problem, [*members], name) for name, members in kernels)

    def _kernel(self, problem: Problem, parts: Sequence[tuple[TableSpec, Shard]], optimizer: str) -> float:
        steps = [[self._bags(problem, table, shard, step) for table, shard in parts] for step in range(STEPS)]
        seconds = kernel_seconds(steps, optimizer, self._device, REPEATS, self._between, self._memory)
        return float(np.median(seconds))

    def _bags(self, problem: Problem, table: TableSpec, shard: Shard, step: int) -> Bags:
        if problem is not self._problem:
            self._problem, self._ids = problem, {}
        key = (table.name, step)
        if key not in self._ids:
            self._ids[key] = draw_ids(problem, table, step)
        return shard_bags(table, shard, *self._ids[key])


def make_shard_benchmark(config: PlanningConfig, kind: DeviceKind) -> ShardBenchmark | None:
    """Returns a benchmark for a planner that measures plans; None for others, or if the plan is for other devices."""
    planner = config.planner
    if not planner.measures_plans or config.topology.device != "local":
        return None
    return ShardBenchmark(torch.device(kind))


def without_measuring(config: PlanningConfig) -> PlanningConfig:
    """Returns the config with a planner that does not measure plans."""
    return config.model_copy(update={"planner": config.planner.without_measuring()})


def _optimizer(table: TableSpec) -> str:
    name = str(table.optimizer["name"])
    if name not in OPTIMIZERS:
        raise ConfigError(
            f"planning.planner.refine_s: table {table.name!r} is trained by {name}, and only the kernels of "
            f"{', '.join(OPTIMIZERS)} can be measured",
            "leave refine_s out",
        )
    return name


def draw_ids(problem: Problem, table: TableSpec, step: int) -> tuple[Ints, Ints]:
    """Draws the ids that a step looks up in a table, and their number per bag, for the examples of all devices.

    The result is always the same for a table and step.
    """
    bags, usage = problem.batch_size * problem.topology.world_size * len(table.keys), problem.usages[table.name]
    random = np.random.default_rng([zlib.crc32(table.name.encode()), step])
    lengths = random.poisson(usage.ids_per_row / len(table.keys), bags)
    return _sample_rows(usage, int(lengths.sum()), random), lengths


def shard_bags(table: TableSpec, shard: Shard, ids: Ints, lengths: Ints) -> Bags:
    """Returns the lookups of a shard, given the ids that its table is looked up with and their number per bag."""
    ids, lengths = ids_in_range(shard.rows, ids, lengths)
    return Bags(shard.rows.size, shard.columns.size, torch.from_numpy(ids), torch.from_numpy(lengths), len(table.keys))


def _sample_rows(usage: Usage, number: int, random: np.random.Generator) -> Ints:
    """Draws rows of a table in proportion to their accesses during training."""
    if usage.accesses is None:
        return random.integers(0, usage.rows, number)
    ends = np.cumsum(usage.accesses)
    draws = np.sort(random.integers(0, int(ends[-1]), number))  # sorted, so that the search stays in the caches
    return random.permutation(np.searchsorted(ends, draws, side="right"))
