"""The models under contract, in several settings; a new model joins by adding its configs here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ziggurat.interactions.mlp import MLP
from ziggurat.models import ModelConfig, ModelDims
from ziggurat.models.dcn_v2 import DCNv2
from ziggurat.models.deepfm import DeepFM
from ziggurat.models.dlrm import DLRM
from ziggurat.models.logistic_regression import LogisticRegression

SMALL = MLP.Config(hidden=(16, 8))

CONFIGS: dict[str, ModelConfig] = {
    "logistic_regression": LogisticRegression.Config(),
    "deepfm": DeepFM.Config(deep=SMALL),
    "dlrm": DLRM.Config(bottom=MLP.Config(hidden=(8,)), top=SMALL),
    "dcn_v2": DCNv2.Config(cross_layers=2, deep=SMALL),
    "dcn_v2-parallel": DCNv2.Config(cross_layers=2, structure="parallel", deep=SMALL),
    "dcn_v2-low-rank": DCNv2.Config(cross_layers=2, rank=3, deep=SMALL),
}


def dims_for(config: ModelConfig, dense: int = 3, features: int = 4, tasks: int = 1, dim: int = 8) -> ModelDims:
    return ModelDims(dense, features, config.embedding_dim(dim, tasks), tasks)


def inputs_for(
    dims: ModelDims, rows: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Random dense features and embeddings."""
    generator = torch.Generator().manual_seed(seed)
    draw: Any = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)  # noqa: E731
    return draw(rows, dims.dense), draw(rows, dims.features, dims.dim)
