"""How long FBGEMM's fused kernel takes for a set of tables: forward, backward and the rows' update, on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor

OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}

EVICTED = 64 * 2**20
"""Bytes that are written between two calls: dense layers run there, and leave no row in a core's caches."""


@dataclass(frozen=True, slots=True)
class Bags:
    """What one table is asked for in a step.

    Attributes:
        rows, columns: of the table, or of the range of columns that is looked up.
        ids: int64 (n,), in [0, rows).
        lengths: ids of each bag, int64 (keys · examples,): of all examples for the first key, then for the next.
        keys: features that look the table up.
    """

    rows: int
    columns: int
    ids: Tensor
    lengths: Tensor
    keys: int = 1


def kernel_seconds(
    steps: Sequence[Sequence[Bags]], optimizer: str, device: torch.device, repeats: int = 5
) -> tuple[float, ...]:
    """Seconds of each of ``repeats`` calls, forward and backward, after every step was taken once unmeasured.

    Args:
        steps: what the tables are asked for, the same tables in each; steps take turns.
        optimizer: of :data:`OPTIMIZERS`, fused into backward.
        device: whose memory holds the tables. Of a CPU, torch's number of threads counts.
        repeats: calls that are measured.
    """
    cpu = device.type == "cpu"
    place = EmbeddingLocation.HOST if cpu else EmbeddingLocation.DEVICE
    kind = ComputeDevice.CPU if cpu else ComputeDevice.CUDA
    kernel = SplitTableBatchedEmbeddingBagsCodegen(
        [(bags.rows, bags.columns, place, kind) for bags in steps[0]],
        optimizer=OPTIMIZERS[optimizer],
        learning_rate=0.01,
        feature_table_map=[table for table, bags in enumerate(steps[0]) for _ in range(bags.keys)],
        pooling_mode=PoolingMode.SUM,
        device=device,
    )
    inputs = [_inputs(step, device) for step in steps]
    examples = len(steps[0][0].lengths) // steps[0][0].keys
    columns = sum(bags.columns * bags.keys for bags in steps[0])
    gradient = torch.randn(examples, columns, device=device)
    evicted = torch.zeros(EVICTED // 4, device=device)
    taken: list[float] = []
    for turn in range(len(steps) + repeats):
        ids, offsets = inputs[turn % len(steps)]
        evicted.add_(1)
        _finish(device)
        started = time.perf_counter()
        kernel(ids, offsets).backward(gradient)
        _finish(device)
        if turn >= len(steps):
            taken.append(time.perf_counter() - started)
    return tuple(taken)


def undisturbed(seconds: Sequence[float]) -> float:
    """What a call takes by itself, of the times of some: the lower quartile. Other work on the machine makes some calls
    take half as long again, several in a row, and none less."""
    return float(np.quantile(seconds, 0.25))


def _inputs(step: Sequence[Bags], device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, offsets) of all tables, table after table."""
    lengths = torch.cat([bags.lengths for bags in step])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.cat([bags.ids for bags in step]).to(device), offsets.to(device)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
