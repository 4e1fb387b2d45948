"""Training with rows and gradients sent in 16 bits gives nearly the same weights as with 32 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.distributed.ranks import run_ranks
from tests.distributed.test_sharding import CPU, DIM, SCHEMA, TWO, batch, part
from ziggurat.core.plan import Plan
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.parallel.config import ParallelConfig, Precision

SMALL = 2.0**-26
"""Scale of the loss, as of a mean over 67 million rows: most gradients then underflow in FP16."""
PRECISIONS: dict[str, tuple[Precision, Precision, int]] = {
    "fp32": ("fp32", "fp32", 1),
    "fp16": ("fp16", "fp16", 2**26),
    "fp16 unscaled": ("fp16", "fp16", 1),
    "bf16": ("bf16", "bf16", 2**26),
    "rows alone": ("fp16", "fp32", 2**26),
}


def weight_changes(rank: int, plan: Plan) -> dict[str, Tensor]:
    """Returns precision -> the change of all weights of this rank's shards in one step."""
    config = EmbeddingsConfig.model_validate({"dim": DIM, "init_std": 0.1, "optimizer": {"name": "sgd", "lr": 0.1}})
    layout = lay_out(config, SCHEMA, {"tags": "mean", "history": "sum"})
    found: dict[str, Tensor] = {}
    for name, (forward, backward, batch_size) in PRECISIONS.items():
        parallel = ParallelConfig(forward_precision=forward, backward_precision=backward)
        lookup = EmbeddingLookup(layout, plan, CPU, 3, parallel, batch_size)
        before = torch.cat([tensor_slice.tensor.detach().clone().flatten() for tensor_slice in lookup.tensor_slices()])
        lookup.sharded.scale_learning_rates(1 / SMALL)  # pyright: ignore[reportOptionalMemberAccess] - there are tables
        emb_BFD = lookup(part(batch(0), rank, plan.world_size))
        (emb_BFD.sin().sum() * (SMALL * plan.world_size)).backward()
        found[name] = (
            torch.cat([tensor_slice.tensor.detach().flatten() for tensor_slice in lookup.tensor_slices()]) - before
        )
    return found


@pytest.mark.parametrize("name", ["table_wise", "row_wise"])
def test_weights_are_nearly_those_of_full_precision(name: str) -> None:
    for found in run_ranks(2, weight_changes, TWO[name]):
        whole = found["fp32"]
        off = {name: float((change - whole).norm() / whole.norm()) for name, change in found.items()}
        assert 0 < off["fp16"] < 1e-3  # 11 bits
        assert 0 < off["rows alone"] < 1e-3
        assert 0 < off["bf16"] < 8e-3  # 8 bits
        assert off["fp16 unscaled"] > 0.01
