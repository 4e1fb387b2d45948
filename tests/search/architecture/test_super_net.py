"""The super-net trains weights and θ apart, its gradients are exact, and a search resumes bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from tests.search.architecture.conftest import OpenTrainer, small_config
from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import ConfigError, DivergedError
from ziggurat.core.progress import Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.search.architecture.drawing import draw_architectures
from ziggurat.search.architecture.feasible import drawn_within, equal_liking, excess, repaired, uniform_draw
from ziggurat.search.architecture.search import search_architecture
from ziggurat.search.architecture.space.decision import Mask, hard_masks
from ziggurat.search.architecture.space.whole_space import WholeSpace
from ziggurat.search.architecture.supernet.hashed_features import hashed_ids
from ziggurat.search.architecture.supernet.loop import SuperNetTrainer
from ziggurat.search.architecture.supernet.opened import opened_super_net
from ziggurat.search.architecture.supernet.relaxation import ARCHITECTURE, Logits
from ziggurat.search.architecture.supernet.row_parts import RowPart
from ziggurat.training.preparation import prepare
from ziggurat.training.process_group import process_group
from ziggurat.training.recommender_state import dense_state
from ziggurat.training.signals import StopRequest


def all_weights(trainer: SuperNetTrainer) -> dict[str, torch.Tensor]:
    weights = {name: each.detach().clone() for name, each in trainer.recommender.weights().items()}
    return weights | {f"θ/{name}": each.detach().clone() for name, each in trainer.logits.parameters.items()}


def test_each_optimizer_has_its_own_parameters(open_trainer: OpenTrainer) -> None:
    """θ in the weights' optimizer would be trained on the rows of the weights, and decay with them."""
    with open_trainer(Path("net")) as trainer:
        thetas = {id(each) for each in trainer.logits.parameters.values()}
        of_weights = {id(each) for group in trainer.optimizer.param_groups for each in group["params"]}
        assert trainer.architecture.optimizer is not None
        of_thetas = {id(each) for group in trainer.architecture.optimizer.param_groups for each in group["params"]}
        assert of_thetas == thetas
        assert not thetas & of_weights
        assert not thetas & {id(each) for each in trainer.recommender.parameters()}

        before = all_weights(trainer)
        weights, held = trainer.batches()
        trainer.weights_step(*next(weights))
        between = all_weights(trainer)
        trainer.architecture_step(next(held))
        after = all_weights(trainer)
    is_theta = [name.startswith("θ/") for name in before]
    assert [torch.equal(before[name], between[name]) for name in before if name.startswith("θ/")] == [True] * sum(
        is_theta
    )
    assert [torch.equal(between[name], after[name]) for name in before if not name.startswith("θ/")] == [True] * (
        len(is_theta) - sum(is_theta)
    )
    assert not all(torch.equal(between[name], after[name]) for name in before if name.startswith("θ/"))


def test_the_gradient_of_theta_is_that_of_finite_differences(open_trainer: OpenTrainer) -> None:
    """Of the costs, plus the loss of a batch, which is next to nothing beside them."""
    with open_trainer(Path("net")) as trainer:
        _, held = trainer.batches()
        batch = next(held)
        trainer.recommender.eval()
        stepper = trainer.architecture
        soft = trainer.config.model_copy(update={"masks": "soft", "cost_weight": 0.3})
        stepper._config = soft  # pyright: ignore[reportPrivateUsage] - a drawn architecture has no finite differences
        stepper._limits = {"flops": 500.0, "bytes": 1e9}  # pyright: ignore[reportPrivateUsage]
        generator = torch.Generator().manual_seed(0)
        for parameter in trainer.logits.parameters.values():
            parameter.data.copy_(torch.randn(len(parameter), generator=generator))
        _, gradients = stepper.gradients(batch, 0.7, 3)
        for name in ("top.1.width", "layer.1", "table.user.dim", "table.user.rows"):
            parameter = trainer.logits.parameters[name]
            for place in range(len(parameter)):
                sides: list[float] = []
                for sign in (1, -1):
                    parameter.data[place] += sign * 0.02
                    loss, _ = stepper.gradients(batch, 0.7, 3)
                    sides.append(loss + float(stepper.penalty().detach()))
                    parameter.data[place] -= sign * 0.02
                assert (sides[0] - sides[1]) / 0.04 == pytest.approx(float(gradients[name][place]), rel=0.03, abs=3e-5)


