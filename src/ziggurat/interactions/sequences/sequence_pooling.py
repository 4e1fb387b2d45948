"""The union of all sequence encoder configs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ziggurat.core.parts import Importable
from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoderSettings
from ziggurat.interactions.sequences.sequence_transformer import SequenceTransformer
from ziggurat.interactions.sequences.target_attention import TargetAttention

SequenceEncoderConfig = Annotated[
    Annotated[
        AttentionPooling.Config | TargetAttention.Config | SequenceTransformer.Config,
        Field(discriminator="name"),
    ],
    Importable(SequenceEncoderSettings, "sequence encoder"),
]
"""The config of any sequence encoder, chosen by ``name``, or by ``import`` for one from outside the package."""
