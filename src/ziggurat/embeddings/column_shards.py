"""Row-wise Adagrad for tables split by columns: one accumulator per row, shared by the ranks that hold its columns.

FBGEMM's kernel averages the squared gradient over the columns that it sees. A table split by columns would have one
accumulator per row and shard, and would train differently from the same table unsplit. Here the ranks that hold columns
of the same rows sum their squares (4 bytes per row of the batch, after the backward pass) and scale their columns by
the same accumulator. The cost is torch's lookup instead of FBGEMM's.

Shape legend: L ids, U distinct ids, D columns of the shard, F features, B rows of the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ziggurat.core.plan import Span
from ziggurat.core.tables import Pooling, TableSpec
from ziggurat.embeddings.dirty_rows import DirtyRows
from ziggurat.embeddings.row_table import RowTable, summed_by_row


class ColumnShard(RowTable):
    """Some columns of some rows of a table; ``group`` contains the ranks that hold the other columns of these rows."""

    def __init__(
        self, spec: TableSpec, rows: Span, weight_RD: Tensor, pooling: Pooling, group: dist.ProcessGroup | None
    ) -> None:
        super().__init__(spec, weight_RD, pooling)
        self.rows, self._group = rows, group
        self._pending: tuple[Tensor, Tensor] | None = None

    def update(self, ids_L: Tensor, grad_LD: Tensor) -> None:
        """Keeps ids and gradients until :func:`exchange`."""
        self._pending = (ids_L, grad_LD)

    def take_gradients(self) -> tuple[Tensor, Tensor] | None:
        """Removes and returns the distinct rows and the sums of their gradients; None if the batch touched no row."""
        pending, self._pending = self._pending, None
        return None if pending is None or not len(pending[0]) else summed_by_row(*pending)

    def scaled_step(self, rows_U: Tensor, grad_UD: Tensor, square_U: Tensor) -> None:
        """Applies s += square, w −= lr·G / (√s + eps) to these rows."""
        self.dirty.touch(rows_U)
        total_R = self.state()["sum"]
        total_R[rows_U] += square_U
        scale_U = self.lr / (total_R[rows_U].sqrt() + self.spec.optimizer["eps"])
        self.weight_RD[rows_U] -= grad_UD * scale_U.unsqueeze(1)


@torch.no_grad()
def exchange(shards: Sequence[ColumnShard]) -> None:
    """Applies the optimizer step to this rank's shards of the same rows; to be called after the backward pass.

    Every rank that has columns of these rows has looked up the same ids, so U is the same on all of them.
    """
    taken = [shard.take_gradients() for shard in shards]
    if taken[0] is None:
        return
    rows_U = taken[0][0]
    grads = [each[1] for each in taken if each is not None]
    square_U = sum((grad_UD.square().sum(dim=1) for grad_UD in grads), torch.zeros_like(grads[0][:, 0]))
    group = shards[0]._group  # pyright: ignore[reportPrivateUsage]
    if group is not None:
        dist.all_reduce(square_U, group=group)
    square_U /= shards[0].spec.dim
    for shard, grad_UD in zip(shards, grads, strict=True):
        shard.scaled_step(rows_U, grad_UD, square_U)


class ColumnKernel(nn.Module):
    """Replaces FBGEMM's kernel in TorchRec's lookup, with the same arguments and the same output."""

    def __init__(self, shards: Sequence[ColumnShard], features: Sequence[int]) -> None:
        super().__init__()
        self.shards = nn.ModuleList(shards)
        self._features = tuple(features)

    def dirty_rows(self) -> list[DirtyRows]:
        """Returns the dirty rows of each shard."""
        return [cast("ColumnShard", shard).dirty for shard in self.shards]

    def forward(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """Returns the pooled columns of all features, concatenated: (B, sum of columns).

        Args:
            indices: the ids of all features, grouped by feature.
            offsets: (F·B + 1,), where each bag starts.
            per_sample_weights: must be None; ziggurat does not use them.
        """
        assert per_sample_weights is None
        total = sum(self._features)
        lengths_FB = offsets.diff().view(total, -1)
        pooled: list[Tensor] = []
        first = 0
        for shard, count in zip(self.shards, self._features, strict=True):
            size = lengths_FB.shape[1]
            begin, end = int(offsets[first * size]), int(offsets[(first + count) * size])
            rows_ND = shard(indices[begin:end].long(), lengths_FB[first : first + count].reshape(-1))
            pooled.append(rows_ND.view(count, size, -1).transpose(0, 1).flatten(1))
            first += count
        return torch.cat(pooled, dim=1)
