"""Translates a problem into TorchRec's terms and runs TorchRec's planner. This module imports torchrec."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import planners
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.proposers import GreedyProposer, GridSearchProposer, UniformProposer
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    Enumerator,
    HardwareConfig,
    KernelConfig,
    PlannerError,
    PlannerErrorType,
    ShardingOption,
    Storage,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.planner.types import Shard as ShardEstimate
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.types import ModuleSharder, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from ziggurat.core.plan import Sharding
from ziggurat.core.topology import Topology
from ziggurat.planning.placement import TableSplit, predetermined_ranks, representative_shards
from ziggurat.planning.problem import Problem

# The planner's messages at lower levels are of no use to users of `ziggurat plan`.
logging.getLogger("torchrec.distributed.planner").setLevel(logging.ERROR)

_TYPES: dict[Sharding, ShardingType] = {
    "table_wise": ShardingType.TABLE_WISE,
    "row_wise": ShardingType.ROW_WISE,
    "column_wise": ShardingType.COLUMN_WISE,
    "data_parallel": ShardingType.DATA_PARALLEL,
    "table_row_wise": ShardingType.TABLE_ROW_WISE,
    "grid": ShardingType.GRID_SHARD,
}

_SHARDINGS: dict[str, Sharding] = {kind.value: sharding for sharding, kind in _TYPES.items()}

MILLISECOND = 1e-3
"""In seconds: TorchRec's bandwidths are bytes a millisecond, and its times milliseconds."""


@dataclass(frozen=True, slots=True)
class Found:
    """TorchRec's choice.

    Attributes:
        splits: table -> the chosen split, with ranks.
        seconds: seconds of a step on the slowest device, as predicted by TorchRec.
    """

    splits: dict[str, TableSplit]
    seconds: float


def search(problem: Problem, options: Mapping[str, Sequence[TableSplit]], proposals: int) -> Found | None:
    """Returns TorchRec's choice of a split and of ranks for every table; None if none of its proposals fits.

    Args:
        problem: the problem, with at least one table; the devices can hold the buffers of a step.
        options: table -> its possible splits.
        proposals: if there are at most this many combinations of splits, all are tried.
    """
    topology, chosen = torchrec_topology(problem.topology, int(problem.capacity)), list[ShardingOption]()

    def record(best: list[ShardingOption]) -> list[ShardingOption]:
        chosen.extend(best)
        return best

    space = SearchSpace(problem, options, topology)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=problem.batch_size,
        enumerator=space,
        storage_reservation=FixedPercentageStorageReservation(0.0),  # the topology's memory excludes it already
        proposer=[GridSearchProposer(proposals), GreedyProposer(), GreedyProposer(use_depth=False), UniformProposer()],
        partitioner=_Partitioner(space.given),
        stats=[],
        callbacks=[record],
    )
    try:
        with _silenced():
            planner.plan(space.collection, [_sharder()])
    except PlannerError:
        return None
    splits = {space.tables[option.name].name: _split_of(option) for option in chosen}
    return Found(splits, NoopPerfModel(topology).rate(chosen) * MILLISECOND)


def torchrec_topology(topology: Topology, capacity: int) -> TorchRecTopology:
    """Returns TorchRec's description of the devices, each with ``capacity`` bytes for tables.

    TorchRec assumes that each device has its own bandwidth to other hosts, and that all-reduces run at the sum of the
    bandwidths of a host's devices, even on a single host. On a single host, the devices' bandwidth to each other is
    given instead.
    """
    per_device = topology.inter_bandwidth if topology.hosts > 1 else topology.intra_bandwidth
    lookups = topology.lookup_bandwidth * MILLISECOND
    return TopologyFactory.create_topology(
        TrainerConfig(
            world_size=topology.world_size,
            local_world_size=topology.devices,
            hbm_cap_bytes=capacity,
            ddr_cap_bytes=capacity,
        ),
        HardwareConfig(
            intra_host_bw=topology.intra_bandwidth * MILLISECOND,
            inter_host_bw=per_device / topology.devices * MILLISECOND,
            hbm_mem_bw=lookups,
            ddr_mem_bw=lookups,
        ),
        KernelConfig(compute_device=topology.kind, use_hardware_based_bandwidth=True),
    )


