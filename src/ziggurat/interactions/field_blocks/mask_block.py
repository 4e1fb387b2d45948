"""MaskNet's block: a layer whose inputs are multiplied element-wise by a mask computed from the whole row.

Shape legend: B rows, F fields, F' fields out, D embedding dim, N = F·D numbers of a row, I inputs, n outputs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from ziggurat.interactions.block import Block, BlockSettings


class MaskBlock(Block):
    """(B, I), (B, N) → (B, n): ReLU(LN(W (x ⊙ mask))), mask = W₂ ReLU(W₁ v + b₁) + b₂ from the row v.

    Source: Wang, She and Zhang, "MaskNet", arXiv 2102.07619, eq. 5 to 9. The norm of the embeddings, LN_EMB, is part of
    the model, because all its blocks share it.

    Args:
        inputs: I.
        row: N.
        outputs: n.
        aggregation: width of the mask's hidden layer, as a multiple of I.
    """

    def __init__(self, inputs: int, row: int, outputs: int, aggregation: float) -> None:
        super().__init__()
        self.out_features = outputs
        hidden = max(1, int(inputs * aggregation))
        self.mask = nn.Sequential(nn.Linear(row, hidden), nn.ReLU(), nn.Linear(hidden, inputs))
        self.hidden = nn.Linear(inputs, outputs, bias=False)
        self.norm = nn.LayerNorm(outputs)
        self._multiply_adds = row * hidden + hidden * inputs + inputs * outputs
        self._inputs = inputs

    def forward(self, inputs_BI: Tensor, row_BN: Tensor | None = None) -> Tensor:
        """Returns the layer's output for ``inputs_BI`` masked by ``row_BN``, or by themselves without a row."""
        masked_BI = inputs_BI * self.mask(inputs_BI if row_BN is None else row_BN)
        return self.norm(self.hidden(masked_BI)).relu()

    def matmul_flops(self) -> int:
        return 2 * self._multiply_adds

    def elementwise_flops(self) -> int:
        """Counts the product with the mask."""
        return self._inputs


class MaskedFields(Block):
    """(B, F, D) → (B, F', D): normalises each field, masks the row by itself and reshapes the result to F'×D.

    Source: Wang, She and Zhang, "MaskNet", arXiv 2102.07619, eq. 8. The whole row masks itself.

    Args:
        config: the settings, listed below.
        features: F.
        dim: D.
    """

    class Config(BlockSettings):
        """A masked layer over the row."""

        name: Literal["mask"] = "mask"

        outputs: Annotated[int, Field(ge=1)] = 8
        """Number of fields that the block emits."""

        aggregation: Annotated[float, Field(gt=0)] = 2.0
        """Width of the mask's hidden layer, as a multiple of the width of a row."""

        def build(self, features: int, dim: int) -> MaskedFields:
            return MaskedFields(self, features, dim)

    def __init__(self, config: MaskedFields.Config, features: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.out_features = config.outputs
        self.norm = nn.LayerNorm(dim)
        self.block = MaskBlock(features * dim, features * dim, config.outputs * dim, config.aggregation)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        masked_BN = self.block(self.norm(emb_BFD).flatten(1), emb_BFD.flatten(1))
        return masked_BN.unflatten(1, (self.out_features, self.dim))

    def matmul_flops(self) -> int:
        return self.block.matmul_flops()

    def elementwise_flops(self) -> int:
        return self.block.elementwise_flops()
