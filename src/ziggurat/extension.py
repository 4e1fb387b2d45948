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
from ziggurat.search.architecture.space.cost import PartCost
from ziggurat.search.architecture.space.decision import Decision, Masks, Probabilities
from ziggurat.search.architecture.space.search_space import SearchSpace, SpaceSettings, SuperModule
from ziggurat.search.architecture.space.super_mlp import MLPChoices, SuperMLP, output_cost

__all__ = [
    "Block",
    "BlockSettings",
    "DatasetStatistics",
    "Decision",
    "DenseOptimizerSettings",
    "Encoder",
    "EncoderSettings",
    "HeadSettings",
    "Ids",
    "MLPChoices",
    "Masks",
    "Model",
    "ModelDims",
    "ModelSettings",
    "ParameterGroup",
    "PartCost",
    "Placement",
    "Plan",
    "Planner",
    "PlannerSettings",
    "Probabilities",
    "Problem",
    "SearchSpace",
    "SequenceEncoder",
    "SequenceEncoderSettings",
    "Shard",
    "ShardCost",
    "Sharding",
    "SpaceSettings",
    "Span",
    "State",
    "SuperMLP",
    "SuperModule",
    "TableConstraint",
    "TableSpec",
    "TableStatistics",
    "TimeParts",
    "Topology",
    "ValueCounts",
    "output_cost",
]