def test_the_gradient_of_the_loss_alone_is_that_of_finite_differences(open_trainer: OpenTrainer) -> None:
    """Without costs and in double precision: θ learns from the data."""
    with open_trainer(Path("net")) as trainer:
        _, held = trainer.batches()
        batch = next(held)
        recommender = trainer.recommender.eval()
        extended = recommender.hashed(batch)
        rows = recommender.lookup.finish(recommender.lookup.start(extended))
        draw = torch.Generator().manual_seed(1)
        by_feature = {
            name: torch.randn(each.shape, generator=draw, dtype=torch.float64) for name, each in rows.by_feature.items()
        }
        recommender.lookup.release()
        recommender.part.double()
        for parameter in recommender.part.parameters():
            if parameter.ndim > 1:  # so that choices matter, and gradients are not tiny
                drawn = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
                parameter.data.copy_(2 * drawn / parameter.shape[-1] ** 0.5)
        for parameter in trainer.logits.parameters.values():
            parameter.data.copy_(torch.randn(len(parameter), generator=draw))

        def loss() -> torch.Tensor:
            recommender.net.masks = {
                name: Mask(each.shares.double())
                for name, each in trainer.logits.masks(0.7, ARCHITECTURE, 3, straight=False).items()
            }
            columns_BC, _ = recommender.part(extended.dense_BF.double(), by_feature, rows.masks)
            return cross_entropy(columns_BC, batch.labels_BT.double())  # the loss itself is of single precision

        parameters = dict(trainer.logits.parameters)
        gradients = dict(zip(parameters, torch.autograd.grad(loss(), list(parameters.values())), strict=True))
        for name in ("top.1.width", "layer.1", "pairs", "table.user.dim", "table.user.rows"):
            largest = float(gradients[name].abs().max())
            assert largest > 1e-4, name
            for place in range(len(parameters[name])):
                sides: list[float] = []
                for sign in (1, -1):
                    parameters[name].data[place] += sign * 0.003
                    sides.append(float(loss().detach()))
                    parameters[name].data[place] -= sign * 0.003
                wanted = float(gradients[name][place])
                assert (sides[0] - sides[1]) / 0.006 == pytest.approx(wanted, rel=0.02, abs=0.02 * largest), name


def test_a_step_of_the_architecture_learns_from_the_data(open_trainer: OpenTrainer) -> None:
    """Its gradients are those of the batch's loss, not zeros."""
    with open_trainer(Path("net")) as trainer:
        _, held = trainer.batches()
        stepper = trainer.architecture
        _, gradients = stepper.gradients(next(held), 0.7, 3)
        assert all(float(each.abs().max()) > 0 for name, each in gradients.items() if not name.endswith(".skip"))


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_a_penalty_leaves_tables_alone_that_are_not_chosen(make_experiment: MakeExperiment, l2: float) -> None:
    experiment, config = make_experiment(embeddings__l2=l2), small_config()
    dataset, device = prepare(experiment), torch.device("cpu")
    Path("net").mkdir()
    with process_group(device):
        space = WholeSpace(config.space, config.tables, experiment, dataset.schema)
        limits = config.limits.resolved(space.own_costs())
        with opened_super_net(space, dataset, Path("net"), device) as recommender:
            trainer = SuperNetTrainer(
                recommender, space, limits, config.supernet, dataset, Path("net"), device, 0, "same", Silent()
            )
            weights, _ = trainer.batches()
            before = all_weights(trainer)
            choices = {each.name: 0 for each in space.decisions}  # all rows of each table
            trainer.weights_step(*next(weights), masks=hard_masks(space.decisions, choices))
            after = all_weights(trainer)
    halves = [name for name in before if "@0_5" in name]
    assert halves
    assert [name for name in halves if not torch.equal(before[name], after[name])] == []
    whole = [name for name in before if "user" in name and name not in halves and not name.startswith("θ")]
    assert whole
    assert any(not torch.equal(before[name], after[name]) for name in whole)


