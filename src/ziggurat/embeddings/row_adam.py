"""Adam fused into backward where FBGEMM has no such kernel: on the CPU, and wherever a step updates all rows.

Kingma & Ba 2015, algorithm 1, with the bias correction counting steps of the table, not of the row.

- ``rows: touched``, the "lazy" form that FBGEMM's CUDA kernel has: the moments of a row that is not in the batch stay
  as they are. A row that occurs several times gets the sum of its gradients, added in the order of occurrence.
- ``rows: all``: what ``torch.optim.Adam`` does with the dense gradient of the table, ``l2`` as its ``weight_decay``.

Weight decay is decoupled, as on CUDA.

Shape legend: N bags over all features of a table, L ids in them, U distinct ids, R rows, D dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.core.tables import TableSpec


class RowAdamTable(nn.Module):
    """One table with its moments; rows are updated while the backward pass runs.

    Weights and moments are buffers: no optimizer outside sees them.
    """

    weight_RD: Tensor
    exp_avg_RD: Tensor
    exp_avg_sq_RD: Tensor
    steps: Tensor

    def __init__(self, spec: TableSpec) -> None:
        super().__init__()
        self.spec = spec
        self.lr = float(spec.optimizer["lr"])
        for name in ("weight_RD", "exp_avg_RD", "exp_avg_sq_RD"):
            self.register_buffer(name, torch.zeros(spec.rows, spec.dim))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, ids_L: Tensor, lengths_N: Tensor) -> Tensor:
        """Pooled rows (N, D) of the bags whose ids lie end to end."""
        offsets_N = lengths_N.long().cumsum(0) - lengths_N
        return _Lookup.apply(self._anchor, self, ids_L, offsets_N, lengths_N)

    @torch.no_grad()
    def update(self, ids_L: Tensor, grad_LD: Tensor) -> None:
        """One Adam step with the gradients of the looked-up rows."""
        options = self.spec.optimizer
        self.steps += 1
        if options["rows"] == "all":
            grad_RD = torch.zeros_like(self.weight_RD).index_add_(0, ids_L, grad_LD)
            if options["l2"]:
                grad_RD.add_(self.weight_RD, alpha=options["l2"])
            self._step(self.weight_RD, self.exp_avg_RD, self.exp_avg_sq_RD, grad_RD)
            return
        rows_U, inverse_L = torch.unique(ids_L, return_inverse=True)
        grad_UD = grad_LD.new_zeros(len(rows_U), grad_LD.shape[1]).index_add_(0, inverse_L, grad_LD)
        weight_UD, first_UD, second_UD = (
            state_RD[rows_U] for state_RD in (self.weight_RD, self.exp_avg_RD, self.exp_avg_sq_RD)
        )
        self._step(weight_UD, first_UD, second_UD, grad_UD)
        self.weight_RD[rows_U], self.exp_avg_RD[rows_U], self.exp_avg_sq_RD[rows_U] = weight_UD, first_UD, second_UD

    def _step(self, weight_UD: Tensor, first_UD: Tensor, second_UD: Tensor, grad_UD: Tensor) -> None:
        """Adam's step on some rows, in place."""
        options = self.spec.optimizer
        (beta1, beta2), step = options["betas"], int(self.steps)
        if options["weight_decay"]:
            weight_UD.mul_(1 - self.lr * options["weight_decay"])
        first_UD.lerp_(grad_UD, 1 - beta1)
        second_UD.mul_(beta2).addcmul_(grad_UD, grad_UD, value=1 - beta2)
        denominator_UD = (second_UD / (1 - beta2**step)).sqrt_().add_(options["eps"])
        weight_UD.addcdiv_(first_UD, denominator_UD, value=-self.lr / (1 - beta1**step))


def is_own_adam(spec: TableSpec, device: torch.device) -> bool:
    """Whether a table is a :class:`RowAdamTable` on this device, as FBGEMM cannot do what its optimizer says."""
    optimizer = spec.optimizer
    return optimizer["name"] == "adam" and (device.type == "cpu" or optimizer["rows"] == "all")


class _Lookup(torch.autograd.Function):
    """embedding_bag whose backward updates the table; the anchor makes autograd call it."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - autograd's own signature is *args
        ctx: Any, anchor: Tensor, table: RowAdamTable, ids_L: Tensor, offsets_N: Tensor, lengths_N: Tensor
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
