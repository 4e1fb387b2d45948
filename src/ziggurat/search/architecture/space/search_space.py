"""The protocol of search spaces: decisions, a super-module that holds all choices, and their expected cost.

A space is one class. It has a nested ``Config``, derived from :class:`SpaceSettings`, whose ``build`` returns it; a
space from outside the package is named by ``import: MODULE:CLASS``. Sizes of tables are decided for every space alike
(:mod:`~ziggurat.search.architecture.space.table_choices`).

Shape legend: B rows, F fields (dense features for ``dense_BF``, looked-up features for ``emb_BFD``), D embedding dim,
T tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from ziggurat.core.parts import PartConfig
from ziggurat.models.model import ModelDims, ModelSettings
from ziggurat.search.architecture.space.cost import PartCost
from ziggurat.search.architecture.space.decision import Decision, Masks, Probabilities


class SuperModule(nn.Module, ABC):
    """All choices of a space, as one module with the weights of all of them."""

    @abstractmethod
    def logits(self, dense_BF: Tensor, emb_BFD: Tensor, masks: Masks) -> Tensor:
        """Returns the logits (B, T): what the model of an architecture computes, mixed as the masks say.

        Under hard masks (:func:`~ziggurat.search.architecture.space.decision.hard_masks`) it is exactly what that model
        would compute with these weights.

        Args:
            dense_BF: numeric features, (B, 0) when there are none.
            emb_BFD: the fields, (B, 0, D) when there are none.
            masks: a mask for each decision.
        """


class SearchSpace(ABC):
    """The architectures that a search may find.

    Args:
        dims: the sizes of the model's inputs and outputs.
    """

    def __init__(self, dims: ModelDims) -> None:
        self.dims = dims

    @property
    @abstractmethod
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions. No choice of one makes another impossible."""

    @abstractmethod
    def super_module(self) -> SuperModule:
        """Returns the super-module, with fresh weights from torch's global generator.

        With one choice for each decision it makes the weights that the model makes, in the same order.
        """

    @abstractmethod
    def expected_cost(self, probabilities: Probabilities, cost: PartCost) -> Tensor:
        """Returns the mean cost per row of architectures that are drawn with these probabilities.

        Args:
            probabilities: of each decision's choices; the result is differentiable in them.
            cost: the cost of a part.
        """

    @abstractmethod
    def model(self, values: dict[str, Any]) -> ModelSettings:
        """Returns the config of the model of an architecture.

        Args:
            values: name of a decision -> the value that was chosen.
        """


class SpaceSettings(PartConfig):
    """The base config of search spaces."""

    @abstractmethod
    def build(self, dims: ModelDims) -> SearchSpace:
        """Returns the space for these sizes.

        Raises:
            ConfigError: a choice cannot work with these sizes.
        """

    def build_checked(self, dims: ModelDims) -> SearchSpace:
        """Returns :meth:`build`'s space; one from outside the package is checked to be one.

        Raises:
            ConfigError: as :meth:`build`; or it fails or returns something else.
        """
        return self.checked_part(lambda: self.build(dims), SearchSpace)
