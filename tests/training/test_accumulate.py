"""Gradients that wait for those of the next batch, and activations that are computed twice."""

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

STILL = {"name": "sgd", "lr": 1e-30}  # tables are updated at every batch, so they must not learn to be comparable


def test_two_batches_that_wait_are_one_of_twice_the_rows(make_experiment: MakeExperiment) -> None:
    common = {"embeddings__optimizer": STILL, "optimizer": {"name": "sgd", "lr": 0.1}, "training__clip_norm": 0.5}
    api.train(make_experiment(**common, training__batch_size=128, training__max_steps=8), "whole")
    halves = {"training__batch_size": 64, "training__max_steps": 16, "training__accumulate": 2}
    api.train(make_experiment(**common, **halves), "halves")
    whole, parts = tensors(Path("whole"), 8), tensors(Path("halves"), 16)
    for name, tensor in whole.items():
        if name.startswith("dense:"):
            torch.testing.assert_close(parts[name], tensor, rtol=0, atol=1e-6)
    api.train(make_experiment(**common, training__batch_size=64, training__max_steps=16), "apart")
    apart = tensors(Path("apart"), 16)
    learnt = [name for name in whole if name.startswith("dense:") and name.endswith("weight")]
    assert learnt
    assert not any(torch.allclose(apart[name], whole[name], atol=1e-4) for name in learnt)


@pytest.mark.parametrize("stops", [(5, None), (20, 23, None)])
def test_nothing_that_waits_is_lost_when_training_stops(
    make_experiment: MakeExperiment, stops: tuple[int | None, ...]
) -> None:
    """An epoch has 16 batches of 128: its end makes a step with the one that is left of sixteen."""
    experiment = make_experiment(training__accumulate=3, training__epochs=2)
    whole = api.train(experiment, "whole")
    ended = [api.train(experiment, "parts", stop_after=stop) for stop in stops][-1]
    assert ended.step == whole.step
    assert_same_bits(tensors(Path("whole"), whole.step), tensors(Path("parts"), whole.step))


def test_saving_between_two_steps_is_refused(make_experiment: MakeExperiment) -> None:
    with pytest.raises(ConfigError, match="save_every is 5, no multiple of accumulate, 2"):
        make_experiment(training__accumulate=2, training__save_every=5)


def test_checkpointing_changes_no_bit(make_experiment: MakeExperiment) -> None:
    for folder, on in (("kept", False), ("again", True)):
        model = {"name": "wukong", "layers": 3, "head": {"bottom": {"dropout": 0.2}}}
        api.train(make_experiment(model=model, training__max_steps=8, training__activation_checkpointing=on), folder)
    assert_same_bits(tensors(Path("kept"), 8), tensors(Path("again"), 8))


@pytest.mark.parametrize(("norm", "saves"), [("none", True), ("batch", False)])
def test_a_stacks_blocks_keep_their_inputs_alone(norm: str, saves: bool) -> None:
    def kept_bytes(again: bool) -> int:
        torch.manual_seed(0)
        block = DHEN.Config().layer.blocks[0].model_copy(update={"mlp": MLP.Config(hidden=(64,), norm=norm)})
        layer = DHEN.Config().layer.model_copy(update={"blocks": (block,)})
        config = DHEN.Config(layers=3, layer=layer, head=SharedBottom.Config(bottom=MLP.Config(hidden=(8,))))
        model = config.build(ModelDims(0, 6, 8))
        if again:
            checkpoint_activations(model)
        found: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            found[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(torch.zeros(512, 0), torch.randn(512, 6, 8, requires_grad=True))
        return sum(found.values())

    assert (kept_bytes(True) < 0.5 * kept_bytes(False)) is saves
