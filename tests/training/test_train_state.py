"""The state of a training in a checkpoint comes back as it was saved, and what is none is named."""

from __future__ import annotations

from typing import Any

import pytest

from ziggurat.core.errors import RunFolderError
from ziggurat.core.untrusted import Damage
from ziggurat.data.encoded.loader import Cursor
from ziggurat.training.train_state import TrainState

DAMAGE = Damage(RunFolderError, "take another")
STATE = TrainState(step=7, cursor=Cursor(1, 640), best=0.7, best_step=5, stale=2)


@pytest.mark.parametrize(
    "state", [TrainState(), STATE, TrainState(best=float("-inf"), best_step=0, stopped_early=True)]
)
def test_a_state_comes_back(state: TrainState) -> None:
    assert TrainState.from_json(state.to_json() | {"later": 1}, "here", DAMAGE) == state


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"step": None}, "step: expected a valid integer, received None"),
        ({"step": 1.5}, "step: expected a valid integer, received 1.5"),
        ({"step": -1}, "step: received -1, expected 0 to"),
        ({"step": 10**300}, "step: received 1000"),
        ({"cursor": [1]}, "cursor.1"),
        ({"cursor": [1, -640]}, "cursor.1: received -640"),
        ({"cursor": {"epoch": 1}}, "cursor: expected a valid array"),
        ({"best": "high"}, "best: expected a valid number, received 'high'"),
        ({"best_step": "5"}, "best_step: expected a valid integer"),
        ({"stopped_early": 1}, "stopped_early: expected a valid boolean"),
    ],
)
def test_what_is_no_state_is_named(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(RunFolderError) as told:
        TrainState.from_json(STATE.to_json() | change, "step-7: state", DAMAGE)
    assert told.value.problem.startswith(f"step-7: state: {expected}") or expected in told.value.problem
    without = {key: value for key, value in STATE.to_json().items() if key not in change}
    with pytest.raises(RunFolderError, match="step-7: state: lacks"):
        TrainState.from_json(without, "step-7: state", DAMAGE)
    with pytest.raises(RunFolderError, match="step-7: state: expected an object"):
        TrainState.from_json([without], "step-7: state", DAMAGE)
