"""A training loop written without any framework: `python -m bench.system.handwritten FOLDER`.

All rows are in memory as int64 ids, shuffled once in advance, and in the layout of the kernel, so that a batch is a
slice. The loop uses one table-batched lookup of FBGEMM with row-wise Adagrad fused into its backward pass, DeepFM in
plain PyTorch, and fused Adam. It does not read, shuffle or log. It is the upper bound of a system on the same kernels.

Shape legend: R rows, B batch, F features, D embedding dim, N = F·B ids.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torch.nn import functional as F

from bench.peers.protocol import Rounds
from bench.peers.workload import LABEL, Workload, columns

TABLE_LR = 0.05


def main() -> None:
    rounds = Rounds()
    folder = Path(sys.argv[1])
    workload = Workload.read(folder)
    batches = make_batches(columns(folder), workload)
    loop = Loop(workload)
    rounds.ready(torch.get_num_threads())
    while True:
        rounds.begin()
        loss = loop.epoch(batches)
        rounds.end(sum(len(labels_B) for _, _, labels_B in batches), loss)


class Loop:
    """Tables, DeepFM and optimizers, in fp32."""

    def __init__(self, workload: Workload, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.dim = workload.dim
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            [
                (table_rows, workload.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
                for table_rows in workload.tables.values()
            ],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=TABLE_LR,
        )
        self.tables.init_embedding_weights_uniform(-0.01, 0.01)
        self.model = DeepFM(len(workload.tables), workload.dim, workload.hidden)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=workload.lr, fused=True)

    def epoch(self, batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> float:
        """Trains on all batches and returns the mean of their losses."""
        loss_sum = torch.zeros(())
        for ids_N, offsets, labels_B in batches:
            loss = F.binary_cross_entropy_with_logits(self.logits(ids_N, offsets, labels_B), labels_B)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss_sum += loss.detach()
        return float(loss_sum) / len(batches)

    def logits(self, ids_N: Tensor, offsets: Tensor, labels_B: Tensor) -> Tensor:
        return self.model(self.tables(ids_N, offsets).view(len(labels_B), -1, self.dim))


class DeepFM(nn.Module):
    """DeepFM, which sums first-order, pairwise and deep terms of the same embeddings: emb_BFD → logits_B."""

    def __init__(self, features: int, dim: int, hidden: list[int]) -> None:
        super().__init__()
        self.first_order = nn.Linear(features * dim, 1)
        layers: list[nn.Module] = []
        for width, following in zip([features * dim, *hidden], hidden, strict=False):
            layers += [nn.Linear(width, following), nn.ReLU()]
        self.deep = nn.Sequential(*layers, nn.Linear(hidden[-1], 1))

    def forward(self, emb_BFD: Tensor) -> Tensor:
        flat = emb_BFD.flatten(1)
        pairs_B = 0.5 * (emb_BFD.sum(1).square() - emb_BFD.square().sum(1)).sum(1)
        return (self.first_order(flat) + self.deep(flat)).squeeze(1) + pairs_B


def make_batches(
    data: Mapping[str, npt.NDArray[Any]], workload: Workload, seed: int = 0
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Returns ids, offsets and labels of every step, with shuffled rows."""
    order = np.random.default_rng(seed).permutation(len(data[LABEL]))
    ids_FR = torch.from_numpy(np.stack([data[name][order] for name in workload.tables]).astype(np.int64))
    labels_R = torch.from_numpy(data[LABEL][order])
    return [
        (ids_FB.reshape(-1), torch.arange(ids_FB.numel() + 1), labels_B)
        for ids_FB, labels_B in zip(
            ids_FR.split(workload.batch_size, dim=1), labels_R.split(workload.batch_size), strict=True
        )
    ]


if __name__ == "__main__":
    main()
