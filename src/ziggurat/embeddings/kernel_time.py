"""Measures FBGEMM's fused kernel on this machine for a set of tables: forward, backward and the update of rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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

EVICTED_BYTES = 64 * 2**20
"""Bytes written between two calls. In training dense layers run there, and leave no row in a core's caches."""


@dataclass(frozen=True, slots=True)
class Bags:
    """The lookups of one table in one step.

    Attributes:
        rows: rows of the table.
        columns: columns of the table, or of the range of columns that is looked up.
        ids: int64 (n,), in [0, rows).
        lengths: ids per bag, int64 (keys · examples,), grouped by key.
        keys: the number of features that look up the table.
    """

    rows: int
    columns: int
    ids: Tensor
    lengths: Tensor
    keys: int = 1


class TableMemory:
    """CPU memory for tables that is reused from one measured kernel to the next.

    Fresh pages for 2.4 GB of tables took 1.6 of the 2.9 seconds of measuring them, and the C library's heap seldom has
    enough contiguous memory for the next tables.
    """

    SPARE = 1.25
    """Allocation as a multiple of the request, as the next tables may be somewhat larger."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)

    def zeros(self, sizes: Sequence[int]) -> list[Tensor]:
        """Returns float32 tensors of zeros of these sizes; invalidates those of the last call."""
        if len(self._numbers) < sum(sizes):
            self._numbers = torch.empty(0)  # freed before the larger one is allocated
            self._numbers = torch.empty(round(self.SPARE * sum(sizes)))
        return list(self._numbers[: sum(sizes)].zero_().split(list(sizes)))


class CacheEviction:
    """Overwrites caches between two calls, so that no call finds its rows in a core's caches.

    Args:
        device: the device that the calls run on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._evicted_buffer = torch.zeros(EVICTED_BYTES // 4, device=device)

    def slowdown(self) -> float:
        """Evicts caches; returns how many times longer calls take now than usual. Unknown here, so 1."""
        self._evicted_buffer.add_(1)
        _finish(self._device)
        return 1.0


class SlowdownGauge(CacheEviction):
    """Evicts caches and estimates how slow the machine is at the moment.

    Other work on a machine, or on the host of a virtual machine, takes part of the memory bandwidth for seconds at a
    time: all calls then take up to 1.5 times as long. The reference work here is slowed likewise: it adds to a buffer,
    and gathers rows and writes them back. On two cores of an EPYC, medians of seven calls vary by 10 to 12 % (standard
    deviation; tables of 28 to 85 ms), and by 3 to 4.4 % once they are divided by :meth:`slowdown`.

    Args:
        device: a CPU; results hold for torch's current number of threads.
    """

    BUFFER, GATHER = 0.5, 0.35
    """Exponents that relate a call's slowdown to that of the reference work (adding to the buffer; gathering rows).
    Fitted to 1,119 calls of one set of tables; two other sets had .57 and .58, .26 and .42."""
    ROWS, COLUMNS, GATHERED = 2**18, 64, 20_000
    USUAL = 20
    """Runs of the reference work that determine its usual time."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        draw = torch.Generator().manual_seed(0)
        self._rows = torch.zeros(self.ROWS, self.COLUMNS, device=device)
        self._ids = torch.randint(self.ROWS, (self.GATHERED,), generator=draw).to(device)
        turns = [self._turn() for _ in range(self.USUAL)]
        self._usual = tuple(float(np.median(seconds)) for seconds in zip(*turns, strict=True))

    def slowdown(self) -> float:
        """Returns how many times longer calls take now than when this object was created."""
        buffer, gather = (now / usual for now, usual in zip(self._turn(), self._usual, strict=True))
        return buffer**self.BUFFER * gather**self.GATHER

    def _turn(self) -> tuple[float, float]:
        started = time.perf_counter()
        super().slowdown()
        between = time.perf_counter()
        self._rows.index_copy_(0, self._ids, self._rows.index_select(0, self._ids))
        _finish(self._device)
        return between - started, time.perf_counter() - between


def kernel_seconds(
    steps: Sequence[Sequence[Bags]],
    optimizer: str,
    device: torch.device,
    repeats: int = 5,
    between: CacheEviction | None = None,
    memory: TableMemory | None = None,
) -> tuple[float, ...]:
    """Returns the seconds of each of ``repeats`` calls, forward and backward, after one unmeasured call per step.

    Args:
        steps: the lookups of the same tables in several steps, which are measured in turn.
        optimizer: a key of :data:`OPTIMIZERS`; fused into backward.
        device: the device whose memory holds the tables. On a CPU results hold for torch's current number of threads.
        repeats: the number of measured calls.
        between: runs between calls; a call's seconds are divided by the geometric mean of the slowdowns around it.
        memory: on a CPU, the memory for the tables, which the next kernel can reuse.
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
        preallocated_host_buffers=_buffers(steps[0], optimizer, memory or TableMemory()) if cpu else None,
    )
    inputs = [_inputs(step, device) for step in steps]
    examples = len(steps[0][0].lengths) // steps[0][0].keys
    columns = sum(bags.columns * bags.keys for bags in steps[0])
    gradient = torch.randn(examples, columns, device=device)
    between = between or CacheEviction(device)
    taken: list[float] = []
    slowdown: list[float] = []
    for turn in range(len(steps) + repeats):
        ids, offsets = inputs[turn % len(steps)]
        slowdown.append(between.slowdown())
        started = time.perf_counter()
        kernel(ids, offsets).backward(gradient)
        _finish(device)
        taken.append(time.perf_counter() - started)
    slowdown.append(between.slowdown())
    usual = [seconds / (a * b) ** 0.5 for seconds, (a, b) in zip(taken, pairwise(slowdown), strict=True)]
    return tuple(usual[len(steps) :])


def lower_quartile(seconds: Sequence[float]) -> float:
    """Estimates the seconds of a call without other load on the machine: the lower quartile of some measured calls.

    Other load makes some calls, several in a row, take 1.5 times as long; it makes none faster.
    """
    return float(np.quantile(seconds, 0.25))


def _buffers(tables: Sequence[Bags], optimizer: str, memory: TableMemory) -> dict[str, Tensor]:
    """Returns the buffers for weights and optimizer states of all tables that FBGEMM expects."""
    states = {"sgd": [], "adagrad": ["weights"], "rowwise_adagrad": ["rows"]}[optimizer]
    numbers = {"weights": sum(each.rows * each.columns for each in tables), "rows": sum(each.rows for each in tables)}
    sizes = [numbers[name] for name in ("weights", *states)]
    return dict(zip(("weights", "momentum1"), memory.zeros(sizes), strict=False))


def _inputs(step: Sequence[Bags], device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the ids and offsets of all tables, concatenated."""
    lengths = torch.cat([bags.lengths for bags in step])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.cat([bags.ids for bags in step]).to(device), offsets.to(device)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
