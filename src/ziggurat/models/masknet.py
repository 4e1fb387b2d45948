"""MaskNet: blocks masked by the row, in series or in parallel.

Shape legend: B rows, F fields, D embedding dim, T tasks, N numbers of a flattened row.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.interactions.field_blocks.mask_block import MaskBlock
from ziggurat.interactions.linear import Linear
from ziggurat.interactions.mlp import MLP
from ziggurat.models.growth import repeated
from ziggurat.models.model import Model, ModelDims, ModelSettings, flatten_inputs


class MaskNet(Model):
    """Serial: x → block₁ → block₂ → … → linear. Parallel: all blocks read LN(x), an MLP reads their concatenation.

    Every block computes its mask from the row x itself. The first block (parallel: every block) reads the embeddings,
    each normalised on its own.

    Source: Wang, She and Zhang, "MaskNet", arXiv 2102.07619, section 4.3. Dense features join the row un-normalised.
    """

    class Config(ModelSettings):
        """The blocks and how they are connected."""

        depths: ClassVar[tuple[int, ...]] = (1, 2, 4)
        widening: ClassVar[float] = 2**0.5

        name: Literal["masknet"] = "masknet"

        structure: Literal["serial", "parallel"] = "parallel"
        """Whether a block reads the output of the block before it (serial) or the row (parallel)."""

        blocks: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (64, 64, 64)
        """Output width of each block."""

        aggregation: Annotated[float, Field(gt=0)] = 2.0
        """Width of a mask's hidden layer, as a multiple of the width that it masks."""

        deep: MLP.Config = MLP.Config()
        """Parallel only: hidden layers over the blocks' outputs; one linear layer to the logits follows."""

        def deeper(self, times: int) -> MaskNet.Config:
            return self.model_copy(update={"blocks": repeated(self.blocks, times)})

        def build(self, dims: ModelDims) -> MaskNet:
            return MaskNet(self, dims)

    def __init__(self, config: MaskNet.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.serial = config.structure == "serial"
        self.norm = nn.LayerNorm(dims.dim)
        inputs = [dims.flat, *config.blocks[:-1]] if self.serial else [dims.flat] * len(config.blocks)
        self.blocks = nn.ModuleList(
            MaskBlock(width, dims.flat, outputs, config.aggregation)
            for width, outputs in zip(inputs, config.blocks, strict=True)
        )
        last = config.blocks[-1] if self.serial else sum(config.blocks)
        self.top = Linear(last, dims.tasks) if self.serial else MLP(last, config.deep, dims.tasks)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        row_BN = flatten_inputs(dense_BF, emb_BFD)
        normed_BN = flatten_inputs(dense_BF, self.norm(emb_BFD))
        if not self.serial:
            return self.top(torch.cat([block(normed_BN, row_BN) for block in self.blocks], dim=1))
        state_BI = normed_BN
        for block in self.blocks:
            state_BI = block(state_BI, row_BN)
        return self.top(state_BI)
