"""Super-modules compute what the models they stand for compute, and their expected costs are those of these models."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.flat_mlp import FlatMLP
from ziggurat.interactions.mlp import MLP
from ziggurat.models.deepfm import DeepFM
from ziggurat.models.dhen import DHEN
from ziggurat.models.fm import FM
from ziggurat.models.model import ModelDims
from ziggurat.search.architecture.space.composed import ComposedSpace, SuperComposed
from ziggurat.search.architecture.space.cost import FlopsCost
from ziggurat.search.architecture.space.decision import Mask, certain, chosen, hard_masks
from ziggurat.search.architecture.space.own_mlp import own_mlp, with_own_regularisation
from ziggurat.search.architecture.space.super_mlp import MLPChoices, SuperMLP

DIMS = ModelDims(dense=3, features=5, dim=4, tasks=2)


def composed(**values: Any) -> ComposedSpace:
    return parse_config(ComposedSpace.Config, values).build(DIMS)


def drawn(space: ComposedSpace, seed: int) -> dict[str, int]:
    generator = np.random.default_rng(seed)
    return {each.name: int(generator.integers(len(each.choices))) for each in space.decisions}


def copy_into(model: nn.Module, tensors: list[Tensor]) -> None:
    """Copies the first rows and columns of larger weights into those of a model, in order."""
    for own, given in zip(model.parameters(), tensors, strict=True):
        own.data.copy_(given[tuple(slice(size) for size in own.shape)])


def test_the_default_space_costs_what_its_models_cost() -> None:
    """All eight blocks, widths, layers left out and skips: to the last FLOP."""
    space, cost = composed(), FlopsCost()
    for seed in range(12):
        architecture = drawn(space, seed)
        model = space.model(chosen(space.decisions, architecture)).build(DIMS)
        assert float(space.expected_cost(certain(space.decisions, architecture), cost)) == model.flops()


def test_the_expected_cost_is_the_mean_over_all_architectures() -> None:
    """Also where layers may be left out, so that the width that a layer reads depends on the decisions before it."""
    space = composed(
        layers=1, blocks=[{"name": "linear", "outputs": 6}], top={"layers": 2, "widths": [3, 5]},
        bottom={"layers": 1, "widths": [4], "skips": False},
    )  # fmt: skip
    cost, generator = FlopsCost(), torch.Generator().manual_seed(1)
    probabilities = {
        each.name: torch.softmax(torch.randn(len(each.choices), generator=generator).double(), 0)
        for each in space.decisions
    }
    names = [each.name for each in space.decisions]
    mean = 0.0
    for choices in itertools.product(*(range(len(each.choices)) for each in space.decisions)):
        architecture = dict(zip(names, choices, strict=True))
        weight = float(torch.stack([probabilities[name][choice] for name, choice in architecture.items()]).prod())
        mean += weight * space.model(chosen(space.decisions, architecture)).build(DIMS).flops()
    assert float(space.expected_cost(probabilities, cost)) == pytest.approx(mean, rel=1e-12)


def test_a_skip_is_in_the_expected_cost() -> None:
    choices = MLPChoices(layers=1, widths=(8,), optional=False)
    costs = [
        float(
            choices.expected_cost(
                "mlp", 5, {"mlp.1.width": torch.ones(1), "mlp.1.skip": torch.tensor([1 - p, p])}, FlopsCost()
            )
        )
        for p in (0.0, 0.5, 1.0)
    ]
    assert costs == [2 * 5 * 8, 2 * 5 * 8 + 2.5, 2 * 5 * 8 + 5]


def test_a_layer_that_is_left_out_is_in_the_expected_cost_of_the_next() -> None:
    """Two layers of 8 over 5 numbers; the first is left out with probability 0.25, and then the second reads 5."""
    choices = MLPChoices(layers=2, widths=(8,), skips=False)
    probabilities = {"mlp.1.width": torch.tensor([0.75, 0.25]), "mlp.2.width": torch.tensor([1.0, 0.0])}
    expected = 0.75 * (2 * 5 * 8 + 2 * 8 * 8) + 0.25 * 2 * 5 * 8
    assert float(choices.expected_cost("mlp", 5, probabilities, FlopsCost())) == pytest.approx(expected)


@pytest.mark.parametrize("widths", [(8, 4), (4, 8)], ids=["falling", "rising"])
def test_masks_decode_to_the_mlp_of_the_chosen_widths(widths: tuple[int, int]) -> None:
    """A hard mask keeps the first numbers of each layer: the MLP made of the first rows and columns."""
    torch.manual_seed(0)
    choices = MLPChoices(layers=2, widths=(8, 4, 2), optional=True)
    module, inputs_BN = SuperMLP(choices, "mlp", 6), torch.randn(7, 6)
    decisions = choices.decisions("mlp")
    for skips in itertools.product((0, 1), repeat=2):
        architecture = {
            "mlp.1.width": choices.widths.index(widths[0]), "mlp.1.skip": skips[0],
            "mlp.2.width": choices.widths.index(widths[1]), "mlp.2.skip": skips[1],
        }  # fmt: skip
        plain = MLP(6, choices.config("mlp", chosen(decisions, architecture)))
        copy_into(plain, list(module.parameters()))
        masked_BN = module(inputs_BN, hard_masks(decisions, architecture))
        torch.testing.assert_close(masked_BN[:, : widths[1]], plain(inputs_BN))
        assert masked_BN[:, widths[1] :].abs().sum() == 0


def test_a_soft_mask_is_the_mean_of_the_choices_of_a_layer() -> None:
    torch.manual_seed(0)
    choices = MLPChoices(layers=1, widths=(8, 4), optional=True)
    module, inputs_BN = SuperMLP(choices, "mlp", 6), torch.randn(7, 6)
    decisions = choices.decisions("mlp")
    shares = {"mlp.1.width": torch.tensor([0.5, 0.2, 0.3]), "mlp.1.skip": torch.tensor([0.6, 0.4])}
    wanted = torch.zeros(7, 8)
    for width, skip in itertools.product(range(3), range(2)):
        masks = hard_masks(decisions, {"mlp.1.width": width, "mlp.1.skip": skip})
        wanted += shares["mlp.1.width"][width] * shares["mlp.1.skip"][skip] * module(inputs_BN, masks)
    found = module(inputs_BN, {name: Mask(value) for name, value in shares.items()})
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("seed", range(8))
def test_hard_masks_give_the_logits_of_the_model_that_is_written(seed: int) -> None:
    """Of any blocks in two layers, each of which may be left out: the model of the config, with the weights that the
    masks choose."""
    space = composed()
    decisions = {each.name: each for each in space.decisions}
    architecture = {
        name: min(choice, len(decisions[name].choices) - 2) if name.endswith(".width") else choice
        for name, choice in drawn(space, seed).items()
    }  # the last width leaves the layer out: its weights are in no model
    torch.manual_seed(seed)
    module = space.super_module()
    assert isinstance(module, SuperComposed)
    model = space.model(chosen(space.decisions, architecture)).build(DIMS)
    layers = [
        layer.layers[architecture[f"layer.{number}"]]
        for number, layer in enumerate(module.layers, start=1)
        if architecture[f"layer.{number}"] < len(layer.layers)
    ]
    assert module.bottom is not None
    assert module.to_vectors is not None
    parts = [module.bottom, module.to_vectors, *layers, module.top, module.towers]
    copy_into(model, [each for part in parts for each in part.parameters()])
    dense_BF, emb_BFD = torch.randn(9, 3), torch.randn(9, 5, 4)
    masked = module.logits(dense_BF, emb_BFD, hard_masks(space.decisions, architecture))
    torch.testing.assert_close(masked, model(dense_BF, emb_BFD))


def test_a_space_of_one_choice_is_the_plain_model_bit_for_bit() -> None:
    """The initial weights, the logits, and after steps of an optimizer the weights."""
    one = {"optional": False, "skips": False}
    space = composed(
        layers=2, optional=False, blocks=[{"name": "dot_product", "outputs": 6}],
        top={"layers": 2, "widths": [7], **one}, bottom={"layers": 1, "widths": [5], **one},
    )  # fmt: skip
    architecture = {each.name: 0 for each in space.decisions}
    masks = hard_masks(space.decisions, architecture)
    dense_BF, emb_BFD = torch.randn(9, 3), torch.randn(9, 5, 4)
    torch.manual_seed(4)
    module = space.super_module()
    torch.manual_seed(4)
    model = space.model(chosen(space.decisions, architecture)).build(DIMS)
    logits = {"super": lambda: module.logits(dense_BF, emb_BFD, masks), "plain": lambda: model(dense_BF, emb_BFD)}
    assert torch.equal(logits["super"](), logits["plain"]())
    for name, trained in (("super", module), ("plain", model)):
        optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            logits[name]().square().mean().backward()
            optimizer.step()
    assert torch.equal(logits["super"](), logits["plain"]())


def test_logits_take_both_signs() -> None:
    """A ReLU before the sigmoid, as in public code, would make every prediction at least one half."""
    space = composed(layers=1, top={"layers": 2, "widths": [16, 8]})
    torch.manual_seed(0)
    module = space.super_module()
    masks = {each.name: Mask(torch.full((len(each.choices),), 1 / len(each.choices))) for each in space.decisions}
    logits_BT = module.logits(torch.randn(64, 3), torch.randn(64, 5, 4), masks)
    assert logits_BT.min() < 0 < logits_BT.max()


def test_searched_mlps_have_the_regularisation_of_the_config() -> None:
    """Of its largest MLP, unless the space says something else: else what is found is trained without dropout."""
    model = DeepFM.Config(deep=MLP.Config(hidden=(64,), dropout=0.4, activation="silu"))
    space = parse_config(ComposedSpace.Config, {"top": {"dropout": 0.1}})
    found = with_own_regularisation(space, model)
    assert (found.bottom.dropout, found.bottom.activation) == (0.4, "silu")
    assert (found.top.dropout, found.top.activation) == (0.1, "silu")
    built = found.build(DIMS)
    written = built.model(chosen(built.decisions, drawn(built, 0)))
    assert (written.bottom.dropout, written.bottom.activation) == (0.4, "silu")
    two = DHEN.Config(
        bottom=MLP.Config(hidden=(300, 300), dropout=0.3),
        stack=(Ensemble.Config(blocks=(FlatMLP.Config(outputs=6, mlp=MLP.Config(hidden=(512,), dropout=0.2)),)),),
    )
    assert own_mlp(two).dropout == 0.3
    plain = with_own_regularisation(space, FM.Config())
    assert (plain.bottom.dropout, plain.bottom.activation, plain.top.dropout) == (0.0, "relu", 0.1)


def test_a_block_that_emits_other_fields_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected 6 fields .* received linear: 4\n  hint: set `outputs: 6`"):
        composed(blocks=[{"name": "linear", "outputs": 4}])
