"""A case of the lab by TorchRec alone: its collection, its sharder, its DistributedModelParallel and its pipeline.

The dense part is the case's model and the plan that of the case, so that what differs from :class:`Trained` is how rows
and gradients are exchanged, and what surrounds them.

Shape legend: B rows of this rank, F features, D embedding dim, T labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward as fuse  # pyright: ignore[reportPrivateUsage]
from torch.nn import functional as F
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import ParameterSharding, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from bench.lab.workload import CPU, Case, Contestant, experiment_of, placements_of, schema_of
from bench.system.torchrec_direct import sharded_pipeline
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Plan
from ziggurat.embeddings.torchrec_terms import parameter_sharding
from ziggurat.models.model import Model, ModelDims
from ziggurat.parallel.world import World
from ziggurat.training.experiment import Experiment


@dataclass
class Rows(Pipelineable):
    """The batch of a rank, in the form that TorchRec's pipelines require."""

    ids: KeyedJaggedTensor
    dense_BF: Tensor
    labels_BT: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Rows:
        ids = self.ids.to(device, non_blocking=non_blocking)
        return Rows(ids, self.dense_BF.to(device), self.labels_BT.to(device))

    def record_stream(self, stream: Any) -> None: ...

    def pin_memory(self) -> Rows:
        return self


class _Whole(nn.Module):
    """Tables and dense part, which return the loss of a batch."""

    def __init__(self, tables: EmbeddingBagCollection, dense: Model, features: int, dim: int) -> None:
        super().__init__()
        self.tables, self.dense = tables, dense
        self._features, self._dim = features, dim

    def forward(self, batch: Rows) -> tuple[Tensor, Tensor]:
        emb_BFD = self.tables(batch.ids).values().view(-1, self._features, self._dim)  # traced: no len
        loss = F.binary_cross_entropy_with_logits(self.dense(batch.dense_BF, emb_BFD), batch.labels_BT)
        return loss, loss.detach()


class Direct(Contestant):
    """A case by TorchRec, by the plan of the case; SGD."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        assert case.optimizer["name"] == "sgd", case
        config = experiment_of(case, self._names)
        configs = [
            EmbeddingBagConfig(name=name, embedding_dim=case.dim, num_embeddings=rows, feature_names=[name])
            for name, rows in case.table_rows.items()
        ]
        tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        dense = config.model.build_checked(ModelDims(case.dense, case.tables, case.dim))
        model = _Whole(tables, dense, case.tables, case.dim)
        plan = self._plan(config)
        for name, bag in tables.embedding_bags.items():
            if plan[name].sharding_type != ShardingType.DATA_PARALLEL.value:
                fuse(torch.optim.SGD, [cast("nn.EmbeddingBag", bag).weight], {"lr": case.optimizer["lr"]})
        self._pipeline = sharded_pipeline(model, tables, plan, partial(torch.optim.SGD, lr=0.01))

    def _plan(self, config: Experiment) -> dict[str, ParameterSharding]:
        """Returns the placements of the case in TorchRec's terms, copied tables as TorchRec's planner has them."""
        world, case = World.current(), self._case
        plan = Plan(world.size, placements_of(case, self._names, world), world.local_size)
        found: dict[str, ParameterSharding] = {}
        for spec in config.layout(schema_of(case)).tables:
            if plan.placements[spec.name].sharding == "data_parallel":
                kernel, ranks = EmbeddingComputeKernel.DENSE.value, list(range(world.size))
                found[spec.name] = ParameterSharding(ShardingType.DATA_PARALLEL.value, kernel, ranks)
            else:
                found[spec.name] = parameter_sharding(plan, spec, CPU)
        return found

    def _take(self, batches: list[Batch]) -> float:
        source, loss = iter([_rows(each) for each in batches]), torch.zeros(())
        for _ in batches:
            loss = self._pipeline.progress(source)
        return float(loss)


def _rows(batch: Batch) -> Rows:
    assert batch.bags is not None
    return Rows(batch.bags, batch.dense_BF, batch.labels_BT)
