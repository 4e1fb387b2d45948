"""Tables that are looked up and updated by torch itself, for what FBGEMM's kernels do not support.

As with FBGEMM's kernels, the backward pass updates the rows: each row once, with the sum of its gradients.

Shape legend: N bags over all features of a table, L ids in them, U distinct ids, R rows, D dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.core.tables import Pooling, TableSpec
from ziggurat.embeddings.dirty_rows import DirtyRows
from ziggurat.optim.row_rules import row_rule, step_rows


class UpdatedRows(nn.Module):
    """Rows of a table with their optimizer's states. Both are buffers, so no other optimizer updates them.

    Args:
        spec: the whole table.
        weight_RD: the rows; updated in place.
    """

    weight_RD: Tensor
    steps: Tensor

    def __init__(self, spec: TableSpec, weight_RD: Tensor) -> None:
        super().__init__()
        self.spec = spec
        self.lr = float(spec.optimizer["lr"])
        self._rule = row_rule(spec.optimizer)
        self.register_buffer("weight_RD", weight_RD)
        shapes = self._rule.states(*weight_RD.shape)
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, device=weight_RD.device))
        self._states = list(shapes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def state(self) -> dict[str, Tensor]:
        """Returns name -> optimizer state without the step count; live, not copies."""
        return {name: getattr(self, name) for name in self._states}

    @cached_property
    def dirty(self) -> DirtyRows:
        """The rows that have changed. Created on first use, so that the table can be moved to its device before."""
        return DirtyRows({"": self.weight_RD, **self.state()})

    def step(self, rows_U: Tensor | None, grad_UD: Tensor) -> None:
        """Applies the optimizer's next step to some rows, or to all rows if ``rows_U`` is None."""
        if rows_U is None:
            self.dirty.touch_all()
        else:
            self.dirty.touch(rows_U)
        self.steps += 1
        step_rows(self._rule, self.weight_RD, self.state(), rows_U, grad_UD, self.lr, int(self.steps))


class RowTable(UpdatedRows, ABC):
    """A table, or a shard of one, that is looked up as a whole.

    Args:
        spec: the whole table.
        weight_RD: the rows and columns of this shard; updated in place.
        pooling: how a bag's rows are pooled here if not by the table's own pooling: shards of a mean are summed.
    """

    def __init__(self, spec: TableSpec, weight_RD: Tensor, pooling: Pooling | None = None) -> None:
        super().__init__(spec, weight_RD)
        self.pooling = pooling or spec.pooling
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, ids_L: Tensor, lengths_N: Tensor) -> Tensor:
        """Returns the pooled rows (N, D) of bags whose ids are concatenated in ``ids_L``."""
        offsets_N = lengths_N.long().cumsum(0) - lengths_N
        return _Lookup.apply(self._anchor, self, ids_L, offsets_N, lengths_N)

    @abstractmethod
    def update(self, ids_L: Tensor, grad_LD: Tensor) -> None:
        """Receives the gradients of the looked-up rows; called during the backward pass."""


def summed_by_row(ids_L: Tensor, grad_LD: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distinct ids, ascending (U,), and the sum of each one's gradients (U, D)."""
    rows_U, inverse_L = torch.unique(ids_L, return_inverse=True)
    return rows_U, add_by_row(grad_LD.new_zeros(len(rows_U), grad_LD.shape[1]), inverse_L, grad_LD)


def add_by_row(sums_RD: Tensor, ids_L: Tensor, grad_LD: Tensor) -> Tensor:
    """Adds each gradient to the row of its id, in place and in an order that repeats; returns ``sums_RD``.

    On a GPU index_add_ adds in the order in which threads come, and two runs differ in the last bits. index_put_ sorts
    the ids first. (embedding_dense_backward would, too, but its kernel for up to 3,072 ids has a race:
    https://github.com/pytorch/pytorch/pull/187687.)
    """
    if sums_RD.is_cuda:
        return sums_RD.index_put_((ids_L,), grad_LD, accumulate=True)
    return sums_RD.index_add_(0, ids_L, grad_LD)


class _Lookup(torch.autograd.Function):
    """An embedding_bag whose backward passes the gradients to the table; the anchor makes autograd call backward."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - autograd's own signature is *args
        ctx: Any, anchor: Tensor, table: RowTable, ids_L: Tensor, offsets_N: Tensor, lengths_N: Tensor
    ) -> Tensor:
        ctx.table = table
        ctx.save_for_backward(ids_L, lengths_N)
        return F.embedding_bag(ids_L, table.weight_RD, offsets_N, mode=table.pooling)

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ids_L, lengths_N = ctx.saved_tensors
        if ctx.table.pooling == "mean":
            grad_ND = grad_ND / lengths_N.clamp(min=1).unsqueeze(1)
        ctx.table.update(ids_L, grad_ND.repeat_interleave(lengths_N.long(), dim=0, output_size=len(ids_L)))
        return (None,) * 5
