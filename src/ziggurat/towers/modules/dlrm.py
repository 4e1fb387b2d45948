"""DLRM's tower module: linear maps of the whole tower and of each embedding.

Shape legend: B rows, F fields of the tower, N their width, D width of the outputs, p and c numbers of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ziggurat.towers.modules.initial import orthogonal
from ziggurat.towers.modules.module import TowerModule, TowerModuleSettings


class DLRMTower(TowerModule):
    """(B, F, N) → (B, p + c·F, D): p outputs of a linear map of all fields, then c of a linear map of each field.

    Source: Luo et al., "Disaggregated Multi-Tower", arXiv 2403.00877, section 3.2: o1 = Linear(F·N → p·D),
    o2 = Linear(N → c·D), shared by the fields of a tower, concatenated. They use c = 1, p = 0, D = 64 and
    c = 0, p = 1, D = 128. They do not tell the initial weights; ours are orthogonal.
    """

    class Config(TowerModuleSettings):
        """How many outputs, and how wide."""

        name: Literal["dlrm"] = "dlrm"

        flat: Annotated[int, Field(ge=0)] = 0
        """Outputs of the linear map of the tower's flattened fields (p)."""

        each: Annotated[int, Field(ge=0)] = 1
        """Outputs of the linear map of each field (c)."""

        width: Annotated[int, Field(ge=1)] = 64
        """Width of the outputs (D)."""

        @model_validator(mode="after")
        def _some_output(self) -> DLRMTower.Config:
            if self.flat + self.each == 0:
                raise ValueError("flat and each are both 0, which leaves a tower without outputs; set one above 0")
            return self

        def out_features(self, features: int) -> int:
            return self.flat + self.each * features

        def out_dim(self, dim: int) -> int:
            del dim
            return self.width

        def build(self, features: int, dim: int) -> DLRMTower:
            return DLRMTower(self, features, dim)

    def __init__(self, config: DLRMTower.Config, features: int, dim: int) -> None:
        super().__init__()
        self.out_features, self.out_dim = config.out_features(features), config.width
        self._fields, self._each = features, config.each
        self.flat = orthogonal(nn.Linear(features * dim, config.flat * config.width)) if config.flat else None
        self.each = orthogonal(nn.Linear(dim, config.each * config.width)) if config.each else None

    def forward(self, emb_BFD: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        if self.flat is not None:
            outputs.append(self.flat(emb_BFD.flatten(1)).unflatten(1, (-1, self.out_dim)))
        if self.each is not None:
            outputs.append(self.each(emb_BFD).reshape(emb_BFD.shape[0], -1, self.out_dim))
        return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]

    def matmul_flops(self) -> int:
        flat = 0 if self.flat is None else self.flat.in_features * self.flat.out_features
        each = 0 if self.each is None else self._fields * self.each.in_features * self.each.out_features
        return 2 * (flat + each)
