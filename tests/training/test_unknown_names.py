"""A name that does not exist is an error of ours that lists those that do, wherever Python code may pass one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import ziggurat
from tests.training.conftest import config_values, write_log
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError, unknown_name
from ziggurat.training.experiment import Experiment


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ziggurat.Run]:
    """A trained run, in the working directory."""
    folder = tmp_path_factory.mktemp("names")
    write_log(folder / "log.csv", 600)
    values = config_values(folder)
    values["training"] |= {"max_steps": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield ziggurat.train(parse_config(Experiment, values), "run").run


def untyped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function as code sees it that is not checked by types."""
    return cast("Callable[..., Any]", function)


METRICS = ziggurat.MetricSet(["click", "buy"], slices=["user"])
PLAN = ziggurat.Plan.single_device(["user", "item"])
SPLITS = "available: train, validation, test"
CALLS: dict[str, tuple[Callable[[ziggurat.Run], Any], str]] = {
    "a split to evaluate": (lambda run: untyped(ziggurat.evaluate)(run, "tset"), f"did you mean test? {SPLITS}"),
    "a split of a dataset": (lambda run: untyped(run.dataset().split)("dev"), SPLITS),
    "a split that is a list": (lambda run: untyped(run.dataset().split)(["test"]), SPLITS),
    "a part of a dataset": (lambda run: run.dataset().checksum("encoder"), "available: encoders, statistics"),
    "a split to fit a law on": (
        lambda run: untyped(ziggurat.scale)(run.experiment, split="train"), "choose test or validation"
    ),
    "a checkpoint": (lambda run: ziggurat.evaluate(run, "test", "lats"), "'best', 'last' nor a step"),
    "a policy for bad rows": (
        lambda run: untyped(ziggurat.predict_files)(run, "log.csv", "out.csv", on_bad_row="skip"),
        "available: fail, quarantine",
    ),
    "a task": (lambda run: METRICS["clik"], "did you mean click? available: click, buy"),
    "a table of a plan": (lambda run: PLAN.row_parts("itm"), "did you mean item? available: user, item"),
    "a sharding": (
        lambda run: untyped(PLAN.placed)("user", "rowwise", [0]), "row_wise? available: table_wise, row_wise"
    ),
    "a table of a planned experiment": (
        lambda run: ziggurat.plan(run.experiment).shards_of("users"), "did you mean user? available: user, item"
    ),
    "a dataset": (lambda run: ziggurat.find_dataset("adlut"), "did you mean adult? available: movielens-100k"),
    "a device": (lambda run: untyped(ziggurat.measure_lookups)("out", "cdua"), "available: auto, cpu, cuda"),
    "a group of tensors": (
        lambda run: ziggurat.Follower("run/checkpoints", groups=["averge"]).advance(), "name some of ['dense"
    ),
    "a table to follow": (lambda run: ziggurat.Follower("run/checkpoints", ["usr"]).advance(), "user"),
    "a label": (lambda run: ziggurat.draft_config("log.csv", "clik"), "click"),
    "memory": (lambda run: ziggurat.plan(run.experiment, memory="8 apples"), "8 apples"),
    "a setting of Shampoo": (
        lambda run: ziggurat.Shampoo([__import__("torch").nn.Parameter()], form="root"), "roots"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_it_is_an_error_that_lists_the_names(run: ziggurat.Run, name: str) -> None:
    call, listed = CALLS[name]
    with pytest.raises(ziggurat.ZigguratError) as caught:
        call(run)
    assert listed in str(caught.value)


def test_nothing_is_written_by_a_refused_call(run: ziggurat.Run) -> None:
    assert {path.name for path in Path().iterdir()} == {"log.csv", "prepared", "run"}


def test_ids_of_a_slice_that_are_missing_are_named() -> None:
    with pytest.raises(ziggurat.DataError, match=r"slice_ids: has no ids of 'user'; there are: item") as caught:
        METRICS.update(np.zeros((1, 2)), np.zeros((1, 2)), slice_ids={"item": np.zeros(1)})
    assert caught.value.hint == "give those of user, one id a row"


def test_what_is_received_is_quoted_and_shortened() -> None:
    error = unknown_name("split", "x" * 1000, ["train", "test"])
    assert isinstance(error, ConfigError)
    assert error.problem.startswith("no split is called 'xxx")
    assert len(error.problem) < 100
    assert error.hint == "available: train, test"
    assert unknown_name("table", "user", []).hint == "available: none"
