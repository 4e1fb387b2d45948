"""How long FBGEMM's fused kernel takes for a set of tables: forward, backward and the rows' update, on this machine."""

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


class Memory:
    """What the tables of one kernel after the other lie in, on a CPU.

    Fresh pages for 2.4 GB of tables took 1.6 of the 2.9 seconds of measuring them, and the C library's heap seldom has
    room in one piece for the next ones.
    """

    SPARE = 1.25
    """Times what is asked for: the next tables are somewhat larger."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)

    def zeros(self, sizes: Sequence[int]) -> list[Tensor]:
        """So many zeros each, float32, in place of those of the last call."""
        if len(self._numbers) < sum(sizes):
            self._numbers = torch.empty(0)  # gone before the larger one is there
            self._numbers = torch.empty(round(self.SPARE * sum(sizes)))
        return list(self._numbers[: sum(sizes)].zero_().split(list(sizes)))


class Eviction:
    """What runs between two calls, so that none finds its rows in a core's caches.

    Args:
        device: that the calls run on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._evicted = torch.zeros(EVICTED // 4, device=device)

    def slowness(self) -> float:
        """By how many times as long as usual calls take now, as far as is known: not at all."""
        self._evicted.add_(1)
        _finish(self._device)
        return 1.0


class Yardstick(Eviction):
    """The same, and tells how slow the machine is just now.

    What others do on a machine, or on the host of a virtual one, takes its part of the way to memory for seconds: calls
    take up to half as long again, whichever of some one looks at. The work here is slowed with them: a buffer is added
    to, rows are gathered and put back. On two cores of an EPYC, medians of seven calls spread by 10 to 12 % (standard
    deviation; tables of 28 to 85 ms), and by 3 to 4.4 % once they are divided by :meth:`slowness`.

    Args:
        device: a CPU, of which torch's number of threads counts.
    """

    BUFFER, GATHER = 0.5, 0.35
    """Exponents: how much a call is slowed where this work is. Fitted to 1,119 calls of one set of tables; two others
    had .57 and .58, .26 and .42."""
    ROWS, COLUMNS, GATHERED = 2**18, 64, 20_000
    USUAL = 20
    """Turns that say what is usual."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        draw = torch.Generator().manual_seed(0)
        self._rows = torch.zeros(self.ROWS, self.COLUMNS, device=device)
        self._ids = torch.randint(self.ROWS, (self.GATHERED,), generator=draw).to(device)
        turns = [self._turn() for _ in range(self.USUAL)]
        self._usual = tuple(float(np.median(seconds)) for seconds in zip(*turns, strict=True))

    def slowness(self) -> float:
        """By how many times as long as when this was made calls take now."""
        buffer, gather = (now / usual for now, usual in zip(self._turn(), self._usual, strict=True))
        return buffer**self.BUFFER * gather**self.GATHER

    def _turn(self) -> tuple[float, float]:
        started = time.perf_counter()
        super().slowness()
        between = time.perf_counter()
        self._rows.index_copy_(0, self._ids, self._rows.index_select(0, self._ids))
        _finish(self._device)
        return between - started, time.perf_counter() - between


def kernel_seconds(
    steps: Sequence[Sequence[Bags]],
    optimizer: str,
    device: torch.device,
    repeats: int = 5,
    between: Eviction | None = None,
    memory: Memory | None = None,
) -> tuple[float, ...]:
    """Seconds of each of ``repeats`` calls, forward and backward, after every step was taken once unmeasured.

    Args:
        steps: what the tables are asked for, the same tables in each; steps take turns.
        optimizer: of :data:`OPTIMIZERS`, fused into backward.
        device: whose memory holds the tables. Of a CPU, torch's number of threads counts.
        repeats: calls that are measured.
        between: runs between calls; a call counts as its seconds over the slowness before and behind it.
        memory: of a CPU, what the tables lie in, and those of the next kernel.
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
        preallocated_host_buffers=_buffers(steps[0], optimizer, memory or Memory()) if cpu else None,
    )
    inputs = [_inputs(step, device) for step in steps]
    examples = len(steps[0][0].lengths) // steps[0][0].keys
    columns = sum(bags.columns * bags.keys for bags in steps[0])
    gradient = torch.randn(examples, columns, device=device)
    between = between or Eviction(device)
    taken: list[float] = []
    slowness: list[float] = []
    for turn in range(len(steps) + repeats):
        ids, offsets = inputs[turn % len(steps)]
        slowness.append(between.slowness())
        started = time.perf_counter()
        kernel(ids, offsets).backward(gradient)
        _finish(device)
        taken.append(time.perf_counter() - started)
    slowness.append(between.slowness())
    usual = [seconds / (a * b) ** 0.5 for seconds, (a, b) in zip(taken, pairwise(slowness), strict=True)]
    return tuple(usual[len(steps) :])


def undisturbed(seconds: Sequence[float]) -> float:
    """What a call takes by itself, of the times of some: the lower quartile. Other work on the machine makes some calls
    take half as long again, several in a row, and none less."""
    return float(np.quantile(seconds, 0.25))


def _buffers(tables: Sequence[Bags], optimizer: str, memory: Memory) -> dict[str, Tensor]:
    """Weights and optimizer states of all tables, as FBGEMM wants them."""
    states = {"sgd": [], "adagrad": ["weights"], "rowwise_adagrad": ["rows"]}[optimizer]
    numbers = {"weights": sum(each.rows * each.columns for each in tables), "rows": sum(each.rows for each in tables)}
    sizes = [numbers[name] for name in ("weights", *states)]
    return dict(zip(("weights", "momentum1"), memory.zeros(sizes), strict=False))


def _inputs(step: Sequence[Bags], device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, offsets) of all tables, table after table."""
    lengths = torch.cat([bags.lengths for bags in step])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.cat([bags.ids for bags in step]).to(device), offsets.to(device)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
