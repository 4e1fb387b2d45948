"""The first-order term: one weight per input number.

Shape legend: B rows, F fields, D embedding dim, N = F·D inputs, n outputs.
"""

from __future__ import annotations

from torch import Tensor, nn

from ziggurat.interactions.block import Block


class Linear(Block):
    """A head: y = W vec(X) + b; X is (B, F, D), which it flattens, or already (B, N).

    Over embeddings it is the first-order term of a factorization machine *read from* the embedding: the weight of id i
    is ⟨w_f, e_i⟩ instead of a free scalar.

    Args:
        inputs: N, at least 1.
        outputs: n.
        bias: whether to add b.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        assert inputs >= 1, inputs
        self.out_features = outputs
        self.layer = nn.Linear(inputs, outputs, bias=bias)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.flatten(1))

    def matmul_flops(self) -> int:
        return 2 * self.layer.in_features * self.layer.out_features
