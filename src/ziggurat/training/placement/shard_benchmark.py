"""Runs what a device of a plan would hold, with ids drawn as often as the training rows have them."""

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
from ziggurat.training.placement.kernel_benchmark import one_thread, within

Ints = npt.NDArray[np.int64]

STEPS, REPEATS = 2, 7


class ShardBenchmark:
    """See the module; a :data:`~ziggurat.planning.contract.TimeParts`.

    Each call takes the memory that the shards take on a device; of a CPU, it is kept for the next call. The ids of
    :data:`STEPS` steps of all devices are kept, too, for the next shards of their tables.

    Args:
        device: of this machine; of a CPU, one thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._between: CacheEviction | None = None
        self._memory = TableMemory()
        self._problem: Problem | None = None
        self._drawn: dict[tuple[str, int], tuple[Ints, Ints]] = {}

    def __call__(self, problem: Problem, parts: Parts) -> float:
        """Seconds of a step, forward, backward and update: the median of some, of a CPU by a
        :class:`~ziggurat.embeddings.kernel_time.SlowdownGauge`.

        Raises:
            ConfigError: a table has an optimizer that FBGEMM's kernels do not have.
        """
        optimizer = lambda part: _optimizer(part[0])  # noqa: E731
        with one_thread(self._device):
            if self._between is None:
                self._between = (
                    SlowdownGauge(self._device) if self._device.type == "cpu" else CacheEviction(self._device)
                )
            kernels = groupby(sorted(parts, key=optimizer), optimizer)
            return sum(self._kernel(problem, [*members], name) for name, members in kernels)

    def _kernel(self, problem: Problem, parts: Sequence[tuple[TableSpec, Shard]], optimizer: str) -> float:
        steps = [[self._asked(problem, table, shard, step) for table, shard in parts] for step in range(STEPS)]
        seconds = kernel_seconds(steps, optimizer, self._device, REPEATS, self._between, self._memory)
        return float(np.median(seconds))

    def _asked(self, problem: Problem, table: TableSpec, shard: Shard, step: int) -> Bags:
        if problem is not self._problem:
            self._problem, self._drawn = problem, {}
        key = (table.name, step)
        if key not in self._drawn:
            self._drawn[key] = drawn(problem, table, step)
        return asked(table, shard, *self._drawn[key])


def parts_timer(config: PlanningConfig, kind: DeviceKind) -> ShardBenchmark | None:
    """For a planner that measures its plans; None where there is none, or the devices are not this machine's."""
    planner = config.planner
    if not planner.measures_plans or config.topology.device != "local":
        return None
    return ShardBenchmark(torch.device(kind))


def unmeasured(config: PlanningConfig) -> PlanningConfig:
    """The config, whose planner measures no plans."""
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


def drawn(problem: Problem, table: TableSpec, step: int) -> tuple[Ints, Ints]:
    """Ids that a table is asked for in a step, of all devices' examples, and how many each bag has: the same again for
    the same table and step."""
    bags, usage = problem.batch_size * problem.topology.world_size * len(table.keys), problem.usages[table.name]
    draw = np.random.default_rng([zlib.crc32(table.name.encode()), step])
    lengths = draw.poisson(usage.ids_per_row / len(table.keys), bags)
    return _ids(usage, int(lengths.sum()), draw), lengths


def asked(table: TableSpec, shard: Shard, ids: Ints, lengths: Ints) -> Bags:
    """What a shard is asked for where its table is asked for these ids, so many a bag."""
    ids, lengths = within(shard.rows, ids, lengths)
    return Bags(shard.rows.size, shard.columns.size, torch.from_numpy(ids), torch.from_numpy(lengths), len(table.keys))


def _ids(usage: Usage, number: int, draw: np.random.Generator) -> Ints:
    """So many ids of the whole table, each row as often as training looks it up."""
    if usage.accesses is None:
        return draw.integers(0, usage.rows, number)
    ends = np.cumsum(usage.accesses)
    places = np.sort(draw.integers(0, int(ends[-1]), number))  # in order, a search stays in the caches
    return draw.permutation(np.searchsorted(ends, places, side="right"))
