"""Every way to pool a sequence that reads its positions one by one, by the name of its config: the one list of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoder
from ziggurat.interactions.sequences.sequence_transformer import SequenceTransformer
from ziggurat.interactions.sequences.target_attention import TargetAttention

SequencePooling = AttentionPooling.Config | TargetAttention.Config | SequenceTransformer.Config
"""The config of a sequence encoder, told apart by ``name``."""

_ENCODERS: dict[str, Callable[[Any, int, int], SequenceEncoder]] = {
    "attention": AttentionPooling,
    "target_attention": TargetAttention,
    "transformer": SequenceTransformer,
}


def build_sequence_encoder(config: SequencePooling, positions: int, dim: int) -> SequenceEncoder:
    """The encoder that ``config`` describes, for S = ``positions`` vectors of ``dim`` floats.

    Raises:
        ConfigError: it cannot work with these sizes.
    """
    return _ENCODERS[config.name](config, positions, dim)


def target_of(config: SequencePooling) -> str | None:
    """The feature whose vector the encoder reads beside the sequence."""
    return None if isinstance(config, AttentionPooling.Config) else config.target
