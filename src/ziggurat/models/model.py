"""The contract of models and of their configs.

Shape legend: B rows, F fields (dense features for ``dense_BF``, looked-up features for ``emb_BFD``), D embedding dim,
T tasks (labels), N numbers of a flattened row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError
from ziggurat.core.parts import PartConfig
from ziggurat.interactions.block import Block, Origin
from ziggurat.interactions.counted_flops import FlopsUnknown, counted_flops
from ziggurat.interactions.numeric_embedding import NumericEmbedding
from ziggurat.models.growth import wider


@dataclass(frozen=True, slots=True)
class ModelDims:
    """The sizes of a model's inputs and outputs.

    Attributes:
        dense: number of dense features, 0 for none.
        features: F, number of looked-up features, 0 for none.
        dim: D, floats per embedding, as returned by :meth:`ModelSettings.embedding_dim` of the model's config.
        tasks: T, logits per row, at least 1.
    """

    dense: int
    features: int
    dim: int
    tasks: int = 1

    @property
    def flat(self) -> int:
        """N, the width of a flattened row: the dense features, then the embeddings."""
        return self.dense + self.features * self.dim

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Name of an input of a model's ``forward`` -> its shape without rows."""
        return {"dense_BF": (self.dense,), "emb_BFD": (self.features, self.dim)}


class ModelSettings(PartConfig):
    """The base of every model's config."""

    depths: ClassVar[tuple[int, ...]] = (1, 2)
    """Multiples of the number of layers that a scaling sweep goes through before it grows the model wider."""
    widening: ClassVar[float] = 2.0
    """Factor by which a scaling sweep widens the model from one size to the next, once it is at its deepest."""

    @abstractmethod
    def build(self, dims: ModelDims) -> Model:
        """Returns the model, with fresh weights drawn from torch's global generator.

        Raises:
            ConfigError: the model cannot work with these sizes; the message names sizes or models that can.
        """

    def build_checked(self, dims: ModelDims) -> Model:
        """Returns :meth:`build`'s model; one from outside the package is checked, and knows its origin.

        Raises:
            ConfigError: the model cannot work with these sizes, or ``build`` fails or returns something else.
        """
        model = self.checked_part(lambda: self.build(dims), Model)
        if self.reference is not None:
            model.origin = Origin(self.title, dims.inputs, (dims.tasks,), "(rows, tasks)")
        return model

    def embedding_dim(self, requested: int, tasks: int = 1) -> int:
        """Returns the embedding dim that this model needs, given the one that the experiment requests."""
        del tasks
        return requested

    def deeper(self, times: int) -> Self:
        """Returns the same model with ``times`` as many layers; this one if its number of layers cannot be set."""
        del times
        return self

    def growing_sizes(self, count: int) -> list[Self]:
        """Returns ``count`` models, beginning with this one, each with more FLOPs than the last: deeper, then wider.

        A smaller ``count`` returns a prefix of the same list. The list is empty if the model has nothing to widen.

        Source: Zhang et al., "Wukong", arXiv 2403.02545, which scales the layers first and then all widths
        together.
        """
        if wider(self, self.widening) == self:
            return []
        steps = [self]
        steps += [found for times in self.depths[1:] if (found := self.deeper(times)) != self]
        deepest = len(steps)
        steps += [wider(steps[-1], self.widening**step) for step in range(1, count - deepest + 1)]
        return steps[:count]


class Model(nn.Module, ABC):
    """The base class of models: ``forward(dense_BF, emb_BFD) -> logits_BT``.

    Initial weights come from torch's global generator alone. Logits have at least float32 precision, also under
    autocast, so the loss is computed in at least float32.

    Args:
        dims: the sizes.

    Attributes:
        origin: for a model from outside the package, where it comes from.

    Raises:
        ConfigError: there are neither dense nor looked-up features.
    """

    origin: Origin | None = None

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        assert dims.tasks >= 1, dims
        if dims.dense == 0 and dims.features == 0:
            raise ConfigError("the experiment has no features", "declare at least one under `features`")
        self.dims = dims

    def forward(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        """Returns the logits (B, T).

        Args:
            dense_BF: numeric features, (B, 0) when there are none.
            emb_BFD: pooled embeddings in schema order, (B, 0, D) when there are none.
        """
        logits_BT = self.logits(dense_BF, emb_BFD)
        return logits_BT.to(torch.promote_types(logits_BT.dtype, torch.float32))

    @abstractmethod
    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        """Returns the logits (B, T) in whatever dtype autocast leaves them; :meth:`forward` converts them."""

    def flops(self) -> int:
        """Returns the forward FLOPs per example, by the convention of :class:`~ziggurat.interactions.block.Block`.

        Those of a model of this package are summed over :meth:`parts`. Another model may be made of any modules: its
        matrix products are counted while rows pass through it, and the element-wise products of its blocks added.

        Raises:
            FlopsUnknown: they are neither defined nor can be counted, or no product is found to count.
        """
        if not self.counts_flops:
            return sum(block.flops() for block in self.parts())
        origin = self.origin or Origin(type(self).__qualname__, self.dims.inputs, (self.dims.tasks,), "")
        found = counted_flops(self, origin.example) + sum(block.elementwise_flops() for block in self.parts())
        if not found:
            raise FlopsUnknown(
                f"{origin.title} defines no flops(), and has no matrix product that torch counts",
                "define flops(): the FLOPs of one row, forward",
            )
        return found

    @property
    def counts_flops(self) -> bool:
        """Whether the FLOPs of this model are counted, because it comes from outside and does not define them."""
        return type(self).flops is Model.flops and not type(self).__module__.startswith(f"{__package__}.")

    def parts(self) -> list[Block]:
        """Returns the model's blocks: those that are its attributes, directly or in a ``ModuleList``."""
        children = [
            part for child in self.children() for part in (child if isinstance(child, nn.ModuleList) else [child])
        ]
        return [part for part in children if isinstance(part, Block)]

    def named_parts(self) -> list[tuple[str, Block]]:
        """Returns the blocks that are the model's attributes, by name, as a report lists them."""
        return [(name, block) for name, block in self.named_children() if isinstance(block, Block)]

    def parameter_count(self) -> int:
        """Returns the number of dense parameters; embedding tables do not belong to the model."""
        return sum(parameter.numel() for parameter in self.parameters())


def flatten_inputs(dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
    """Returns the flattened rows (B, N): the dense features, then the embeddings, as in :attr:`ModelDims.flat`.

    Without dense features these are the embeddings themselves, not a copy.
    """
    return torch.cat([dense_BF, emb_BFD.flatten(1)], dim=1) if dense_BF.shape[1] else emb_BFD.flatten(1)


def read_by_products(flat_BN: Tensor) -> Tensor:
    """Returns numbers that several matrix products read, in the dtype in which these compute.

    Autocast would make a copy for each product, in the backward pass too.
    """
    kind = flat_BN.device.type
    return flat_BN.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else flat_BN


def numeric_fields(dims: ModelDims) -> NumericEmbedding | None:
    """Returns a block that makes each dense feature a field of its own, x_f·v_f; None without dense features."""
    return NumericEmbedding(dims.dense, dims.dim) if dims.dense else None


def field_vectors(numeric: Block | None, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
    """Returns all fields (B, F, D): the dense features, made into fields by ``numeric``, then the embeddings."""
    return emb_BFD if numeric is None else torch.cat([numeric(dense_BF), emb_BFD], dim=1)
