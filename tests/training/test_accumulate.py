"""Gradient accumulation and activation checkpointing compute the same as training without them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training.conftest import MakeExperiment
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.core.errors import ConfigError
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.mlp import MLP
from ziggurat.models.dhen import DHEN
from ziggurat.models.model import ModelDims
from ziggurat.parallel.dense import checkpoint_activations
from ziggurat.training import api

FROZEN = {"name": "sgd", "lr": 1e-30}  # tables are updated at every batch, so comparable runs must not train them


def test_two_accumulated_batches_equal_one_of_twice_the_rows(make_experiment: MakeExperiment) -> None:
    common = {"embeddings__optimizer": FROZEN, "optimizer": {"name": "sgd", "lr": 0.1}, "training__clip_norm": 0.5}
    api.train(make_experiment(**common, training__batch_size=128, training__max_steps=8), "large")
    accumulated = {"training__batch_size": 64, "training__max_steps": 16, "training__accumulate": 2}
    api.train(make_experiment(**common, **accumulated), "halves")
    large, halves = tensors(Path("large"), 8), tensors(Path("halves"), 16)
    for name, tensor in large.items():
        if name.startswith("dense:"):
            torch.testing.assert_close(halves[name], tensor, rtol=0, atol=1e-6)
    api.train(make_experiment(**common, training__batch_size=64, training__max_steps=16), "separate")
    separate = tensors(Path("separate"), 16)
    trained = [name for name in large if name.startswith("dense:") and name.endswith("weight")]
    assert trained
    assert not any(torch.allclose(separate[name], large[name], atol=1e-4) for name in trained)


@pytest.mark.parametrize("stops", [(5, None), (20, 23, None)])
def test_accumulated_gradients_are_not_lost_when_training_stops(
    make_experiment: MakeExperiment, stops: tuple[int | None, ...]
) -> None:
    """Uses an epoch of 16 batches of 128, so that its last step is made with the one remaining batch."""
    experiment = make_experiment(training__accumulate=3, training__epochs=2)
    straight = api.train(experiment, "straight")
    resumed = [api.train(experiment, "parts", stop_after=stop) for stop in stops][-1]
    assert resumed.step == straight.step
    assert_same_bits(tensors(Path("straight"), straight.step), tensors(Path("parts"), straight.step))


def test_saving_between_two_steps_is_refused(make_experiment: MakeExperiment) -> None:
    with pytest.raises(ConfigError, match="save_every is 5, no multiple of accumulate, 2"):
        make_experiment(training__accumulate=2, training__save_every=5)


def test_activation_checkpointing_changes_no_bit(make_experiment: MakeExperiment) -> None:
    for folder, on in (("stored", False), ("recomputed", True)):
        model = {"name": "wukong", "layers": 3, "head": {"bottom": {"dropout": 0.2}}}
        api.train(make_experiment(model=model, training__max_steps=8, training__activation_checkpointing=on), folder)
    assert_same_bits(tensors(Path("stored"), 8), tensors(Path("recomputed"), 8))


@pytest.mark.parametrize(("norm", "saves"), [("none", True), ("batch", False)])
def test_checkpointed_blocks_store_only_their_inputs(norm: str, saves: bool) -> None:
    def stored_bytes(checkpointed: bool) -> int:
        torch.manual_seed(0)
        block = DHEN.Config().layer.blocks[0].model_copy(update={"mlp": MLP.Config(hidden=(64,), norm=norm)})
        layer = DHEN.Config().layer.model_copy(update={"blocks": (block,)})
        config = DHEN.Config(layers=3, layer=layer, head=SharedBottom.Config(bottom=MLP.Config(hidden=(8,))))
        model = config.build(ModelDims(0, 6, 8))
        if checkpointed:
            checkpoint_activations(model)
        stored: dict[int, int] = {}

        def record(tensor: Tensor) -> Tensor:
            stored[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            model(torch.zeros(512, 0), torch.randn(512, 6, 8, requires_grad=True))
        return sum(stored.values())

    assert (stored_bytes(True) < 0.5 * stored_bytes(False)) is saves
