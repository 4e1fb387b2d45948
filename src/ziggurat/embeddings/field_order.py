"""A permutation of fields whose backward gathers too; autograd's own would fill zeros and scatter into them.

Shape legend: B rows, F fields, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function


class FieldOrder:
    """A permutation of fields.

    Args:
        order: the input field at each output position.
        device: the device of the fields.
    """

    def __init__(self, order: Sequence[int], device: torch.device) -> None:
        self.order_F = torch.tensor(order, device=device)
        self.inverse_F = self.order_F.argsort()

    def __call__(self, emb_BFD: Tensor) -> Tensor:
        return cast("Any", _Gathered.apply)(emb_BFD, self.order_F, self.inverse_F)


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, emb_BFD: Tensor, order_F: Tensor, inverse_F: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        ctx.save_for_backward(inverse_F)
        return emb_BFD.index_select(1, order_F)

    @staticmethod
    def backward(ctx: Any, grad_BFD: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (inverse_F,) = ctx.saved_tensors
        return grad_BFD.index_select(1, inverse_F), None, None
