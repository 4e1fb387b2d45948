"""One layer of DHEN or Wukong: parallel blocks, a shortcut around them, and a norm.

Shape legend: B rows, F fields in, F' fields out, D embedding dim, M blocks.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.core.config import Config
from ziggurat.core.errors import InvalidSection, within
from ziggurat.interactions.block import Block
from ziggurat.interactions.field_blocks.composable import ComposableBlock
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression


class Ensemble(Block):
    """(B, F, D) → (B, F', D): Y = LN(combine(block₁(X), …, block_M(X)) + shortcut(X)), the norm over D.

    - concat: the blocks' fields concatenated, F' = Σ F'_m;
    - sum: the blocks' outputs, of F' fields each, added;
    - weighted: Σ softmax(a)_m block_m(X) with M learned scalars a, which start equal.

    The shortcut is the identity if F' = F, else a mixture of fields (:class:`LinearCompression`).

    Source: Zhang et al., "DHEN", arXiv 2203.11014, eq. 1 and section 3.2; with FMB and LCB concatenated it is a layer
    of Zhang et al., "Wukong", arXiv 2403.02545, eq. 4. The softmax is our addition; it keeps the sum's scale.

    Args:
        config: the settings, listed below.
        features: F.
        dim: D.

    Raises:
        InvalidSection: a block cannot work with these sizes, or blocks that are to be added emit different numbers of
            fields.
    """

    class Config(Config):
        """Parallel blocks and how their outputs are combined."""

        blocks: Annotated[tuple[ComposableBlock, ...], Field(min_length=1)]
        """The blocks, each with its own settings."""

        combine: Literal["concat", "sum", "weighted"] = "concat"
        """How the blocks' outputs are combined."""

        shortcut: bool = True
        """Whether the layer's input is added to the output."""

    def __init__(self, config: Ensemble.Config, features: int, dim: int) -> None:
        super().__init__()
        self.combine = config.combine
        self.dim = dim
        blocks: list[Block] = []
        for number, block in enumerate(config.blocks):
            with within(f"blocks.{number}"):
                blocks.append(block.build_checked(features, dim))
        widths = [block.out_features for block in blocks]
        if config.combine != "concat" and len(set(widths)) > 1:
            listed = ", ".join(f"{block.title}: {width}" for block, width in zip(config.blocks, widths, strict=True))
            raise InvalidSection(
                "blocks",
                f"blocks that are combined by {config.combine} must emit equally many fields, received {listed}",
                "give them the same `outputs`, or combine: concat",
            )
        self.blocks = nn.ModuleList(blocks)
        self.out_features = sum(widths) if config.combine == "concat" else widths[0]
        self.weights_M = nn.Parameter(torch.zeros(len(blocks))) if config.combine == "weighted" else None
        self.shortcut: nn.Module | None = None
        if config.shortcut:
            same = self.out_features == features
            self.shortcut = nn.Identity() if same else LinearCompression(features, dim, self.out_features)
        self.norm = nn.LayerNorm(dim)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        state_BFD = self._combined([block(emb_BFD) for block in self.blocks])
        return self.norm(state_BFD if self.shortcut is None else state_BFD + self.shortcut(emb_BFD))

    def _combined(self, outputs: list[Tensor]) -> Tensor:
        if self.combine == "concat":
            return torch.cat(outputs, dim=1)
        if self.weights_M is None:
            return torch.stack(outputs).sum(0)
        shares_M = torch.softmax(self.weights_M, dim=0)
        return (torch.stack(outputs, dim=-1) * shares_M).sum(-1)

    def matmul_flops(self) -> int:
        return sum(block.matmul_flops() for block in self._parts())

    def elementwise_flops(self) -> int:
        """Counts the blocks' own, the additions and weights that combine them, and the shortcut's sum."""
        numbers, count = self.out_features * self.dim, len(self.blocks)
        joined = {"concat": 0, "sum": count - 1, "weighted": 2 * count - 1}[self.combine] * numbers
        added = 0 if self.shortcut is None else numbers
        return joined + added + sum(block.elementwise_flops() for block in self._parts())

    def _parts(self) -> list[Block]:
        return [part for part in (*self.blocks, self.shortcut) if isinstance(part, Block)]