def test_limits_that_exclude_each_other_are_told_before_anything_is_trained(make_experiment: MakeExperiment) -> None:
    """Narrow vectors save bytes and cost FLOPs, so that one limit is kept at the expense of the other."""
    experiment, config = make_experiment(), small_config(tables={"rows": [1, 0.5], "least_rows": 30})
    space = WholeSpace(config.space, config.tables, experiment, prepare(experiment).schema)
    draw, likings = uniform_draw(space, 5, 0), equal_liking(space)
    costs = [space.costs(draw(number)) for number in range(60)]
    least: dict[str, float] = {name: min(each[name] for each in costs) for name in ("flops", "bytes")}
    for name in least:
        assert excess(space.costs(repaired(space, {name: least[name]}, draw(1), likings)), {name: least[name]}) <= 1e-9
    together = {name: 0.7 * value for name, value in least.items()}
    with pytest.raises(ConfigError, match=r"limits\.(flops|bytes): received .* that were found cost"):
        repaired(space, together, draw(1), likings)
    small = small_config(limits=together)
    with pytest.raises(ConfigError, match="that were found cost"):
        search_architecture(experiment, "refused", config=small)
    assert not list(Path("refused").glob("trials/*"))


def test_what_is_ranked_first_validates_best_and_no_config_is_ranked_twice(open_trainer: OpenTrainer) -> None:
    with open_trainer(Path("net")) as trainer, StopRequest() as stop:
        trainer.train(stop, None)
        (folder,) = Path("prepared").iterdir()
        limits, dataset = small_config().limits.resolved(trainer.space.own_costs()), Dataset(folder)
        drawn = draw_architectures(trainer, limits, 40, dataset, stop, Silent())
        assert drawn is not None
        values = [each.value for each in drawn]
        assert values == sorted(values)
        assert values[0] < values[-1]
        decoded = [trainer.space.decoded(each.choices).model_dump_json() for each in drawn]
        assert len(set(decoded)) == len(decoded)


def test_a_search_that_was_stopped_goes_on_bit_for_bit(open_trainer: OpenTrainer) -> None:
    ended: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor] | None, list[object]]] = []
    for stops in ((None,), (3, 21, None)):
        folder = Path(f"net-{len(stops)}")
        for stop_after in stops:
            with open_trainer(folder) as trainer, StopRequest() as stop:
                trainer.train(stop, stop_after)
                last = all_weights(trainer), dense_state(trainer.recommender, trainer.optimizer)
                history: list[object] = list(trainer.at.history)
        ended.append((*last, history))
    whole, resumed = ended
    for left, right in ((whole[0], resumed[0]), (whole[1] or {}, resumed[1] or {})):
        assert left.keys() == right.keys()
        assert [name for name in left if not torch.equal(left[name], right[name])] == []
    assert trainer.at.step == trainer.total_steps
    assert trainer.at.architecture_steps == trainer.steps_of_architecture > 0
    assert whole[2] == resumed[2]


def test_what_has_diverged_is_not_saved_over_what_has_not(open_trainer: OpenTrainer) -> None:
    with open_trainer(Path("net")) as trainer, StopRequest() as stop:
        trainer.train(stop, 2)
        trainer.at.losses["weights"] = (float("nan"), 1.0)
        trainer.at.step = 3
        with pytest.raises(DivergedError, match="the loss of the super-net became nan by step 3"):
            trainer.save()
    with open_trainer(Path("net")) as trainer:
        assert trainer.at.step == 2


def test_a_signal_while_architectures_are_ranked_ends_the_search(open_trainer: OpenTrainer) -> None:
    with open_trainer(Path("net")) as trainer, StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        dataset = Dataset(prepare(trainer.space.experiment).folder)
        assert draw_architectures(trainer, trainer.space.own_costs(), 3, dataset, stop, Silent()) is None


