"""The list of dense optimizers, by the name of their configs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ziggurat.core.parts import Importable
from ziggurat.optim.dense_optimizer import DenseOptimizerSettings
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.optim.torch_optimizers import SGD, Adagrad, Adam, AdamW

DenseOptimizerConfig = Annotated[
    Annotated[Adam | AdamW | SGD | Adagrad | ShampooConfig, Field(discriminator="name")],
    Importable(DenseOptimizerSettings, "optimizer"),
]
"""The config of any dense optimizer, discriminated by ``name``, or by ``import`` for one from outside the package."""
