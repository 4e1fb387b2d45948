"""Batches are predicted side by side and ahead of their use, and nobody can tell from the results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import DataError, ZigguratError
from ziggurat.training import api, recommender
from ziggurat.training.prediction.forward_threads import forward_threads, one_ahead

CPU = torch.device("cpu")


def test_each_thread_computes_alone_and_the_setting_returns() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with forward_threads(CPU) as threads:
            inside = [threads.submit(torch.get_num_threads).result() for _ in range(6)]
            here = torch.get_num_threads()
        assert (inside, here, torch.get_num_threads()) == ([1] * 6, 3, 3)
    finally:
        torch.set_num_threads(before)


def test_no_thread_fails_as_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    """Work may end before some of the threads have gone on from their common start."""
    before = torch.get_num_threads()
    torch.set_num_threads(16)
    try:
        for _ in range(30):
            with forward_threads(CPU) as threads:
                threads.submit(int).result()
    finally:
        torch.set_num_threads(before)
    assert caplog.text == ""


def test_threads_that_cannot_be_started_are_told_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(threading.Thread, "start", limited)
    try:
        with pytest.raises(ZigguratError, match="thread"), forward_threads(CPU):
            pass
    finally:
        torch.set_num_threads(before)
    assert len(started) == 2
    assert not any(thread.is_alive() for thread in started)


def test_the_next_item_is_started_before_a_result_is_awaited_and_the_order_is_kept() -> None:
    events: list[str] = []

    def start(item: int) -> Callable[[], int]:
        events.append(f"start {item}")

        def result() -> int:
            events.append(f"end {item}")
            return 10 * item

        return result

    assert list(one_ahead(iter([1, 2, 3]), start)) == [(1, 10), (2, 20), (3, 30)]
    assert events == ["start 1", "start 2", "end 1", "start 3", "end 2", "end 3"]
    assert list(one_ahead(iter([]), start)) == []


@pytest.mark.parametrize("fails_at", ["item", "start", "result"])
def test_an_error_is_raised_after_the_results_of_earlier_items(fails_at: str) -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        if fails_at == "item":
            raise DataError("broken", "mend it")
        yield 3

    def start(item: int) -> Callable[[], int]:
        if item == 3 and fails_at == "start":
            raise DataError("broken", "mend it")

        def result() -> int:
            if item == 3:
                raise DataError("broken", "mend it")
            return item

        return result

    seen: list[int] = []
    results = one_ahead(items(), start)
    with pytest.raises(DataError, match="broken"):
        for item, _ in results:
            seen.append(item)
    assert seen == [1, 2]


@pytest.mark.parametrize("model", ["deepfm", "dcn_v2"])
def test_pieces_of_a_batch_have_the_predictions_of_the_whole(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    run = api.train(make_experiment(model={"name": model}, training__epochs=1), "run").run.folder
    rows = {name: values for name, values in _log().items() if name != "click"}
    with api.Predictor(run) as predictor:
        whole = predictor.predict(rows)
        assert predictor.recommender.is_shareable
        monkeypatch.setattr(recommender, "CACHED_ROWS", 700)
        pieces = predictor.predict(rows)
    assert np.abs(pieces - whole).max() <= 1e-6


def _log() -> dict[str, list[str]]:
    return pl.read_csv(Path("log.csv"), infer_schema_length=0).to_dict(as_series=False)
