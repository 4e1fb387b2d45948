"""Training on a GPU learns what it learns on the CPU, repeats and resumes bit for bit.

Tolerances: both devices start with the same bits and see the same rows, and sum float32 numbers in other orders. The
loss before the first update then differs by some 1e-7 of itself. Each step adds such differences, which stay below 1e-4
over twelve steps of SGD; Adam's first steps divide a gradient by itself, which turns the rounding of a gradient near
zero into a whole step, so its bound is 2e-3. A wrong gradient shows in the second digit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cuda.conftest import WANTED, Make
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.core.parts import built_in
from ziggurat.models import ModelConfig
from ziggurat.models.model import ModelSettings
from ziggurat.optim.dense import DenseOptimizerConfig
from ziggurat.optim.dense_optimizer import DenseOptimizerSettings
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log

STEPS = 12
FIRST, SGD, ADAM = 1e-5, 1e-4, 2e-3
MODELS = [kind().title for kind in built_in(ModelConfig, ModelSettings)]
DENSE = [kind().title for kind in built_in(DenseOptimizerConfig, DenseOptimizerSettings)]
DENSE_SETTINGS: list[dict[str, Any]] = [
    *({"name": name, "lr": 0.01} for name in DENSE if name != "shampoo"),
    {"name": "shampoo", "lr": 0.01, "start": 2, "precondition_frequency": 3},
    {"name": "shampoo", "lr": 0.01, "start": 2, "precondition_frequency": 3, "form": "roots", "late": 1},
    {"name": "shampoo", "lr": 0.01, "start": 2, "precondition_frequency": 3, "root": "qr"},
    {"name": "shampoo", "lr": 0.01, "start": 2, "precondition_frequency": 3, "form": "roots", "root": "newton"},
]
ROWS: list[dict[str, Any]] = [
    {"name": "sgd", "lr": 0.5},
    {"name": "adagrad", "lr": 0.1},
    {"name": "rowwise_adagrad", "lr": 0.1},
    {"name": "adam", "lr": 0.01},
    {"name": "adam", "lr": 0.01, "rows": "all", "l2": 0.001},
]


def losses(experiment: Experiment, run: str, stops: tuple[int | None, ...] = (None,)) -> list[float]:
    """Trains, stopping at each of ``stops``; returns the loss of each step."""
    for stop in stops:
        api.train(experiment, run, stop_after=stop)
    return [each["loss"] for each in read_metrics_log(Path(run) / "metrics.jsonl") if each["split"] == "train"]


def assert_close(found: list[float], expected: list[float], bound: float, first: float = FIRST) -> None:
    assert len(found) == len(expected) == STEPS
    assert found[0] == pytest.approx(expected[0], rel=first)
    assert found == pytest.approx(expected, rel=bound)


def on_both(make: Make, bound: float, **changes: Any) -> None:
    changes = {"training__max_steps": STEPS, **changes}
    here = losses(make(**changes), "device")
    assert_close(here, losses(make(**changes, training__device="cpu"), "cpu"), bound)
    assert here[-1] != here[0]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_the_same(make: Make, model: str) -> None:
    on_both(make, SGD, model={"name": model}, optimizer={"name": "sgd", "lr": 0.05})


@pytest.mark.parametrize("optimizer", DENSE_SETTINGS, ids=lambda each: "-".join(map(str, each.values())))
def test_every_dense_optimizer_makes_the_same_steps(make: Make, optimizer: dict[str, Any]) -> None:
    on_both(make, ADAM, optimizer=optimizer)
    changes = {"optimizer": optimizer, "training__max_steps": STEPS}
    losses(make(**changes), "parts", (7, None))
    assert_same_bits(tensors(Path("device"), STEPS), tensors(Path("parts"), STEPS))


@pytest.mark.parametrize("optimizer", ROWS, ids=lambda each: "-".join(map(str, each.values())))
def test_every_row_optimizer_makes_the_same_steps_and_resumes(make: Make, optimizer: dict[str, Any]) -> None:
    changes = {"embeddings__optimizer": optimizer, "optimizer": {"name": "sgd", "lr": 0.05}}
    on_both(make, ADAM if optimizer["name"] == "adam" else SGD, **changes)
    changes["training__max_steps"] = STEPS
    losses(make(**changes), "again")
    assert_same_bits(tensors(Path("device"), STEPS), tensors(Path("again"), STEPS))
    losses(make(**changes), "parts", (3, 7, None))
    assert_same_bits(tensors(Path("device"), STEPS), tensors(Path("parts"), STEPS))


def test_evaluations_do_not_change_adams_steps(make: Make) -> None:
    changes = {"embeddings__optimizer": {"name": "adam", "lr": 0.01}, "training__max_steps": STEPS}
    for run, every in (("seldom", STEPS), ("often", 2)):
        api.train(make(**changes, training__evaluate_every=every), run)
    assert_same_bits(tensors(Path("seldom"), STEPS), tensors(Path("often"), STEPS))


@pytest.mark.skipif(WANTED != "cuda", reason="the CPU's kernel has no weight decay")
def test_weight_decay_of_row_wise_adagrad_shrinks_rows(make: Make) -> None:
    for run, decay in (("plain", 0.0), ("decayed", 0.5)):
        optimizer = {"name": "rowwise_adagrad", "lr": 0.1, "weight_decay": decay}
        api.train(make(embeddings__optimizer=optimizer, training__max_steps=STEPS), run)
    plain, decayed = (tensors(Path(run), STEPS)["tables:item"].norm() for run in ("plain", "decayed"))
    assert decayed < plain


@pytest.mark.parametrize(
    "changes",
    [
        {"training__accumulate": 3, "training__clip_norm": 1.0, "embeddings__l2": 0.01},
        {"training__activation_checkpointing": True, "model": {"name": "wukong"}},
        {"training__weight_average": 0.9, "model__deep__norm": "batch"},
        {"data__weight": "age_weight"},
        {"data__labels": [{"name": "click"}, {"name": "buy"}], "model": {"name": "dnn", "head": {"name": "ple"}}},
        {"embeddings__tables": {"item": {"dim": 4, "vectors": 2}}, "model": {"name": "wukong", "layers": 1}},
        {"embeddings__groups": [{"features": ["user", "tags"]}]},
    ],
    ids=["accumulated", "recomputed", "averaged", "weighted", "two_labels", "vectors", "groups"],
)
def test_every_way_to_train_is_the_same(make: Make, changes: dict[str, Any]) -> None:
    if "data__weight" in changes:
        header, *rows = Path("log.csv").read_text().splitlines()
        weighted = (f"{row},{1 + number % 3}" for number, row in enumerate(rows))
        Path("log.csv").write_text("\n".join([f"{header},age_weight", *weighted, ""]))
    on_both(make, SGD, optimizer={"name": "sgd", "lr": 0.05}, **changes)


def test_in_batch_negatives_are_learned_the_same(make: Make) -> None:
    """The batch is made on the host, before it is moved; its weights, many of them 0, decide which rows count."""
    negatives = {"name": "in_batch", "user": "user", "item": "item", "item_columns": ["tags"], "per_positive": 3}
    changes: dict[str, Any] = {"data__negatives": negatives | {"evaluation": 5}}
    changes["optimizer"] = {"name": "sgd", "lr": 0.05}
    on_both(make, SGD, **changes)
    changes["training__max_steps"] = STEPS
    losses(make(**changes, training__prefetch=0), "parts", (5, None))
    assert_same_bits(tensors(Path("device"), STEPS), tensors(Path("parts"), STEPS))


POOLINGS: list[Any] = [
    "sum",
    "mean",
    {"name": "attention"},
    {"name": "target_attention", "target": "item"},
    {"name": "transformer", "layers": 2},
    {"name": "transformer", "target": "item"},
]


@pytest.mark.parametrize("pooling", POOLINGS, ids=lambda each: each if isinstance(each, str) else "-".join(each))
def test_every_pooling_of_a_sequence_learns_the_same(make: Make, pooling: Any) -> None:
    on_both(make, SGD, optimizer={"name": "sgd", "lr": 0.05}, features__history__pooling=pooling)


def test_bf16_stays_close(make: Make) -> None:
    """bf16 has 8 bits of mantissa; the loss is a mean over 128 rows."""
    changes = {"training__max_steps": STEPS, "optimizer": {"name": "sgd", "lr": 0.05}}
    whole = losses(make(**changes), "fp32")
    half = losses(make(**changes, training__precision="bf16"), "bf16")
    assert half == pytest.approx(whole, rel=5e-3)
    assert half != whole


def test_compiled_stays_close(make: Make) -> None:
    changes = {"training__max_steps": STEPS, "optimizer": {"name": "sgd", "lr": 0.05}}
    assert_close(losses(make(**changes, training__compile=True), "compiled"), losses(make(**changes), "plain"), SGD)


def test_a_seed_gives_the_same_bits_however_many_batches_are_prefetched(make: Make) -> None:
    """Also of dropout, whose masks are drawn on the device."""
    changes = {"training__max_steps": STEPS, "model": {"name": "deepfm", "deep": {"hidden": [32], "dropout": 0.2}}}
    for run, prefetch in (("none", 0), ("two", 2), ("again", 2)):
        api.train(make(**changes, training__prefetch=prefetch), run)
    api.train(make(**changes), "parts", stop_after=5)
    api.train(make(**changes), "parts")
    for run in ("two", "again", "parts"):
        assert_same_bits(tensors(Path("none"), STEPS), tensors(Path(run), STEPS))


def test_a_row_that_most_of_a_large_batch_looks_up_is_updated_the_same(make: Make) -> None:
    """FBGEMM has other kernels for rows with very many ids. Whether their sums repeat to the bit is printed."""
    draw = Path("log.csv").read_text().splitlines()
    Path("log.csv").write_text("\n".join([draw[0], *draw[1:] * 10, ""]))
    changes = {"features__tags__encoder": {"name": "hash", "rows": 2}, "training__batch_size": 16_384}
    changes |= {"optimizer": {"name": "sgd", "lr": 0.05}, "training__epochs": 12, "training__max_steps": STEPS}
    on_both(make, SGD, **changes)
    api.train(make(**changes), "again")
    first, again = tensors(Path("device"), STEPS), tensors(Path("again"), STEPS)
    worst = max(
        float((first[name].double() - again[name].double()).abs().max()) for name in first if first[name].numel()
    )
    print(f"largest difference between two runs on {WANTED}: {worst:.3g}")
    assert worst < 1e-3
