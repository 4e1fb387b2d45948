"""Logistic regression: one weight per id and per dense feature, no interactions. It is every report's baseline.

Shape legend: B rows, F fields, D embedding dim, T tasks, G = D / T dims per task.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError
from ziggurat.interactions.linear import Linear
from ziggurat.models.model import Model, ModelDims, ModelSettings

DIMS_PER_TASK = 4
"""The narrowest row that the lookup kernels accept."""
_INITIAL_STD = 0.01


class LogisticRegression(Model):
    """logit_t = b_t + ⟨w_t, dense⟩ + Σ_f mean(e_f over task t's dims).

    The model reads only the mean μ of a row's four floats, so a row acts as one free weight per id. All four floats get
    the same gradient, a quarter of μ's. Under row-wise Adagrad, whose state is the mean of the squared gradient over
    the row, the quarter cancels: μ moves by lr·g / √Σg², as a scalar weight under Adagrad would (epsilon counts four
    times). Adagrad and Adam cancel it too; under SGD μ moves by lr·g / 4. The initial μ is the mean of four draws, so
    its standard deviation is half of ``init_std``.

    Each task reads its own dims of a row, so tasks share nothing.

    Raises:
        ConfigError: D is not a multiple of T.
    """

    class Config(ModelSettings):
        """Logistic regression has no settings."""

        name: Literal["logistic_regression"] = "logistic_regression"

        def embedding_dim(self, requested: int, tasks: int = 1) -> int:
            """Returns four dims per task, whatever is requested."""
            del requested
            return DIMS_PER_TASK * tasks

        def build(self, dims: ModelDims) -> LogisticRegression:
            return LogisticRegression(self, dims)

    def __init__(self, config: LogisticRegression.Config, dims: ModelDims) -> None:
        del config
        super().__init__(dims)
        if dims.features and dims.dim % dims.tasks:
            raise ConfigError(
                f"logistic_regression: embedding dim {dims.dim} is not a multiple of the {dims.tasks} tasks",
                f"use dim {DIMS_PER_TASK * dims.tasks}",
            )
        self.bias_T = nn.Parameter(torch.zeros(dims.tasks))
        self.linear = Linear(dims.dense, dims.tasks, bias=False) if dims.dense else None
        if self.linear is not None:  # the loss is convex: a wide start gains nothing, and is far from the base rate
            nn.init.normal_(self.linear.layer.weight, std=_INITIAL_STD)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        logits_BT = self.bias_T.expand(dense_BF.shape[0], -1)
        if self.linear is not None:
            logits_BT = logits_BT + self.linear(dense_BF)
        if self.dims.features:
            logits_BT = logits_BT + emb_BFD.unflatten(2, (self.dims.tasks, -1)).mean(3).sum(1)
        return logits_BT

    def flops(self) -> int:
        """Returns the FLOPs of the linear part, plus one addition per number of the embeddings."""
        return super().flops() + self.dims.features * self.dims.dim