def test_tables_that_all_lose_rows_are_searched(make_experiment: MakeExperiment) -> None:
    config = small_config(tables={"rows": [0.5, 0.25], "least_rows": 30})
    stopped = search_architecture(make_experiment(training__max_steps=4), config=config, stop_after=6)
    assert not stopped.finished


def test_max_steps_bounds_each_part_of_the_super_net(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(training__max_steps=3)
    config = small_config(supernet={"warmup_epochs": 1})
    searched = search_architecture(experiment, config=config)
    assert searched.found.history[-1].step == 6
    assert searched.finished


def test_a_step_of_the_weights_trains_one_architecture(open_trainer: OpenTrainer) -> None:
    """What the drawn architecture does not use stays as it was; what it uses moves."""
    with open_trainer(Path("net")) as trainer:
        trainer.recommender.train()
        weights, _ = trainer.batches()
        net = trainer.recommender.net
        seen: set[str] = set()
        for _ in range(6):
            before = {name: each.detach().clone() for name, each in net.module.named_parameters()}
            trainer.weights_step(*next(weights))
            chosen = {name: mask.hard for name, mask in net.masks.items()}
            assert None not in chosen.values()
            moved = {name for name, each in net.module.named_parameters() if not torch.equal(before[name], each)}
            of_layer = {int(name.split(".")[3]) for name in moved if name.startswith("layers.0.layers.")}
            assert of_layer == ({chosen["layer.1"]} if chosen["layer.1"] != 2 else set())
            assert any(name.startswith("top.layers.0") for name in moved) == (chosen["top.1.width"] != 2)
            seen |= {str(chosen["layer.1"])}
        assert len(seen) > 1


def test_straight_masks_are_choices_with_the_gradient_of_the_mixture(make_experiment: MakeExperiment) -> None:
    config = small_config()
    experiment = make_experiment()
    space = WholeSpace(config.space, config.tables, experiment, prepare(experiment).schema)
    logits = Logits(space.decisions, 3)
    weights = torch.tensor([1.0, -2.0, 0.5])
    gradients: list[torch.Tensor] = []
    for straight in (False, True):
        shares = logits.masks(0.5, ARCHITECTURE, 7, straight=straight)["top.1.width"].shares
        if straight:
            assert sorted(shares.detach().tolist()) == pytest.approx([0, 0, 1])
        (gradient,) = torch.autograd.grad((shares * weights).sum(), [logits.parameters["top.1.width"]])
        gradients.append(gradient)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_no_row_trains_both_weights_and_architecture(make_experiment: MakeExperiment) -> None:
    blocks = prepare(make_experiment()).split("train")
    held, others = (RowPart(blocks, 0.2, held_out, 5) for held_out in (True, False))
    for block, rows in enumerate(blocks.sizes):
        places = np.concatenate([held.places(block, rows), others.places(block, rows)])
        assert sorted(places.tolist()) == list(range(rows))
        assert held.read(block).num_rows == held.sizes[block]
    assert held.rows / blocks.rows == pytest.approx(0.2, abs=0.01)


def test_masks_are_drawn_with_the_probabilities_and_are_the_same_again(make_experiment: MakeExperiment) -> None:
    config = small_config()
    experiment = make_experiment()
    space = WholeSpace(config.space, config.tables, experiment, prepare(experiment).schema)
    logits = Logits(space.decisions, 3)
    logits.parameters["top.1.width"].data.copy_(torch.tensor([1.0, 0.0, -1.0]))
    counts = np.bincount([logits.drawn(number)["top.1.width"] for number in range(600)], minlength=3) / 600
    assert counts == pytest.approx(logits.probabilities()["top.1.width"].tolist(), abs=0.05)
    first, second = (logits.masks(0.5, ARCHITECTURE, 7)["top.1.width"].shares for _ in range(2))
    assert torch.equal(first, second)
    assert float(first.detach().sum()) == pytest.approx(1)
    assert logits.masks(0.01, ARCHITECTURE, 7)["top.1.width"].shares.max() > 0.99


def test_what_exceeds_a_limit_is_changed_until_it_does_not(make_experiment: MakeExperiment) -> None:
    config = small_config()
    experiment = make_experiment()
    space = WholeSpace(config.space, config.tables, experiment, prepare(experiment).schema)
    dear = {each.name: 0 for each in space.decisions}
    limits = {"flops": 0.7 * space.costs(dear)["flops"], "bytes": space.costs(dear)["bytes"]}
    found = repaired(space, limits, dear, equal_liking(space))  # pyright: ignore
    assert excess(space.costs(found), limits) <= 1e-9  # pyright: ignore
    drawn = drawn_within(space, limits, uniform_draw(space, 0, 0), equal_liking(space))  # pyright: ignore
    assert excess(space.costs(drawn), limits) <= 1e-9  # pyright: ignore


def test_tables_are_mixed_as_their_shares_say(open_trainer: OpenTrainer) -> None:
    """By the definition: the vector of each choice of rows, truncated and projected for each width."""
    with open_trainer(Path("net")) as trainer:
        tables = trainer.recommender.net.tables
        space = trainer.space.tables
        assert tables.dims == (4, 8)
        shares = {each.name: torch.rand(len(each.choices)).softmax(0) for each in space.decisions}
        masks = {name: Mask(value, 0 if len(value) == 1 else None) for name, value in shares.items()}
        emb_BED = torch.randn(3, trainer.recommender.net.dims.features, 8)
        found_BFD = tables(emb_BED, masks)
        number = next(n for n, table in enumerate(space.tables) if table.name == "user")
        table = space.tables[number]
        extended = trainer.recommender.lookup.layout.fields
        wanted_BD = torch.zeros(3, 8)
        for r, share in enumerate(table.shares):
            field = "user" if share == 1.0 else "user@0_5"
            row_BD = emb_BED[:, extended.index(field)]
            for d, dim in enumerate(tables.dims):
                projected_BD = row_BD if dim == 8 else tables.projections[number](row_BD[:, :4])
                wanted_BD += shares["table.user.rows"][r] * shares["table.user.dim"][d] * projected_BD
        place = trainer.space.layout.fields.index("user")
        torch.testing.assert_close(found_BFD[:, place], wanted_BD)
        hard = hard_masks(space.decisions, {each.name: len(each.choices) - 1 for each in space.decisions})
        last = extended.index("user@0_5" if table.shares[-1] == 0.5 else "user")
        torch.testing.assert_close(tables(emb_BED, hard)[:, place], emb_BED[:, last])


def test_a_batch_gets_the_hashed_ids_of_its_own(open_trainer: OpenTrainer) -> None:
    with open_trainer(Path("net")) as trainer:
        weights, _ = trainer.batches()
        batch = next(weights)[0]
        assert batch.bags is not None
        extended = trainer.recommender.hashed(batch).bags
        assert extended is not None
        table = next(each for each in trainer.space.tables.tables if each.name == "user")
        own, hashed = batch.bags["user"], extended["user@0_5"]
        ids = hashed_ids(table.rows, table.hashed_rows[table.shares.index(0.5)])
        assert torch.equal(hashed.lengths(), own.lengths())
        assert torch.equal(hashed.values(), ids[own.values()])
        assert len(set(hashed.values().tolist())) > 5
        assert torch.equal(extended["user"].values(), own.values())


def test_the_logits_of_the_super_net_take_both_signs(open_trainer: OpenTrainer) -> None:
    """A ReLU before the sigmoid would make every prediction at least the base rate."""
    with open_trainer(Path("net")) as trainer:
        net = trainer.recommender.net
        net.masks = hard_masks(trainer.space.decisions, {each.name: 0 for each in trainer.space.decisions})
        torch.manual_seed(0)
        for parameter in net.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=2 * parameter.shape[-1] ** -0.5)
        logits_BT = net.logits(torch.randn(64, net.dims.dense), torch.randn(64, net.dims.features, net.dims.dim))
        assert logits_BT.min() < 0 < logits_BT.max()


def test_ids_are_hashed_evenly_and_missing_ones_stay() -> None:
    ids = hashed_ids(1000, 101)
    assert int(ids[0]) == 0
    assert set(ids[1:].tolist()) == set(range(1, 101))
