"""The super-net as a model: mixtures of tables, then the super-module of the space.

Shape legend: B rows, E fields of the super-net, D embedding dim, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import PrivateAttr
from torch import Tensor

from ziggurat.core.batch import Batch
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.lookup import EmbeddingLookup, StartedLookup
from ziggurat.models.model import Model, ModelDims, ModelSettings
from ziggurat.parallel.world import World
from ziggurat.search.architecture.space.decision import Masks
from ziggurat.search.architecture.space.whole_space import WholeSpace
from ziggurat.search.architecture.supernet.hashed_features import HashedFeatures
from ziggurat.search.architecture.supernet.table_mixture import TableMixture
from ziggurat.training.recommender import DensePart, Recommender


class SuperNet(Model):
    """logits of all architectures of a space, mixed as :attr:`masks` say.

    The logits of architectures (θ) are no parameters of it: they belong to the optimizer of the architecture alone.

    Args:
        space: the space.
        extended: the layout of the super-net's own fields.
        dims: the sizes of its inputs.

    Attributes:
        masks: the masks of the next call.
    """

    def __init__(self, space: WholeSpace, extended: Layout, dims: ModelDims) -> None:
        super().__init__(dims)
        self.tables = TableMixture(space.tables, space.layout, extended)
        self.module = space.model.super_module()
        self.masks: Masks = {}
        self._ranks = World.current().size

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        found = self.module.logits(dense_BF, self.tables(emb_BFD, self.masks), self.masks)
        if self.training and self._ranks > 1:
            # Ranks wait for the gradients of all weights, also of those that the architecture does not use: zeros.
            found = found + 0.0 * torch.stack([each.sum() for each in self.parameters()]).sum()
        return found


class SuperNetSettings(ModelSettings):
    """The config of a super-net, which a search makes; it is in no file."""

    _make: Callable[[ModelDims], SuperNet] = PrivateAttr()

    @classmethod
    def of(cls, space: WholeSpace, extended: Layout) -> SuperNetSettings:
        """Returns the config of the super-net of a space."""
        settings = cls()
        settings._make = lambda dims: SuperNet(space, extended, dims)
        return settings

    def build(self, dims: ModelDims) -> SuperNet:
        return self._make(dims)


class SuperRecommender(Recommender):
    """A recommender whose model is a super-net; batches are those of the dataset.

    Args:
        lookup: the lookup of all tables, of all sizes.
        part: the dense part, with the super-net.
        called: as of :class:`~ziggurat.training.recommender.Recommender`.
        features: adds hashed features to a batch.
    """

    def __init__(
        self, lookup: EmbeddingLookup, part: DensePart, called: DensePart | None, features: HashedFeatures
    ) -> None:
        super().__init__(lookup, part, called)
        self.hashed = features

    @property
    def net(self) -> SuperNet:
        net = self.model
        assert isinstance(net, SuperNet)
        return net

    def forward(
        self,
        batch: Batch,
        started: StartedLookup | None = None,
        following: StartedLookup | None = None,
        *,
        trains_tables: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Returns what a recommender does; of the vectors, what the masks take of them."""
        columns_BC, emb_BED = super().forward(self.hashed(batch), started, following, trains_tables=trains_tables)
        return columns_BC, self.net.tables.used(emb_BED, self.net.masks)
