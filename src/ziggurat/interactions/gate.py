"""A gate that scales each number by a factor computed from a context.

Shape legend: B rows, N numbers, C context numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ziggurat.interactions.block import Block
from ziggurat.interactions.mlp import MLP


class Gate(Block):
    """(B, N), (B, C) → (B, N): x ⊙ 2σ(MLP(c)); where the MLP's output is 0, x passes unchanged.

    Source: Mao et al., "FinalMLP", arXiv 2304.00902, eq. 5 and 6 (stream-specific feature selection).

    Args:
        inputs: N.
        context: C.
        config: hidden layers of the MLP.
    """

    def __init__(self, inputs: int, context: int, config: MLP.Config) -> None:
        super().__init__()
        self.out_features = inputs
        self.mlp = MLP(context, config, inputs)

    def forward(self, inputs_BN: Tensor, context_BC: Tensor | None = None) -> Tensor:
        """Returns ``inputs_BN`` gated by ``context_BC``, or by themselves without a context."""
        return inputs_BN * (2 * torch.sigmoid(self.mlp(inputs_BN if context_BC is None else context_BC)))

    def matmul_flops(self) -> int:
        return self.mlp.matmul_flops()

    def elementwise_flops(self) -> int:
        """Counts the doubling and the product, and the sums of hidden layers that add their input."""
        return 2 * self.out_features + self.mlp.elementwise_flops()
