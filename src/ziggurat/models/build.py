"""From a model's config to the model: the one place that lists them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args

from pydantic import Field

from ziggurat.core.errors import ConfigError
from ziggurat.embeddings.layout import Layout
from ziggurat.models.autoint import AutoInt
from ziggurat.models.dcn_v2 import DCNv2
from ziggurat.models.deepfm import DeepFM
from ziggurat.models.dhen import DHEN
from ziggurat.models.dlrm import DLRM
from ziggurat.models.dnn import DNN
from ziggurat.models.finalmlp import FinalMLP
from ziggurat.models.fm import FM
from ziggurat.models.logistic_regression import LogisticRegression
from ziggurat.models.masknet import MaskNet
from ziggurat.models.model import Model, ModelDims
from ziggurat.models.wide_deep import WideDeep
from ziggurat.models.wukong import Wukong
from ziggurat.models.xdeepfm import XDeepFM

ModelConfig = Annotated[
    LogisticRegression.Config
    | FM.Config
    | DNN.Config
    | WideDeep.Config
    | DeepFM.Config
    | XDeepFM.Config
    | AutoInt.Config
    | MaskNet.Config
    | FinalMLP.Config
    | DLRM.Config
    | DCNv2.Config
    | DHEN.Config
    | Wukong.Config,
    Field(discriminator="name"),
]
"""The config of any model, told apart by ``name``."""

_MODELS: dict[str, Callable[[Any, ModelDims], Model]] = {
    "logistic_regression": LogisticRegression,
    "fm": FM,
    "dnn": DNN,
    "wide_deep": WideDeep,
    "deepfm": DeepFM,
    "xdeepfm": XDeepFM,
    "autoint": AutoInt,
    "masknet": MaskNet,
    "finalmlp": FinalMLP,
    "dlrm": DLRM,
    "dcn_v2": DCNv2,
    "dhen": DHEN,
    "wukong": Wukong,
}


def ladder_of(config: ModelConfig, rungs: int) -> list[ModelConfig]:
    """The model of ``config`` and ``rungs - 1`` larger ones, as :meth:`ModelSettings.ladder` grows it.

    Raises:
        ConfigError: it has nothing that could grow; the models that have are named.
    """
    found = config.ladder(rungs)
    if not found:
        raise ConfigError(
            f"model {config.name} has no sizes to grow, so there is no ladder of it",
            f"choose one of {', '.join(models_with_ladder())}, or give the rungs yourself with --ladder FILE",
        )
    return list(found)


def models_with_ladder() -> list[str]:
    """Names of the models that :func:`ladder_of` grows."""
    return [kind().name for kind in get_args(get_args(ModelConfig)[0]) if kind().ladder(2)]


def model_dims(layout: Layout) -> ModelDims:
    """The sizes of what a model is fed."""
    schema = layout.schema
    return ModelDims(dense=len(schema.dense), features=len(layout.fields), dim=layout.dim, tasks=len(schema.labels))


def build_model(config: ModelConfig, dims: ModelDims) -> Model:
    """The model that ``config`` describes, with fresh weights drawn from torch's global generator.

    Raises:
        ConfigError: the model cannot work with these dims; the message names one that can.
    """
    return _MODELS[config.name](config, dims)
