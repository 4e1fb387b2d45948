"""The rounds of the benchmark `flexshard`: no way always follows the same other, and neither figure is always first."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from bench.lab.tier_worker import Contestant, in_turn
from bench.system.flexshard import FLEX, SPLIT, _without_copies
from ziggurat.core.plan import Plan

NAMES = ["flexshard", "rows", "recshard", "torchrec"]


def test_ways_have_another_order_in_each_round() -> None:
    before: defaultdict[str, set[str]] = defaultdict(set)
    for turn in range(6):
        order = in_turn(NAMES, turn)
        assert sorted(order) == sorted(NAMES)
        assert order == in_turn(NAMES, turn)  # each rank draws it by itself
        for first, second in pairwise(order):
            before[second].add(first)
    assert all(len(others) > 1 for others in before.values())


@pytest.mark.parametrize("step_first", [False, True])
def test_the_step_is_timed_first_or_last(step_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []
    contestant: Any = object.__new__(Contestant)
    monkeypatch.setattr(contestant, "_seconds", lambda steps, work: timed.append(work.__name__) or len(timed))
    monkeypatch.setattr("bench.lab.tier_worker.sent_bytes", lambda: np.zeros(2))
    contestant.way = type("NoTraffic", (), {"traffic": lambda self: {}})()
    found = contestant.measured(1, step_first=step_first)
    assert timed == (["_encoded", "_exchanged"] if step_first else ["_exchanged", "_encoded"])
    assert (found["step"], found["communication"]) == ((1, 2) if step_first else (2, 1))


def test_plans_without_copies_are_named() -> None:
    def plan(copied: int, note: str) -> dict[str, Any]:
        made = Plan(2, {}, 1, (note,)).placed("item", "row_tiers", range(2), copied_rows=copied, host_rows=0)
        return made.to_json()

    cases = [
        {"name": name, "plans": {FLEX: plan(copied, "ours"), SPLIT: plan(0, "")}}
        for name, copied in (("even", 0), ("hot", 3))
    ]
    assert _without_copies(cases) == ["even"]
