"""θ stays within the limits by a projection, its temperature and its rows do not depend on how long it is trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.search.architecture.conftest import OpenTrainer, small_config
from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.search.architecture.config import SuperNetConfig
from ziggurat.search.architecture.drawing import draw_architectures
from ziggurat.search.architecture.dry_run import predict_search
from ziggurat.search.architecture.space.decision import Decision, hard_masks
from ziggurat.search.architecture.space.whole_space import WholeSpace
from ziggurat.search.architecture.supernet.loop import SuperNetTrainer
from ziggurat.search.architecture.supernet.opened import opened_super_net
from ziggurat.search.architecture.supernet.projection import Projection
from ziggurat.search.architecture.supernet.relaxation import Logits
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.preparation import prepare
from ziggurat.training.process_group import process_group
from ziggurat.training.signals import StopRequest

Inspect = Callable[[SuperNetTrainer], Any]


class TwoChoices:
    """A space whose cost is 1 or 3, by one decision; a second decision costs nothing."""

    decisions = (Decision("dear", (1, 3)), Decision("free", (0, 1)))

    def expected_costs(self, probabilities: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"flops": (probabilities["dear"] * torch.tensor([1.0, 3.0], dtype=torch.float64)).sum()}


def opened(experiment: Any, config: Any, inspect: Inspect, folder: str = "net", passes: int | None = None) -> Any:
    """Returns what ``inspect`` returns of the freshly opened super-net of a search."""
    dataset, device = prepare(experiment), torch.device("cpu")
    Path(folder).mkdir()
    with process_group(device):
        space = WholeSpace(config.space, config.tables, experiment, dataset.schema)
        limits = config.limits.resolved(space.own_costs())
        with opened_super_net(space, dataset, Path(folder), device) as recommender:
            return inspect(
                SuperNetTrainer(
                    recommender, space, limits, config.supernet, dataset, Path(folder), device, 0, "same", Silent(),
                    passes,
                )
            )  # fmt: skip


def projected(limit: float, dear: list[float]) -> tuple[float, Logits]:
    space = TwoChoices()
    logits = Logits(space.decisions, 0)
    logits.load({"dear": torch.tensor(dear), "free": torch.tensor([0.3, -0.3])})
    return Projection(logits, space, {"flops": limit})(), logits  # pyright: ignore[reportArgumentType]


def test_the_projection_by_hand() -> None:
    """Two choices that cost 1 and 3 cost 1.5 in the mean if the dear one has the probability 1/4: θ₁ − θ₀ = −log 3.

    The nearest such point moves both logits equally far, and leaves what costs nothing alone.
    """
    left, logits = projected(1.5, [0.2, 0.2])
    assert left <= 1e-6
    found = logits.parameters["dear"].detach()
    assert found.tolist() == pytest.approx([0.2 + math.log(3) / 2, 0.2 - math.log(3) / 2], abs=1e-4)
    assert logits.parameters["free"].tolist() == pytest.approx([0.3, -0.3])
    left, logits = projected(1.5, [2.0, 0.0])  # within the limit: nothing moves
    assert left == 0
    assert logits.parameters["dear"].tolist() == [2.0, 0.0]


def test_a_projection_comes_back_from_far_and_from_a_limit_that_none_keeps() -> None:
    left, logits = projected(1.5, [-4.0, 4.0])
    assert left <= 1e-6
    assert float(logits.probabilities()["dear"][1].detach()) == pytest.approx(0.25, abs=1e-4)
    left, logits = projected(0.5, [0.0, 0.0])
    assert left == pytest.approx(math.log(2), abs=0.05)  # the cheapest costs 1
    assert float(logits.parameters["dear"].detach().abs().max()) < 10  # and θ can still come back


@pytest.mark.parametrize("share", [0.75, 0.9])
def test_expected_costs_keep_the_limits_before_and_after_each_step(
    make_experiment: MakeExperiment, share: float
) -> None:
    """What θ = 0 draws costs more than the limits; a step of the architecture moves it, and it keeps them."""
    experiment = make_experiment()
    config = small_config()
    space = WholeSpace(config.space, config.tables, experiment, prepare(experiment).schema)
    equal = {each.name: torch.full((len(each.choices),), 1 / len(each.choices)) for each in space.decisions}
    limits = {name: share * float(cost) for name, cost in space.expected_costs(equal).items()}

    def inspect(trainer: SuperNetTrainer) -> None:
        _, held = trainer.batches()
        for number in range(4):
            costs = trainer.space.expected_costs(trainer.logits.probabilities())
            for name, limit in limits.items():
                assert float(costs[name].detach()) <= limit * (1 + 1e-5), (number, name)
            before = {name: each.detach().clone() for name, each in trainer.logits.parameters.items()}
            trainer.architecture_step(next(held))
            assert any(not torch.equal(before[name], each) for name, each in trainer.logits.parameters.items())

    opened(experiment, small_config(limits=limits), inspect)


def test_a_limit_is_in_no_moment_of_the_optimizer(open_trainer: OpenTrainer) -> None:
    """The gradients of a step are those of the data, however far above the limits θ is."""
    with open_trainer(Path("net")) as trainer:
        _, held = trainer.batches()
        batch, stepper = next(held), trainer.architecture
        trainer.recommender.eval()
        _, wide = stepper.gradients(batch, 0.7, 3)
        assert float(stepper.penalty()) == 0.0
        stepper._limits = {"flops": 1.0, "bytes": 1.0}  # pyright: ignore[reportPrivateUsage]
        _, narrow = stepper.gradients(batch, 0.7, 3)
    assert all(torch.equal(wide[name], narrow[name]) for name in wide)


@pytest.mark.parametrize("epochs", [1, 4])
def test_the_last_temperature_does_not_depend_on_the_passes(make_experiment: MakeExperiment, epochs: int) -> None:
    """A rate by epochs would end a long training at a temperature at which θ gets no gradient."""

    def inspect(trainer: SuperNetTrainer) -> list[float]:
        found: list[float] = []
        for step in (0, trainer.warmup_steps, (trainer.warmup_steps + trainer.total_steps) // 2, trainer.total_steps):
            trainer.at.step = step
            found.append(trainer._temperature())  # pyright: ignore[reportPrivateUsage]
        return found

    config = small_config(supernet={"warmup_epochs": 1, "epochs": epochs, "temperature": 0.9, "last_temperature": 0.1})
    first, warm, half, last = opened(make_experiment(), config, inspect)
    assert (first, warm, last) == pytest.approx((0.9, 0.9, 0.1))
    assert half == pytest.approx(0.3, rel=0.1)  # the geometric mean
    with pytest.raises(ValueError, match=r"last_temperature is 0\.2, above temperature, 0\.1"):
        SuperNetConfig(temperature=0.1)


@pytest.mark.parametrize(("given", "rows"), [(None, 32), (50, 50)])
def test_steps_of_the_architecture_take_fewer_rows(
    make_experiment: MakeExperiment, given: int | None, rows: int
) -> None:
    """A quarter of a batch, so that there are four times as many steps; each row once in a pass."""
    supernet = {"warmup_epochs": 1, "epochs": 2, **({} if given is None else {"held_out_batch": given})}

    def inspect(trainer: SuperNetTrainer) -> tuple[list[int], int, int]:
        held = trainer._held  # pyright: ignore[reportPrivateUsage]
        _, batches = trainer.batches()
        sizes = [next(batches).size for _ in range(held.steps_per_epoch)]
        with StopRequest() as stop:
            trainer.train(stop, None)
        assert trainer.at.architecture_steps == trainer.steps_of_architecture
        return sizes, held.rows, trainer.at.architecture_steps

    sizes, in_all, steps = opened(make_experiment(training__batch_size=128), small_config(supernet=supernet), inspect)
    assert set(sizes[:-1]) == {rows}
    assert sum(sizes) == in_all
    assert steps == 2 * math.ceil(in_all / rows)


def test_a_held_out_batch_has_a_row_for_each_rank(open_trainer: OpenTrainer) -> None:
    with open_trainer(Path("net")) as trainer:
        trainer.config = trainer.config.model_copy(update={"held_out_batch": 2})
        with pytest.raises(ConfigError, match=r"supernet\.held_out_batch: received 2, which 3 ranks cannot share"):
            trainer._rows_of_held_batch(3)  # pyright: ignore[reportPrivateUsage]
        trainer.config = trainer.config.model_copy(update={"held_out_batch": None})
        assert trainer._rows_of_held_batch(500) == 500  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("given", "passes", "wanted"), [(None, 2, 2), (3, 2, 3), (None, None, 5)])
def test_the_super_net_trains_as_long_as_the_config_did(
    make_experiment: MakeExperiment, given: int | None, passes: int | None, wanted: int
) -> None:
    config = small_config(supernet={"warmup_epochs": 1, "epochs": given})
    made = opened(
        make_experiment(training__epochs=5),
        config,
        lambda trainer: (trainer.total_steps - trainer.warmup_steps, trainer.steps_per_epoch),
        passes=passes,
    )
    assert made[0] == wanted * made[1]


def test_a_step_moves_theta_by_the_learning_rate_against_the_gradient(open_trainer: OpenTrainer) -> None:
    """The first step of Adam is the rate times the sign of the gradient, where no limit is near."""
    with open_trainer(Path("net")) as trainer:
        trainer.architecture.project = lambda: 0.0  # pyright: ignore[reportAttributeAccessIssue]
        _, held = trainer.batches()
        batch = next(held)
        before = {name: each.detach().clone() for name, each in trainer.logits.parameters.items()}
        trainer.recommender.eval()
        _, gradients = trainer.architecture.gradients(batch, 1.0, 0)
        trainer.architecture(batch, 1.0, 0)
        moved = 0
        for name, each in trainer.logits.parameters.items():
            steep = gradients[name].abs() > 1e-5
            wanted = -trainer.config.lr * gradients[name].sign()
            torch.testing.assert_close((each.detach() - before[name])[steep], wanted[steep], rtol=0.01, atol=1e-4)
            moved += int(steep.sum())
        assert moved > 5


def test_a_step_of_the_weights_trains_what_theta_draws(open_trainer: OpenTrainer) -> None:
    """Where θ is certain of a choice, every step trains that one; before, both kinds of layers are trained."""
    with open_trainer(Path("net")) as trainer:
        for certain in (None, 0, 1):
            theta = trainer.logits.parameters["layer.1"]
            if certain is not None:
                theta.data.copy_(torch.eye(len(theta))[certain] * 60)
            drawn: set[int | None] = set()
            for step in range(20):
                trainer.at.step = step
                drawn.add(trainer._masks_of_weights()["layer.1"].hard)  # pyright: ignore[reportPrivateUsage]
            assert drawn == {certain} if certain is not None else {0, 1} <= drawn


def test_a_step_of_theta_computes_one_architecture_unless_masks_are_soft(open_trainer: OpenTrainer) -> None:
    with open_trainer(Path("net")) as trainer:
        _, held = trainer.batches()
        batch, stepper = next(held), trainer.architecture
        largest: dict[str, float] = {}
        for masks in ("hard", "soft"):
            stepper._config = trainer.config.model_copy(update={"masks": masks})  # pyright: ignore[reportPrivateUsage]
            stepper.gradients(batch, 1.0, 3)
            shares = trainer.recommender.net.masks["top.1.width"].shares.detach()
            largest[masks] = float(shares.max())
        assert largest["hard"] == pytest.approx(1.0)
        assert largest["soft"] < 0.99


def test_what_is_drawn_first_is_the_likeliest_and_is_ranked_on_validation(open_trainer: OpenTrainer) -> None:
    with open_trainer(Path("net")) as trainer, StopRequest() as stop:
        trainer.train(stop, 4)
        space, logits = trainer.space, trainer.logits
        cheapest = {name: 10 * cost for name, cost in space.own_costs().items()}
        generator = torch.Generator().manual_seed(2)
        for parameter in logits.parameters.values():
            parameter.data.copy_(torch.randn(len(parameter), generator=generator))
        (folder,) = Path("prepared").iterdir()
        dataset = Dataset(folder)
        (drawn,) = draw_architectures(trainer, cheapest, 1, dataset, stop, Silent()) or []
        likeliest = {name: int(each.argmax()) for name, each in logits.probabilities().items()}
        assert drawn.choices == likeliest
        trainer.recommender.net.masks = hard_masks(space.decisions, likeliest)
        values = {
            split: evaluate_split(
                trainer.recommender, dataset.split(split), dataset.schema, trainer.device, 4096
            ).compute()["log_loss"]
            for split in ("validation", "train")
        }
        assert drawn.value == pytest.approx(values["validation"], rel=1e-6)
        assert abs(drawn.value - values["train"]) > 1e-4


def test_a_dry_run_counts_every_part(make_experiment: MakeExperiment) -> None:
    """Without its own number of passes a super-net may stop with the config, so that the most is told."""
    experiment = make_experiment(training__epochs=2, training__early_stopping={"patience": 1})
    config = small_config(supernet={"warmup_epochs": 1})
    predicted = predict_search(experiment, config=config)
    assert predicted.is_most
    assert "super-net: at most" in predicted.text()
    assert "in all: at most" in predicted.text()
    parts = predicted.supernet_s, predicted.ranking_s, predicted.retraining_s
    assert all(each > 0 for each in parts)
    preparations = predicted.preparations * (predicted.preparation_s or 0.0)
    assert predicted.seconds == pytest.approx(sum(parts) + preparations)
    rows = Dataset(next(Path("prepared").iterdir())).split("train").rows
    size = experiment.training.batch_size
    held = round(0.2 * rows)
    passes, epochs = math.ceil((rows - held) / size), 2
    assert predicted.steps == (3 * passes, epochs * math.ceil(held / max(size // 4, 32)))


def test_vectors_of_all_widths_are_alike_at_the_beginning(open_trainer: OpenTrainer) -> None:
    """A narrow vector begins as the wide one, truncated and padded with zeros: with other maps, each draw of widths
    would compare two columns in another way, and nothing that multiplies them would be learnt."""
    with open_trainer(Path("net")) as trainer:
        tables, space = trainer.recommender.net.tables, trainer.space.tables
        emb_BED = torch.randn(3, trainer.recommender.net.dims.features, 8)
        found: list[torch.Tensor] = []
        for dim in (0, 1):
            choices = {each.name: dim if each.name.endswith(".dim") else 0 for each in space.decisions}
            fields_BFD = tables(emb_BED, hard_masks(space.decisions, choices))
            found.append(fields_BFD[:, tables.places])
        narrow_BFD, wide_BFD = found
        torch.testing.assert_close(narrow_BFD[..., :4], wide_BFD[..., :4])
        assert not narrow_BFD[..., 4:].any()


def test_theta_begins_by_preferring_the_largest_sizes_and_nothing_else(make_experiment: MakeExperiment) -> None:
    """Of widths, vectors and rows, with ``supernet.preference``; layers, skips and pairs begin at 0."""

    def inspect(trainer: SuperNetTrainer) -> dict[str, tuple[tuple[Any, ...], list[float]]]:
        decisions = {each.name: each.choices for each in trainer.space.decisions}
        return {name: (decisions[name], each.tolist()) for name, each in trainer.logits.parameters.items()}

    dear = {"flops": 1e12, "bytes": 1e12}
    found = opened(make_experiment(), small_config(supernet={"preference": 1.5}, limits=dear), inspect)
    assert {name.rpartition(".")[2] for name in found} >= {"width", "dim", "rows", "skip", "pairs"}
    for name, (choices, theta) in found.items():
        sized = name.endswith((".width", ".dim", ".rows"))
        largest = choices.index(max(choices)) if sized else None
        assert theta == [1.5 if place == largest else 0.0 for place in range(len(choices))], name
    plain = opened(make_experiment(), small_config(supernet={"preference": 0}, limits=dear), inspect, "plain")
    assert not any(any(theta) for _, theta in plain.values())
