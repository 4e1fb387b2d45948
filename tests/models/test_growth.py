"""The growing sizes of models: which models have them, what each size is, and that each costs more than the last."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from model_cases import CONFIGS, dims_for, inputs_for

from ziggurat.core.errors import ConfigError
from ziggurat.interactions.mlp import MLP
from ziggurat.models.build import ModelConfig, growing_models, scalable_models
from ziggurat.models.dcn_v2 import DCNv2
from ziggurat.models.dlrm import DLRM
from ziggurat.models.dnn import DNN
from ziggurat.models.fm import FM
from ziggurat.models.growth import wider
from ziggurat.models.wukong import Wukong

GROWING = {name: config for name, config in CONFIGS.items() if config.name not in {"fm", "logistic_regression"}}


@pytest.mark.parametrize("smallest", GROWING.values(), ids=GROWING.keys())
def test_every_size_costs_more_and_works(smallest: ModelConfig) -> None:
    dims = dims_for(smallest)
    sizes = growing_models(smallest, 5)
    assert sizes[0] == smallest
    assert sizes[:3] == growing_models(smallest, 3)
    with torch.device("meta"):
        models = [config.build(dims) for config in sizes]
    assert all(smaller.flops() < larger.flops() for smaller, larger in pairwise(models))
    assert all(smaller.parameter_count() < larger.parameter_count() for smaller, larger in pairwise(models))
    for config in sizes:
        assert type(config).model_validate(config.model_dump()) == config
    largest = sizes[-1].build(dims)
    assert torch.isfinite(largest(*inputs_for(dims))).all()


def test_wukong_by_hand() -> None:
    """Layers grow to four times their number, then all widths by the square root of two, rounded up."""
    sizes = Wukong.Config(rank=5, fm_mlp=MLP.Config(hidden=(100,))).growing_sizes(6)
    assert [config.layers for config in sizes] == [2, 4, 8, 8, 8, 8]
    assert [config.rank for config in sizes] == [5, 5, 5, 8, 10, 15]
    assert (
        [config.fm_outputs for config in sizes] == [config.linear_outputs for config in sizes] == [8, 8, 8, 12, 16, 23]
    )
    assert [config.fm_mlp.hidden for config in sizes] == [(100,)] * 3 + [(142,), (200,), (283,)]
    assert sizes[4].bottom.hidden == (128,)
    assert sizes[4].head == wider(sizes[0].head, 2)
    assert sizes[4].dense_vectors == 1


def test_dcn_v2_dlrm_and_dnn_by_hand() -> None:
    crossed = DCNv2.Config(rank=None).growing_sizes(4)
    assert [(config.cross_layers, config.rank, config.deep.hidden) for config in crossed] == [
        (3, None, (256, 128)),
        (6, None, (256, 128)),
        (12, None, (256, 128)),
        (12, None, (512, 256)),
    ]
    dots = DLRM.Config(top=MLP.Config(hidden=(8, 4))).growing_sizes(3)
    assert [config.top.hidden for config in dots] == [(8, 4), (8, 8, 4, 4), (16, 16, 8, 8)]
    assert [config.bottom.hidden for config in dots] == [(64,), (64,), (128,)]
    heads = CONFIGS["dnn-ple"].growing_sizes(3)
    assert all(isinstance(config, DNN.Config) for config in heads)
    assert [config.head.expert.hidden for config in heads] == [(6,), (6, 6), (12, 12)]  # pyright: ignore
    assert [config.head.tower.hidden for config in heads] == [(6,), (6,), (12,)]  # pyright: ignore


def test_without_layers_to_set_sizes_only_widen() -> None:
    flat = DCNv2.Config(cross_layers=0).growing_sizes(3)
    assert [config.deep.hidden for config in flat] == [(256, 128), (512, 256), (1024, 512)]


def test_a_model_without_widths_is_refused_and_the_others_are_named() -> None:
    names = scalable_models()
    assert set(names) == {config.name for config in GROWING.values()}
    with pytest.raises(ConfigError, match="model fm has no width that could grow") as caught:
        growing_models(FM.Config(), 3)
    assert f"choose one of {', '.join(names)}, or list the sizes yourself" in str(caught.value)
