"""The union of the configs of all blocks that a DHEN layer can combine."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ziggurat.core.parts import Importable
from ziggurat.interactions.block import BlockSettings
from ziggurat.interactions.field_blocks.convolution import Convolution
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.flat_mlp import FlatMLP
from ziggurat.interactions.field_blocks.gram_cross import GramCross
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.field_blocks.mask_block import MaskedFields
from ziggurat.interactions.field_blocks.pairs_block import PairsBlock
from ziggurat.interactions.field_blocks.self_attention import SelfAttention

ComposableBlock = Annotated[
    Annotated[
        FactorizationMachineBlock.Config
        | LinearCompression.Config
        | PairsBlock.Config
        | GramCross.Config
        | SelfAttention.Config
        | Convolution.Config
        | MaskedFields.Config
        | FlatMLP.Config,
        Field(discriminator="name"),
    ],
    Importable(BlockSettings, "block"),
]
"""The config of a block (B, F, D) → (B, F', D), selected by ``name``, or by ``import`` for one from outside the
package."""
