"""Ladders of sizes: which models have one, what each rung is, and that every rung costs more than the one below."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from model_cases import CONFIGS, dims_for, inputs_for

from ziggurat.core.errors import ConfigError
from ziggurat.interactions.mlp import MLP
from ziggurat.models.build import ModelConfig, ladder_of, models_with_ladder
from ziggurat.models.dcn_v2 import DCNv2
from ziggurat.models.dlrm import DLRM
from ziggurat.models.dnn import DNN
from ziggurat.models.fm import FM
from ziggurat.models.growth import wider
from ziggurat.models.wukong import Wukong

GROWING = {name: config for name, config in CONFIGS.items() if config.name not in {"fm", "logistic_regression"}}


@pytest.mark.parametrize("config", GROWING.values(), ids=GROWING.keys())
def test_every_rung_costs_more_and_works(config: ModelConfig) -> None:
    dims = dims_for(config)
    rungs = ladder_of(config, 5)
    assert rungs[0] == config
    assert rungs[:3] == ladder_of(config, 3)
    with torch.device("meta"):
        models = [rung.build(dims) for rung in rungs]
    assert all(smaller.flops() < larger.flops() for smaller, larger in pairwise(models))
    assert all(smaller.parameter_count() < larger.parameter_count() for smaller, larger in pairwise(models))
    for rung in rungs:
        assert type(rung).model_validate(rung.model_dump()) == rung
    largest = rungs[-1].build(dims)
    assert torch.isfinite(largest(*inputs_for(dims))).all()


def test_wukong_by_hand() -> None:
    """Depth to four times, then all widths by the square root of two, rounded up."""
    rungs = Wukong.Config(rank=5, fm_mlp=MLP.Config(hidden=(100,))).ladder(6)
    assert [rung.layers for rung in rungs] == [2, 4, 8, 8, 8, 8]
    assert [rung.rank for rung in rungs] == [5, 5, 5, 8, 10, 15]
    assert [rung.fm_outputs for rung in rungs] == [rung.linear_outputs for rung in rungs] == [8, 8, 8, 12, 16, 23]
    assert [rung.fm_mlp.hidden for rung in rungs] == [(100,)] * 3 + [(142,), (200,), (283,)]
    assert rungs[4].bottom.hidden == (128,)
    assert rungs[4].head == wider(rungs[0].head, 2)
    assert rungs[4].dense_vectors == 1


def test_dcn_v2_dlrm_and_dnn_by_hand() -> None:
    crossed = DCNv2.Config(rank=None).ladder(4)
    assert [(rung.cross_layers, rung.rank, rung.deep.hidden) for rung in crossed] == [
        (3, None, (256, 128)),
        (6, None, (256, 128)),
        (12, None, (256, 128)),
        (12, None, (512, 256)),
    ]
    dots = DLRM.Config(top=MLP.Config(hidden=(8, 4))).ladder(3)
    assert [rung.top.hidden for rung in dots] == [(8, 4), (8, 8, 4, 4), (16, 16, 8, 8)]
    assert [rung.bottom.hidden for rung in dots] == [(64,), (64,), (128,)]
    heads = CONFIGS["dnn-ple"].ladder(3)
    assert all(isinstance(rung, DNN.Config) for rung in heads)
    assert [rung.head.expert.hidden for rung in heads] == [(6,), (6, 6), (12, 12)]  # pyright: ignore
    assert [rung.head.tower.hidden for rung in heads] == [(6,), (6,), (12,)]  # pyright: ignore


def test_without_layers_to_set_a_ladder_only_widens() -> None:
    flat = DCNv2.Config(cross_layers=0).ladder(3)
    assert [rung.deep.hidden for rung in flat] == [(256, 128), (512, 256), (1024, 512)]


def test_models_without_sizes_are_refused_by_name() -> None:
    names = models_with_ladder()
    assert set(names) == {config.name for config in GROWING.values()}
    with pytest.raises(ConfigError, match="model fm has no sizes to grow") as caught:
        ladder_of(FM.Config(), 3)
    assert f"choose one of {', '.join(names)}, or give the rungs yourself" in str(caught.value)
