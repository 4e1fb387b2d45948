"""What every model promises, whatever it is made of.

Shape legend: B rows, F fields (dense features for ``dense_BF``, looked-up features for ``emb_BFD``), D embedding dim,
T tasks (labels), N numbers of a row laid flat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError
from ziggurat.core.parts import PartConfig
from ziggurat.interactions.block import Block
from ziggurat.interactions.numeric_embedding import NumericEmbedding
from ziggurat.models.growth import wider


@dataclass(frozen=True, slots=True)
class ModelDims:
    """The sizes of what a model is fed and asked for.

    Attributes:
        dense: number of dense features, 0 for none.
        features: F, number of looked-up features, 0 for none.
        dim: D, floats of every embedding, as :meth:`ModelSettings.embedding_dim` of the model's config wants it.
        tasks: T, logits per row, at least 1.
    """

    dense: int
    features: int
    dim: int
    tasks: int = 1

    @property
    def flat(self) -> int:
        """N, the numbers of a row laid flat: the dense features, then the embeddings."""
        return self.dense + self.features * self.dim


class ModelSettings(PartConfig):
    """The base of every model's config."""

    depths: ClassVar[tuple[int, ...]] = (1, 2)
    """Multiples of its layers through which a ladder grows a model, before it grows wider."""
    widening: ClassVar[float] = 2.0
    """How much wider each rung is than the one before, once a ladder's model is as deep as it gets."""

    @abstractmethod
    def build(self, dims: ModelDims) -> Model:
        """Returns the model, with fresh weights drawn from torch's global generator.

        Raises:
            ConfigError: the model cannot work with these sizes; the message names one that can.
        """

    def embedding_dim(self, requested: int, tasks: int = 1) -> int:
        """The embedding dim this model needs, given the one the experiment asks for."""
        del tasks
        return requested

    def deeper(self, times: int) -> Self:
        """The same model of ``times`` as many layers; itself where it has no layers to set."""
        del times
        return self

    def ladder(self, rungs: int) -> list[Self]:
        """``rungs`` models, from this one on, each of more FLOPs than the one before: first deeper, then wider.

        Fewer rungs are the beginning of more. Empty for a model that has nothing to widen.

        Source: Zhang et al., "Wukong", arXiv 2403.02545, which scales the layers first and then all widths
        together.
        """
        if wider(self, self.widening) == self:
            return []
        steps = [self]
        steps += [found for times in self.depths[1:] if (found := self.deeper(times)) != self]
        deepest = len(steps)
        steps += [wider(steps[-1], self.widening**step) for step in range(1, rungs - deepest + 1)]
        return steps[:rungs]


class Model(nn.Module, ABC):
    """``forward(dense_BF, emb_BFD) -> logits_BT``.

    Initial weights come from torch's global generator and from nothing else. Logits are float32 at least, also under
    autocast, so that the loss is.

    Args:
        dims: the sizes.

    Raises:
        ConfigError: there are neither dense nor looked-up features.
    """

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        assert dims.tasks >= 1, dims
        if dims.dense == 0 and dims.features == 0:
            raise ConfigError("the experiment has no features", "declare at least one under `features`")
        self.dims = dims

    def forward(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        """Logits (B, T).

        Args:
            dense_BF: numeric features, (B, 0) when there are none.
            emb_BFD: pooled embeddings in schema order, (B, 0, D) when there are none.
        """
        logits_BT = self.logits(dense_BF, emb_BFD)
        return logits_BT.to(torch.promote_types(logits_BT.dtype, torch.float32))

    @abstractmethod
    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        """What :meth:`forward` returns, in whatever dtype autocast leaves it."""

    def flops(self) -> int:
        """Forward FLOPs per example, under the convention of :class:`~ziggurat.interactions.block.Block`.

        The sum over :meth:`parts`.
        """
        return sum(block.flops() for block in self.parts())

    def parts(self) -> list[Block]:
        """The blocks that the model is made of: its attributes, alone or in a list."""
        children = [
            part for child in self.children() for part in (child if isinstance(child, nn.ModuleList) else [child])
        ]
        return [part for part in children if isinstance(part, Block)]

    def parameter_count(self) -> int:
        """Number of dense parameters; the embedding tables are not the model's."""
        return sum(parameter.numel() for parameter in self.parameters())


def lay_flat(dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
    """(B, N): the dense features, then the embeddings, as :attr:`ModelDims.flat` counts them."""
    return torch.cat([dense_BF, emb_BFD.flatten(1)], dim=1)


def one_by_one(dims: ModelDims) -> NumericEmbedding | None:
    """What makes each dense feature a field of its own, x_f·v_f; None where there are none."""
    return NumericEmbedding(dims.dense, dims.dim) if dims.dense else None


def field_vectors(numeric: Block | None, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
    """(B, F, D): the dense features as ``numeric`` makes fields of them, then the embeddings."""
    return emb_BFD if numeric is None else torch.cat([numeric(dense_BF), emb_BFD], dim=1)
