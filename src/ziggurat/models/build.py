"""From a model's config to the model: the one place that lists them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from ziggurat.models.dcn_v2 import DCNv2
from ziggurat.models.deepfm import DeepFM
from ziggurat.models.dlrm import DLRM
from ziggurat.models.logistic_regression import LogisticRegression
from ziggurat.models.model import Model, ModelDims

ModelConfig = Annotated[
    LogisticRegression.Config | DeepFM.Config | DLRM.Config | DCNv2.Config, Field(discriminator="name")
]
"""The config of any model, told apart by ``name``."""

_MODELS: dict[str, Callable[[Any, ModelDims], Model]] = {
    "logistic_regression": LogisticRegression,
    "deepfm": DeepFM,
    "dlrm": DLRM,
    "dcn_v2": DCNv2,
}


def build_model(config: ModelConfig, dims: ModelDims) -> Model:
    """The model that ``config`` describes, with fresh weights drawn from torch's global generator.

    Raises:
        ConfigError: the model cannot work with these dims; the message names one that can.
    """
    return _MODELS[config.name](config, dims)
