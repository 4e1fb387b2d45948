"""Rows that are looked up and updated by torch itself, where FBGEMM's kernels cannot do what is asked.

As with those kernels, rows are updated because the backward pass ran, each once, by the sum of its gradients.

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


class RowTable(nn.Module, ABC):
    """A table, or a part of one, with its optimizer's states. Both are buffers: no optimizer outside sees them.

    Args:
        spec: the whole table.
        weight_RD: this part's rows and columns; updated in place.
        pooling: of a bag's rows here, where it is not the table's own: parts of a mean are summed.
    """

    weight_RD: Tensor
    steps: Tensor

    def __init__(self, spec: TableSpec, weight_RD: Tensor, pooling: Pooling | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.pooling = pooling or spec.pooling
        self.lr = float(spec.optimizer["lr"])
        self._rule = row_rule(spec.optimizer)
        self.register_buffer("weight_RD", weight_RD)
        shapes = self._rule.states(*weight_RD.shape)
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, device=weight_RD.device))
        self._states = list(shapes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, ids_L: Tensor, lengths_N: Tensor) -> Tensor:
        """Pooled rows (N, D) of the bags whose ids lie end to end."""
        offsets_N = lengths_N.long().cumsum(0) - lengths_N
        return _Lookup.apply(self._anchor, self, ids_L, offsets_N, lengths_N)

    def state(self) -> dict[str, Tensor]:
        """Name -> state of the optimizer, live, without the count of its steps."""
        return {name: getattr(self, name) for name in self._states}

    @cached_property
    def marks(self) -> DirtyRows:
        """Which rows have changed. Made when it is first asked for: until then the table may move to its device."""
        return DirtyRows({"": self.weight_RD, **self.state()})

    @abstractmethod
    def update(self, ids_L: Tensor, grad_LD: Tensor) -> None:
        """Take the gradients of the looked-up rows; called while the backward pass runs."""

    def step(self, rows_U: Tensor | None, grad_UD: Tensor) -> None:
        """The optimizer's next step on some rows, or on all where ``rows_U`` is None."""
        if rows_U is None:
            self.marks.touch_all()
        else:
            self.marks.touch(rows_U)
        self.steps += 1
        step_rows(self._rule, self.weight_RD, self.state(), rows_U, grad_UD, self.lr, int(self.steps))


def summed_by_row(ids_L: Tensor, grad_LD: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids, ascending (U,), and the sum of the gradients of each (U, D)."""
    rows_U, inverse_L = torch.unique(ids_L, return_inverse=True)
    return rows_U, grad_LD.new_zeros(len(rows_U), grad_LD.shape[1]).index_add_(0, inverse_L, grad_LD)


class _Lookup(torch.autograd.Function):
    """embedding_bag whose backward hands the gradients to the table; the anchor makes autograd call it."""

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
        ctx.table.update(ids_L, grad_ND.repeat_interleave(lengths_N.long(), dim=0))
        return (None,) * 5
