"""Adam fused into backward for tables on the CPU, where FBGEMM has no such kernel.

Kingma & Ba 2015, algorithm 1, applied to touched rows only (the "lazy" form that FBGEMM's CUDA kernel has): the moments
of an untouched row stay as they are, and the bias correction counts steps of the table, not of the row. A row that
occurs several times in a batch gets the sum of its gradients, added in the order of occurrence, and one update. Weight
decay is decoupled, as on CUDA.

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
        """One Adam step on the distinct rows of ``ids_L`` with their summed gradients."""
        options = self.spec.optimizer
        beta1, beta2 = options["betas"]
        self.steps += 1
        step = int(self.steps)
        rows_U, inverse_L = torch.unique(ids_L, return_inverse=True)
        grad_UD = torch.zeros(len(rows_U), grad_LD.shape[1]).index_add_(0, inverse_L, grad_LD)
        weight_UD = self.weight_RD[rows_U]
        if options["weight_decay"]:
            weight_UD = weight_UD * (1 - self.lr * options["weight_decay"])
        first_UD = self.exp_avg_RD[rows_U].lerp_(grad_UD, 1 - beta1)
        second_UD = self.exp_avg_sq_RD[rows_U].mul_(beta2).addcmul_(grad_UD, grad_UD, value=1 - beta2)
        self.exp_avg_RD[rows_U] = first_UD
        self.exp_avg_sq_RD[rows_U] = second_UD
        denominator_UD = (second_UD / (1 - beta2**step)).sqrt_().add_(options["eps"])
        self.weight_RD[rows_U] = weight_UD.addcdiv_(first_UD, denominator_UD, value=-self.lr / (1 - beta1**step))


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
