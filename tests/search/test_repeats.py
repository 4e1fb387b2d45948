"""Settings that were tried are not tried again, and a search ends when there are no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.conftest import MakeExperiment, RecordedNotes
from ziggurat.search.dimension import Choice, Interval
from ziggurat.search.hyperparameters import search_hyperparameters
from ziggurat.search.repeats import is_exhausted, twin
from ziggurat.search.space import Space
from ziggurat.search.study import State, TrialRecord


def _record(
    number: int, settings: dict[str, object], state: State = "complete", same: int | None = None
) -> TrialRecord:
    value = 0.5 if state == "complete" else None
    return TrialRecord(number, state, settings, value, (), {}, 1, 1.0, "", same)


def test_a_twin_is_a_trial_that_was_trained_with_equal_settings() -> None:
    records = [_record(0, {"a": 0.0}), _record(1, {"a": 0}, same=0), _record(2, {"a": 2}, "pruned")]
    found = twin(records, {"a": 0})
    assert found is not None
    assert found.number == 0
    assert twin(records, {"a": 2}) is None
    assert twin(records, {"a": False}) is None


@pytest.mark.parametrize(
    ("space", "tried", "exhausted"),
    [
        ({"a": Choice((0, 1)), "b": Choice((0, 1))}, [(0, 0), (0, 1), (1, 0)], False),
        ({"a": Choice((0, 1)), "b": Choice((0, 1))}, [(0, 0), (0, 1), (1, 0), (1.0, 1)], True),
        ({"a": Choice((0, 1)), "b": Choice((0, 1))}, [(7, 0), (0, 1), (1, 0), (1, 1)], False),
        ({"a": Interval(1, 2), "b": Choice((0, 1))}, [(1, 0), (1, 1), (2, 0), (2, 1)], True),
        ({"a": Interval(1.0, 2.0), "b": Choice((0, 1))}, [(1, 0), (1, 1), (2, 0), (2, 1)], False),
    ],
)
def test_a_space_is_exhausted_when_all_of_it_was_tried(
    space: Space, tried: list[tuple[float, int]], exhausted: bool
) -> None:
    records = [_record(number, {"a": a, "b": b}, "pruned") for number, (a, b) in enumerate(tried)]
    assert is_exhausted(records, space) is exhausted


def test_a_small_space_is_tried_once(make_experiment: MakeExperiment) -> None:
    Path("space.yaml").write_text("search: {space: {optimizer.lr: [0.002, 0.01], model.deep.dropout: [0, 0.1]}}")
    progress = RecordedNotes()
    searched = search_hyperparameters(
        make_experiment(optimizer={"lr": 0.01}, training__epochs=1),
        trials=40, space="space.yaml", seed=4, ensemble=9, progress=progress,
    )  # fmt: skip
    trained = [each for each in searched.trials if each.same_as is None]
    repeated = [each for each in searched.trials if each.same_as is not None]
    assert (len(trained), len(repeated)) == (4, 1)
    for each in repeated:
        assert each.value == searched.trials[each.same_as or 0].value
        assert (each.state, each.seconds, each.steps) == ("complete", 0, 0)
    assert searched.missing == 0
    assert any("no further settings" in note for note in progress.notes)
    assert searched.ensemble is not None
    assert sorted(searched.ensemble.trials) == [each.number for each in trained]
    lines = [json.loads(line) for line in (searched.folder / "trials.jsonl").read_text().splitlines()]
    assert [line.get("same_as") for line in lines] == [each.same_as for each in searched.trials]
    assert f"complete, as trial {repeated[0].same_as}" in (searched.folder / "search.html").read_text("utf-8")
