"""The union of all model configs, the growing sizes of a model, and the dimensions that a layout gives it."""

from __future__ import annotations

from collections.abc import Sequence
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
from ziggurat.objectives.task import Task

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
"""The config of any model, chosen by ``name``, or by ``import`` for one from outside the package."""


def growing_models(config: ModelConfig, count: int) -> list[ModelConfig]:
    """Returns the model of ``config`` and ``count - 1`` larger ones, by :meth:`ModelSettings.growing_sizes`.

    Raises:
        ConfigError: the model has nothing that could grow; the message names the models that have.
    """
    found = config.growing_sizes(count)
    if not found:
        raise ConfigError(
            f"model {config.title} has no width that could grow, so it has no larger sizes of its own",
            f"choose one of {', '.join(scalable_models())}, or list the sizes yourself with --sizes-file FILE",
        )
    return list(found)


def scalable_models() -> list[str]:
    """Returns the names of the models that :func:`growing_models` can grow."""
    defaults = [kind.model_validate({}) for kind in built_in(ModelConfig, ModelSettings)]
    return [config.title for config in defaults if config.growing_sizes(2)]


def model_dims(layout: Layout, tasks: Sequence[Task]) -> ModelDims:
    """Returns the sizes of a model's inputs and outputs for this layout.

    A model makes one number a row for each output of a task, as if each were a task of its own.
    """
    outputs = sum(task.outputs for task in tasks)
    return ModelDims(dense=len(layout.schema.dense), features=len(layout.fields), dim=layout.dim, tasks=outputs)
