"""The list of encoder configs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ziggurat.core.parts import Importable
from ziggurat.features.encoders.compressed.frequency import DoubleHashConfig, FrequencyBandConfig, FrequencyHashConfig
from ziggurat.features.encoders.compressed.learned_hash import ClusteredCodesConfig, LearnedHashConfig, LshConfig
from ziggurat.features.encoders.compressed.quotient_remainder import QuotientRemainderConfig
from ziggurat.features.encoders.encoder import EncoderSettings
from ziggurat.features.encoders.hashed import HashConfig
from ziggurat.features.encoders.identity import IdentityConfig
from ziggurat.features.encoders.vocabulary import VocabularyConfig

EncoderConfig = Annotated[
    Annotated[
        VocabularyConfig
        | HashConfig
        | IdentityConfig
        | FrequencyHashConfig
        | FrequencyBandConfig
        | DoubleHashConfig
        | QuotientRemainderConfig
        | LearnedHashConfig
        | LshConfig
        | ClusteredCodesConfig,
        Field(discriminator="name"),
    ],
    Importable(EncoderSettings, "encoder"),
]
"""The config of any encoder: chosen by ``name``, or by ``import`` for one from outside the package."""
