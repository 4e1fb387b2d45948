"""The models under contract: every built-in one, some of them in several settings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ziggurat.core.parts import built_in
from ziggurat.interactions.field_blocks.convolution import Convolution
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.field_blocks.self_attention import SelfAttention
from ziggurat.interactions.heads.mmoe import MMoE
from ziggurat.interactions.heads.ple import PLE
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.mlp import MLP
from ziggurat.models import ModelConfig, ModelDims
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
from ziggurat.models.model import ModelSettings
from ziggurat.models.wide_deep import WideDeep
from ziggurat.models.wukong import Wukong
from ziggurat.models.xdeepfm import XDeepFM

SMALL = MLP.Config(hidden=(16, 8))
TINY = MLP.Config(hidden=(6,))
SMALL_HEAD = SharedBottom.Config(bottom=SMALL)
DEFAULT_BLOCKS = DHEN.Config().layer.blocks

CONFIGS: dict[str, ModelConfig] = {
    "logistic_regression": LogisticRegression.Config(),
    "deepfm": DeepFM.Config(deep=SMALL),
    "dlrm": DLRM.Config(bottom=MLP.Config(hidden=(8,)), top=SMALL),
    "dcn_v2": DCNv2.Config(cross_layers=2, deep=SMALL),
    "dcn_v2-parallel": DCNv2.Config(cross_layers=2, structure="parallel", deep=SMALL),
    "dcn_v2-low-rank": DCNv2.Config(cross_layers=2, rank=3, deep=SMALL),
    "fm": FM.Config(),
    "dnn": DNN.Config(head=SharedBottom.Config(bottom=SMALL)),
    "dnn-mmoe": DNN.Config(head=MMoE.Config(experts=3, expert=TINY, tower=TINY)),
    "dnn-ple": DNN.Config(head=PLE.Config(layers=2, shared_experts=2, task_experts=1, expert=TINY, tower=TINY)),
    "wide_deep": WideDeep.Config(deep=SMALL),
    "xdeepfm": XDeepFM.Config(cin_layers=(6, 4), deep=SMALL),
    "autoint": AutoInt.Config(layers=2, head_dim=4, deep=SMALL),
    "autoint-alone": AutoInt.Config(layers=1, head_dim=4, scale=True, deep=None),
    "masknet": MaskNet.Config(blocks=(12, 10), deep=SMALL),
    "masknet-serial": MaskNet.Config(structure="serial", blocks=(12, 10)),
    "finalmlp": FinalMLP.Config(first=SMALL, second=SMALL, gate_hidden=TINY, heads=2),
    "finalmlp-row": FinalMLP.Config(first=SMALL, second=TINY, gate="row", gate_hidden=TINY),
    "finalmlp-ungated": FinalMLP.Config(first=SMALL, second=TINY, gate="none"),
    "wukong": Wukong.Config(fm_outputs=3, linear_outputs=2, rank=2, fm_mlp=SMALL, head=SMALL_HEAD),
    "wukong-full": Wukong.Config(layers=3, fm_outputs=2, linear_outputs=2, rank=None, fm_mlp=SMALL, head=SMALL_HEAD),
    "wukong-attentive": Wukong.Config(
        layers=1, fm_outputs=3, linear_outputs=0, rank=2, attention=SMALL, dense_vectors=2, head=SMALL_HEAD
    ),
    "dhen": DHEN.Config(
        layer=Ensemble.Config(
            blocks=(
                SelfAttention.Config(outputs=4, feed_forward=8),
                LinearCompression.Config(outputs=4),
                Convolution.Config(outputs=4),
            ),
            combine="weighted",
        ),
        head=SMALL_HEAD,
    ),
    "dhen-concat": DHEN.Config(
        layer=Ensemble.Config(blocks=(FactorizationMachineBlock.Config(outputs=3, mlp=SMALL), *DEFAULT_BLOCKS)),
        head=MMoE.Config(experts=2, expert=TINY, tower=TINY),
    ),
    "dhen-pairs": DHEN.Config(
        layer=Ensemble.Config(blocks=(LinearCompression.Config(outputs=4),)), layers=1, pairs=True, head=SMALL_HEAD
    ),
}

_ABSENT = [kind for kind in built_in(ModelConfig, ModelSettings) if kind not in map(type, CONFIGS.values())]
CONFIGS |= {kind().title: kind() for kind in _ABSENT}  # a new model is under contract with its default settings


def dims_for(config: ModelConfig, dense: int = 3, features: int = 4, tasks: int = 1, dim: int = 8) -> ModelDims:
    return ModelDims(dense, features, config.embedding_dim(dim, tasks), tasks)


def inputs_for(
    dims: ModelDims, rows: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns random dense features and embeddings."""
    generator = torch.Generator().manual_seed(seed)
    draw: Any = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)  # noqa: E731
    return draw(rows, dims.dense), draw(rows, dims.features, dims.dim)
