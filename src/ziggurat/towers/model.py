"""A model with towers: each tower's module compresses its fields, and the model takes what they return.

Shape legend: B rows, F fields, N their width, O outputs of all towers, D their width, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError
from ziggurat.interactions.block import Block
from ziggurat.models.model import Model, ModelDims, ModelSettings
from ziggurat.towers.modules.module import TowerModule, TowerModuleSettings


class TowerModel(Model):
    """logits = model(dense, [module_1(X_1); …; module_T(X_T)]), with X_t the fields of tower t.

    The outputs are in the order of the towers. Where towers run on the hosts of their tables (``upstream``), the model
    receives these outputs instead of the fields.

    Attributes:
        upstream: whether the modules are called where rows are looked up, not here.
    """

    class Config(ModelSettings):
        """A model, and the modules before it; :class:`~ziggurat.training.experiment.Experiment` makes it."""

        base: ModelSettings
        """The config of the model."""

        module: TowerModuleSettings
        """The config of the modules."""

        fields: tuple[tuple[int, ...], ...]
        """The fields of each tower."""

        @property
        def title(self) -> str:
            return self.base.title

        def build(self, dims: ModelDims) -> TowerModel:
            return TowerModel(self, dims)

    def __init__(self, config: TowerModel.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        module, base = config.module, config.base
        width = module.out_dim(dims.dim)
        if base.embedding_dim(width, tasks=dims.tasks) != width:
            raise ConfigError(
                f"{base.title} adds up table rows, which are parts of the logits and no embeddings: there is nothing "
                f"for towers.module {module.title} to compress",
                "set towers.module: {name: none}, or choose a model of embeddings, such as dlrm",
            )
        self.fields = config.fields
        self.towers = nn.ModuleList([module.build(len(fields), dims.dim) for fields in config.fields])
        outputs = sum(tower.out_features for tower in self._modules_of_towers())
        self.base = base.build_checked(replace(dims, features=outputs, dim=width))
        self.origin = self.base.origin
        self.upstream = False

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        return self.base.logits(dense_BF, emb_BFD if self.upstream else self.compressed(emb_BFD))

    def compressed(self, emb_BFN: Tensor) -> Tensor:
        """Returns the outputs of all towers, (B, O, D)."""
        each = emb_BFN.unbind(1)
        outputs = [
            tower(torch.stack([each[field] for field in fields], dim=1))
            for tower, fields in zip(self.towers, self.fields, strict=True)
        ]
        return torch.cat(outputs, dim=1)

    @property
    def outputs(self) -> list[int]:
        """The number of outputs of each tower."""
        return [tower.out_features for tower in self._modules_of_towers()]

    @property
    def compression(self) -> float:
        """Numbers of the fields over numbers of the towers' outputs: F·N / (O·D)."""
        return compression(self.dims.features, self.dims.dim, self.outputs, self.base.dims.dim)

    def flops(self) -> int:
        return sum(tower.flops() for tower in self._modules_of_towers()) + self.base.flops()

    @property
    def counts_flops(self) -> bool:
        return self.base.counts_flops

    def named_parts(self) -> list[tuple[str, Block]]:
        towers = [(f"tower {number}", tower) for number, tower in enumerate(self._modules_of_towers())]
        return [*towers, *self.base.named_parts()]

    def _modules_of_towers(self) -> list[TowerModule]:
        return [tower for tower in self.towers if isinstance(tower, TowerModule)]


def compression(features: int, dim: int, outputs: Sequence[int], width: int) -> float:
    """Returns F·N / ΣO: the numbers that towers receive over those that they return.

    Args:
        features: F, the fields of all towers.
        dim: N, their width.
        outputs: the number of outputs of each tower.
        width: their width.
    """
    return features * dim / (sum(outputs) * width)
