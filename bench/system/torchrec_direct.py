"""Trains a workload with TorchRec alone, like its DLRM example: `python -m bench.system.torchrec_direct FOLDER`.

One DistributedModelParallel contains an EmbeddingBagCollection and the dense part. Tables use fused row-wise Adagrad,
steps run in TrainPipelineSparseDist, and batches are already in memory. The dense part is the DeepFM of the
hand-written loop. The plan is the one that ziggurat makes for these equal tables: table-wise, with the same number on
each rank.

Shape legend: B local batch, F features, R rows, D embedding dim.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward as fuse  # pyright: ignore[reportPrivateUsage]
from torch.nn import functional as F
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingEnv,
    ShardingPlan,
    ShardingType,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from bench.peers.protocol import Rounds
from bench.peers.workload import LABEL, Workload, columns
from bench.system.handwritten import TABLE_LR, DeepFM
from ziggurat.training.process_group import process_group

CPU = torch.device("cpu")


@dataclass
class Rows(Pipelineable):
    """The local batch of a rank, in the form that TorchRec's pipelines require."""

    ids: KeyedJaggedTensor
    labels_B: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Rows:
        return Rows(self.ids.to(device, non_blocking=non_blocking), self.labels_B.to(device))

    def record_stream(self, stream: Any) -> None: ...

    def pin_memory(self) -> Rows:
        return self


class Model(nn.Module):
    """The model, which returns the loss of a batch and the outputs that the pipeline passes on."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        configs = [
            EmbeddingBagConfig(name=f"t_{name}", embedding_dim=workload.dim, num_embeddings=rows, feature_names=[name])
            for name, rows in workload.tables.items()
        ]
        self.tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.dense = DeepFM(len(workload.tables), workload.dim, workload.hidden)
        self._features, self._dim = len(workload.tables), workload.dim

    def forward(self, batch: Rows) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        emb_BFD = self.tables(batch.ids).values().view(-1, self._features, self._dim)  # traced: no len
        logits_B = self.dense(emb_BFD)
        loss = F.binary_cross_entropy_with_logits(logits_B, batch.labels_B)
        return loss, (loss.detach(), logits_B.detach())


def main() -> None:
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    workload = Workload.read(folder)
    with process_group(CPU, 3600):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        rounds = Rounds() if rank == 0 else None
        batches, rows = _batches(folder, workload, rank, world_size)
        pipeline = _pipeline(workload, world_size)
        if rounds is not None:
            rounds.ready(torch.get_num_threads())
        while _started(rounds):
            source, losses = iter(batches), torch.zeros(())
            for _ in batches:
                losses += pipeline.progress(source)[0]
            if rounds is not None:
                rounds.end(rows, float(losses) / len(batches))


def _started(rounds: Rounds | None) -> bool:
    """Waits until the benchmark requests an epoch from the first rank; returns False if it is the end."""
    go = torch.ones(())
    if rounds is not None:
        try:
            rounds.begin()
        except SystemExit:
            go.zero_()
    dist.broadcast(go, 0)
    return bool(go)


def _pipeline(workload: Workload, world_size: int) -> TrainPipelineSparseDist[Any, Any]:
    model = Model(workload)
    for bag in model.tables.embedding_bags.values():
        fuse(RowWiseAdagrad, [cast("nn.EmbeddingBag", bag).weight], {"lr": TABLE_LR, "eps": 1e-8})
    names = enumerate(workload.tables)
    owners = {f"t_{name}": number * world_size // len(workload.tables) for number, name in names}
    adam = partial(torch.optim.Adam, lr=workload.lr, fused=True)
    return sharded_pipeline(model, model.tables, whole_tables(model.tables, owners, world_size), adam)


def sharded_pipeline(
    model: nn.Module,
    tables: EmbeddingBagCollection,
    plan: Mapping[str, ParameterSharding],
    optimizer: Callable[[list[Any]], torch.optim.Optimizer],
) -> TrainPipelineSparseDist[Any, Any]:
    """Returns TorchRec's pipeline over a model with sharded tables.

    Args:
        model: the model; its parameters below ``dense``, and the tables that are copied to all ranks, are trained by
            ``optimizer``.
        tables: its attribute ``tables``. The optimizers of those that are not copied are fused into their backward
            passes.
        plan: table -> how it is sharded.
        optimizer: makes the optimizer of the dense part.
    """
    assert dist.group.WORLD is not None
    parallel = DistributedModelParallel(
        model,
        device=CPU,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"tables": EmbeddingModuleShardingPlan(plan)}),
        sharders=[cast("Any", EmbeddingBagCollectionSharder())],
    )
    copied = {
        f"tables.embedding_bags.{name}.weight"
        for name, each in plan.items()
        if each.sharding_type == ShardingType.DATA_PARALLEL.value
    }
    weights = {
        name: value
        for name, value in parallel.named_parameters()
        if ".dense." in f".{name}" or name.replace("module.", "") in copied
    }
    dense = KeyedOptimizerWrapper(weights, optimizer)
    return TrainPipelineSparseDist(parallel, CombinedOptimizer([parallel.fused_optimizer, dense]), CPU)


def whole_tables(
    tables: EmbeddingBagCollection, owners: Mapping[str, int], local_size: int
) -> Mapping[str, ParameterSharding]:
    """Returns the plan of tables that lie whole on one rank each.

    Args:
        tables: the tables.
        owners: table -> the rank that has it.
        local_size: ranks on each host.
    """
    return construct_module_sharding_plan(
        tables,
        {name: table_wise(rank=rank) for name, rank in owners.items()},
        cast("Any", EmbeddingBagCollectionSharder()),
        local_size=local_size,
        world_size=dist.get_world_size(),
        device_type="cpu",
    )


def _batches(folder: Path, workload: Workload, rank: int, world_size: int) -> tuple[list[Rows], int]:
    """Returns this rank's local batches of shuffled rows, and the number of rows of all ranks."""
    data = columns(folder)
    rows = len(data[LABEL]) // (workload.batch_size * world_size) * workload.batch_size * world_size
    order = np.random.default_rng(0).permutation(len(data[LABEL]))[:rows]
    names = list(workload.tables)
    ids_FR = torch.from_numpy(np.stack([data[name][order] for name in names]).astype(np.int64))
    labels_R = torch.from_numpy(data[LABEL][order])
    batches: list[Rows] = []
    for first in range(rank * workload.batch_size, rows, world_size * workload.batch_size):
        mine = slice(first, first + workload.batch_size)
        values = ids_FR[:, mine].reshape(-1)
        ids = KeyedJaggedTensor(keys=names, values=values, lengths=torch.ones(len(values), dtype=torch.int32))
        batches.append(Rows(ids, labels_R[mine]))
    return batches, rows


if __name__ == "__main__":
    main()
