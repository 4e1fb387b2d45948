"""Every block that a DHEN layer may be made of, by the name of its config: the one place that lists them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from ziggurat.interactions.block import Block
from ziggurat.interactions.field_blocks.convolution import Convolution
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.flat_mlp import FlatMLP
from ziggurat.interactions.field_blocks.gram_cross import GramCross
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.field_blocks.mask_block import MaskedFields
from ziggurat.interactions.field_blocks.pairs_block import PairsBlock
from ziggurat.interactions.field_blocks.self_attention import SelfAttention

ComposableBlock = Annotated[
    FactorizationMachineBlock.Config
    | LinearCompression.Config
    | PairsBlock.Config
    | GramCross.Config
    | SelfAttention.Config
    | Convolution.Config
    | MaskedFields.Config
    | FlatMLP.Config,
    Field(discriminator="name"),
]
"""The config of a block (B, F, D) → (B, F', D), told apart by ``name``."""

_BLOCKS: dict[str, Callable[[Any, int, int], Block]] = {
    "factorization_machine": FactorizationMachineBlock,
    "linear": lambda config, features, dim: LinearCompression(features, dim, config.outputs),
    "dot_product": PairsBlock,
    "cross": GramCross,
    "self_attention": SelfAttention,
    "convolution": Convolution,
    "mask": MaskedFields,
    "mlp": FlatMLP,
}


def build_block(config: ComposableBlock, features: int, dim: int) -> Block:
    """The block that ``config`` describes, for F = ``features`` fields of ``dim`` floats.

    Raises:
        ConfigError: the block cannot work with these sizes.
    """
    return _BLOCKS[config.name](config, features, dim)
