"""Dropout, whose random numbers cost a third of torch's on a CPU.

torch draws 64 bits for each number that may be dropped. Here 16 bits decide, so that a draw serves four numbers; a
rate is a multiple of 2⁻¹⁶. Both read torch's global generator, whose state checkpoints hold.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def dropout(inputs: Tensor, rate: float, training: bool) -> Tensor:
    """Sets numbers to zero with probability ``rate`` in training, and scales the others so that the mean stays.

    Args:
        inputs: the numbers.
        rate: at least 0, below 1.
        training: whether to drop any; otherwise ``inputs`` are returned as they are.
    """
    if not training or not rate:
        return inputs
    if inputs.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(inputs, rate)
    dropped = min(round(rate * 2**16), 2**16 - 1)
    draws = torch.empty(-(-inputs.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: inputs.numel()].view(inputs.shape) >= dropped - 2**15
    return inputs * kept.to(inputs.dtype).mul_(1 / (1 - dropped / 2**16))


class Dropout(nn.Module):
    """:func:`dropout` as a module.

    Args:
        rate: at least 0, below 1.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, inputs: Tensor) -> Tensor:
        return dropout(inputs, self.rate, self.training)
