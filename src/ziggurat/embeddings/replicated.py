"""Tables that every rank holds whole: replicated by the plan, or of an optimizer that FBGEMM has no kernel for.

Rows are updated while the backward pass runs, each once, by the sum of its gradients. Several ranks exchange the
gradient of the whole table behind it (an all-reduce), make the same step and so stay equal; that suits small tables.

- ``rows: touched``: the states of a row that is not in the batch stay as they are, as in FBGEMM's kernels.
- ``rows: all`` (Adam): what ``torch.optim.Adam`` does with the dense gradient of the table, ``l2`` as its
  ``weight_decay``.

Shape legend: N bags over all features of a table, L ids in them, U distinct ids, R rows, D dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.core.plan import Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.optim.row_rules import row_rule, step_rows


class ReplicatedTable(nn.Module):
    """One table with its optimizer's states. Both are buffers: no optimizer outside sees them."""

    weight_RD: Tensor
    steps: Tensor

    def __init__(self, spec: TableSpec) -> None:
        super().__init__()
        self.spec = spec
        self.lr = float(spec.optimizer["lr"])
        self._rule = row_rule(spec.optimizer)
        self.register_buffer("weight_RD", torch.zeros(spec.rows, spec.dim))
        self.states = list(self._rule.states(spec.rows, spec.dim))
        for name, shape in self._rule.states(spec.rows, spec.dim).items():
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._anchor = torch.zeros((), requires_grad=True)
        self._pending: tuple[Tensor, Tensor] | None = None

    def forward(self, ids_L: Tensor, lengths_N: Tensor) -> Tensor:
        """Pooled rows (N, D) of the bags whose ids lie end to end."""
        offsets_N = lengths_N.long().cumsum(0) - lengths_N
        return _Lookup.apply(self._anchor, self, ids_L, offsets_N, lengths_N)

    def state(self) -> dict[str, Tensor]:
        """Name -> state of the optimizer, live; the count of its steps among them."""
        return {**{name: getattr(self, name) for name in self.states}, "steps": self.steps}

    @torch.no_grad()
    def update(self, ids_L: Tensor, grad_LD: Tensor) -> None:
        """Take the gradients of the looked-up rows: one step, at once where there is one rank."""
        if _world_size() > 1:
            self._pending = (ids_L, grad_LD)
        elif self._all_rows:
            self._step(None, torch.zeros_like(self.weight_RD).index_add_(0, ids_L, grad_LD))
        else:
            rows_U, inverse_L = torch.unique(ids_L, return_inverse=True)
            grad_UD = grad_LD.new_zeros(len(rows_U), grad_LD.shape[1]).index_add_(0, inverse_L, grad_LD)
            self._step(rows_U, grad_UD)

    @torch.no_grad()
    def exchange(self) -> None:
        """Behind the backward pass of several ranks: sum the gradients over them and make the step, on every rank the
        same. They are meant over the ranks, as those of the other tables are."""
        grad_RD, touched_R = torch.zeros_like(self.weight_RD), torch.zeros(len(self.weight_RD), dtype=torch.uint8)
        if self._pending is not None:
            ids_L, grad_LD = self._pending
            grad_RD.index_add_(0, ids_L, grad_LD)
            touched_R[ids_L] = 1
        self._pending = None
        dist.all_reduce(grad_RD)
        grad_RD.div_(_world_size())
        if self._all_rows:
            self._step(None, grad_RD)
            return
        touched_R = touched_R.to(grad_RD.device)
        dist.all_reduce(touched_R, dist.ReduceOp.MAX)
        rows_U = touched_R.nonzero().squeeze(1)
        self._step(rows_U, grad_RD[rows_U])

    def _step(self, rows_U: Tensor | None, grad_UD: Tensor) -> None:
        self.steps += 1
        if rows_U is None and self.spec.optimizer["l2"]:
            grad_UD.add_(self.weight_RD, alpha=self.spec.optimizer["l2"])
        states = {name: getattr(self, name) for name in self.states}
        step_rows(self._rule, self.weight_RD, states, rows_U, grad_UD, self.lr, int(self.steps))

    @property
    def _all_rows(self) -> bool:
        optimizer = self.spec.optimizer
        return optimizer["name"] == "adam" and optimizer["rows"] == "all"


def is_replicated(spec: TableSpec, device: torch.device, sharding: Sharding) -> bool:
    """Whether a table is a :class:`ReplicatedTable`: the plan says so, or FBGEMM cannot do what its optimizer says."""
    optimizer = spec.optimizer
    own_adam = optimizer["name"] == "adam" and (device.type == "cpu" or optimizer["rows"] == "all")
    return own_adam or sharding == "data_parallel"


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


class _Lookup(torch.autograd.Function):
    """embedding_bag whose backward updates the table; the anchor makes autograd call it."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - autograd's own signature is *args
        ctx: Any, anchor: Tensor, table: ReplicatedTable, ids_L: Tensor, offsets_N: Tensor, lengths_N: Tensor
    ) -> Tensor:
        ctx.table = table
        ctx.save_for_backward(ids_L, lengths_N)
        return F.embedding_bag(ids_L, table.weight_RD, offsets_N, mode=table.spec.pooling)

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ids_L, lengths_N = ctx.saved_tensors
        if ctx.table.spec.pooling == "mean":
            grad_ND = grad_ND / lengths_N.clamp(min=1).unsqueeze(1)
        ctx.table.update(ids_L, grad_ND.repeat_interleave(lengths_N.long(), dim=0))
        return (None,) * 5