class SearchSpace(Enumerator):
    """The search space: every possible split of every table, always in the same order.

    TorchRec's own enumerator iterates over sets of strings, whose order differs between processes. It also knows only
    one number of column ranges for each table, and no splits by rows on a CPU.

    Attributes:
        collection: the tables, on the meta device.
        tables: name given to TorchRec -> table.
        given: (name given to TorchRec, TorchRec's sharding type) -> ranks, if TorchRec must not choose them.
    """

    def __init__(
        self, problem: Problem, options: Mapping[str, Sequence[TableSplit]], topology: TorchRecTopology
    ) -> None:
        self._problem, self._options = problem, options
        self._estimator = EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, topology=topology)
        # Numbers as names, because a table's own name may be that of a method of torch's modules.
        self.tables = {str(number): table for number, table in enumerate(problem.tables)}
        self.collection = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name, embedding_dim=table.dim, num_embeddings=table.rows, feature_names=list(table.keys)
                )
                for name, table in self.tables.items()
            ],
            device=torch.device("meta"),
        )
        self.given = {
            (name, _TYPES[split.sharding].value): ranks
            for name, table in self.tables.items()
            for split in options[table.name]
            if (ranks := predetermined_ranks(problem, split)) is not None
        }

    def enumerate(self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> list[ShardingOption]:
        options = [
            self._option(name, split) for name, table in self.tables.items() for split in self._options[table.name]
        ]
        self.populate_estimates(options)
        return options

    def populate_estimates(self, sharding_options: list[ShardingOption]) -> None:
        name = sharder_name(EmbeddingBagCollection)
        self._estimator.estimate(sharding_options, build_sharder_data_map({name: _sharder()}))

    def _option(self, name: str, split: TableSplit) -> ShardingOption:
        """Returns TorchRec's description of a split of a table, with ziggurat's figures for the bytes of its shards."""
        problem, table, kind = self._problem, self.tables[name], _TYPES[split.sharding].value
        kernel = EmbeddingComputeKernel.DENSE if split.sharding == "data_parallel" else EmbeddingComputeKernel.FUSED
        return ShardingOption(
            name=name,
            tensor=cast("torch.Tensor", self.collection.embedding_bags[name].weight),
            module=("", self.collection),
            input_lengths=[problem.usages[table.name].ids_per_row / len(table.keys)] * len(table.keys),
            batch_size=problem.batch_size,
            sharding_type=kind,
            partition_by=get_partition_by_type(kind),
            compute_kernel=kernel.value,
            shards=[
                ShardEstimate(
                    size=[shard.rows.size, shard.columns.size],
                    offset=[shard.rows.first, shard.columns.first],
                    storage=self._storage(cost.kept_bytes),
                )
                for shard, cost in representative_shards(problem, table, split)
            ],
        )

    def _storage(self, size: int) -> Storage:
        """Returns the size as the kind of memory that TorchRec checks on such devices."""
        return Storage(hbm=size, ddr=0) if self._problem.topology.kind == "cuda" else Storage(hbm=0, ddr=size)


class _Partitioner(GreedyPerfPartitioner):
    """TorchRec's greedy placement, run after the tables with given ranks have been placed."""

    def __init__(self, given: Mapping[tuple[str, str], tuple[int, ...]]) -> None:
        super().__init__()
        self._given = given

    def partition(
        self, proposal: list[ShardingOption], storage_constraint: TorchRecTopology, hbm_per_device: int | None = None
    ) -> list[ShardingOption]:
        free = [option for option in proposal if (option.name, option.sharding_type) not in self._given]
        if len(free) < len(proposal):
            storage_constraint = copy.deepcopy(storage_constraint)
        for option in proposal:
            ranks = self._given.get((option.name, option.sharding_type), ())
            for shard, rank in zip(option.shards if ranks else (), ranks, strict=True):
                device = storage_constraint.devices[rank]
                assert shard.storage is not None
                assert shard.perf is not None
                if not shard.storage.fits_in(device.storage):
                    raise PlannerError(f"not enough memory on rank {rank}", PlannerErrorType.PARTITION)
                shard.rank = rank
                device.storage -= shard.storage
                device.perf += shard.perf
        super().partition(free, storage_constraint, hbm_per_device)
        return proposal


def _split_of(option: ShardingOption) -> TableSplit:
    return TableSplit(
        _SHARDINGS[option.sharding_type], len(option.shards), tuple(cast("int", shard.rank) for shard in option.shards)
    )


def _sharder() -> ModuleSharder[nn.Module]:
    return cast("ModuleSharder[nn.Module]", EmbeddingBagCollectionSharder())


@contextlib.contextmanager
def _silenced() -> Generator[None]:
    """Suppresses TorchRec's warnings about replicated tables.

    TorchRec logs them through the root logger, which would also install a handler there if there is none.
    """
    root, null_handler = logging.getLogger(), logging.NullHandler()

    def is_not_planners(record: logging.LogRecord) -> bool:
        return record.pathname != planners.__file__

    root.addHandler(null_handler)
    root.addFilter(is_not_planners)
    try:
        yield
    finally:
        root.removeFilter(is_not_planners)
        root.removeHandler(null_handler)
