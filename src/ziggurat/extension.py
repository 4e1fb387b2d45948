"""What parts from outside the package are made of; docs/extending.md shows one of each kind.

It has base classes, and the types of what their methods get and return; ``ziggurat.extension_testing`` checks whether a
part keeps its promises. A config names such a part by ``import: MODULE:CLASS`` in place of ``name``;
the class has a nested ``Config``, derived from the kind's base config, whose ``build`` returns the part.
"""

from __future__ import annotations

from ziggurat.core.plan import Placement, Plan, Shard, Sharding, Span
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings, Ids, State, ValueCounts
from ziggurat.interactions.block import Block, BlockSettings
from ziggurat.interactions.heads.head import HeadSettings
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoder, SequenceEncoderSettings
from ziggurat.models.model import Model, ModelDims, ModelSettings
from ziggurat.optim.dense_optimizer import DenseOptimizerSettings, ParameterGroup
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.cost import ShardCost
from ziggurat.planning.problem import Problem, TableConstraint

__all__ = [
    "Block",
    "BlockSettings",
    "DatasetStatistics",
    "DenseOptimizerSettings",
    "Encoder",
    "EncoderSettings",
    "HeadSettings",
    "Ids",
    "Model",
    "ModelDims",
    "ModelSettings",
    "ParameterGroup",
    "Placement",
    "Plan",
    "Planner",
    "PlannerSettings",
    "Problem",
    "SequenceEncoder",
    "SequenceEncoderSettings",
    "Shard",
    "ShardCost",
    "Sharding",
    "Span",
    "State",
    "TableConstraint",
    "TableSpec",
    "TableStatistics",
    "TimeParts",
    "Topology",
    "ValueCounts",
]
