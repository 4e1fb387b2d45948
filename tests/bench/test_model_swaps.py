"""The benchmark of swaps finds right answers right, and notices wrong and failed ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.system.model_swaps import CHECKPOINTS, Answer, Swaps, answers, requests, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("swaps"))


@pytest.fixture(scope="module")
def expected(run: Path) -> dict[int, list[Answer]]:
    return answers(run, requests())


def test_swaps_under_load_give_right_answers(run: Path, expected: dict[int, list[Answer]]) -> None:
    tally, seconds, resident = Swaps(run, requests(), expected).run(4, print)
    assert (tally.failures, tally.wrong) == ([], 0)
    assert tally.answers > 0
    assert len(seconds) == len(resident) == 4


def test_answers_of_no_model_in_use_are_counted(run: Path, expected: dict[int, list[Answer]]) -> None:
    others = {step: [np.nextafter(answer, np.float32(1)) for answer in expected[step]] for step in CHECKPOINTS}
    tally, _, _ = Swaps(run, requests(), others).run(1, print)
    assert tally.wrong == tally.answers > 0
    unreadable = [{**request, "item": [2**70] * 8} for request in requests()]
    tally, _, _ = Swaps(run, unreadable, expected).run(1, print)
    assert len(tally.failures) == tally.answers > 0
    assert "column 'item': received" in tally.failures[0]
