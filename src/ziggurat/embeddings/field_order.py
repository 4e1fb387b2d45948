"""Vectors in another order: gathered on the way back too, where autograd would fill zeros and scatter into them.

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
        places: which field comes first, second, …
        device: of the fields.
    """

    def __init__(self, places: Sequence[int], device: torch.device) -> None:
        self.there_F = torch.tensor(places, device=device)
        self.back_F = self.there_F.argsort()

    def __call__(self, emb_BFD: Tensor) -> Tensor:
        return cast("Any", _Gathered.apply)(emb_BFD, self.there_F, self.back_F)


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, emb_BFD: Tensor, there_F: Tensor, back_F: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        ctx.save_for_backward(back_F)
        return emb_BFD.index_select(1, there_F)

    @staticmethod
    def backward(ctx: Any, grad_BFD: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (back_F,) = ctx.saved_tensors
        return grad_BFD.index_select(1, back_F), None, None
