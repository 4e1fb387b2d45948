"""The base classes of parts that code outside the package can provide; docs/extending.md shows one of each.

A config names such a part by ``import: MODULE:CLASS`` in place of ``name``. The class has a nested ``Config``, derived
from the kind's base config, whose ``build`` returns the part.
"""

from __future__ import annotations

from ziggurat.features.encoders.encoder import Encoder, EncoderSettings, Ids, State, ValueCounts
from ziggurat.interactions.block import Block, BlockSettings
from ziggurat.interactions.heads.head import HeadSettings
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoder, SequenceEncoderSettings
from ziggurat.models.model import Model, ModelDims, ModelSettings
from ziggurat.optim.dense_optimizer import DenseOptimizerSettings, ParameterGroup
from ziggurat.planning.contract import Planner, PlannerSettings

__all__ = [
    "Block",
    "BlockSettings",
    "DenseOptimizerSettings",
    "Encoder",
    "EncoderSettings",
    "HeadSettings",
    "Ids",
    "Model",
    "ModelDims",
    "ModelSettings",
    "ParameterGroup",
    "Planner",
    "PlannerSettings",
    "SequenceEncoder",
    "SequenceEncoderSettings",
    "State",
    "ValueCounts",
]
