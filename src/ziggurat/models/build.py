"""From a model's config to the model: the one place that lists them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

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


def build_model(config: ModelConfig, dims: ModelDims) -> Model:
    """The model that ``config`` describes, with fresh weights drawn from torch's global generator.

    Raises:
        ConfigError: the model cannot work with these dims; the message names one that can.
    """
    return _MODELS[config.name](config, dims)
