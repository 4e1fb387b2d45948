"""The list of models, by the name of their configs; the sizes that a model is built for."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ziggurat.core.errors import ConfigError
from ziggurat.core.parts import Importable, built_in
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
from ziggurat.models.model import ModelDims, ModelSettings
from ziggurat.models.wide_deep import WideDeep
from ziggurat.models.wukong import Wukong
from ziggurat.models.xdeepfm import XDeepFM

ModelConfig = Annotated[
    Annotated[
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
    ],
    Importable(ModelSettings, "model"),
]
"""The config of any model, told apart by ``name``, or by ``import`` for one from outside the package."""


def ladder_of(config: ModelConfig, rungs: int) -> list[ModelConfig]:
    """The model of ``config`` and ``rungs - 1`` larger ones, as :meth:`ModelSettings.ladder` grows it.

    Raises:
        ConfigError: it has nothing that could grow; the models that have are named.
    """
    found = config.ladder(rungs)
    if not found:
        raise ConfigError(
            f"model {config.title} has no sizes to grow, so there is no ladder of it",
            f"choose one of {', '.join(models_with_ladder())}, or give the rungs yourself with --sizes-file FILE",
        )
    return list(found)


def models_with_ladder() -> list[str]:
    """Names of the models that :func:`ladder_of` grows."""
    return [str(kind().title) for kind in built_in(ModelConfig, ModelSettings) if kind().ladder(2)]


def model_dims(layout: Layout) -> ModelDims:
    """The sizes of what a model is fed."""
    schema = layout.schema
    return ModelDims(dense=len(schema.dense), features=len(layout.fields), dim=layout.dim, tasks=len(schema.labels))
