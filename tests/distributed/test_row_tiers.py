"""Tables whose rows are in tiers equal a single process: the same rows forward, the same weights after training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.ranks import run_ranks
from tests.distributed.tier_cases import (
    CPU,
    OPTIMIZERS,
    ROWS,
    tiers_of,
    trained,
    trained_all,
)
from ziggurat.core.plan import Plan
from ziggurat.training.process_group import process_group

Results = dict[tuple[str, str], dict[str, Any]]
STEPS = 50
ALL = {name: (rows, 0) for name, rows in ROWS.items()}
NONE = dict.fromkeys(ROWS, (0, 0))
WORLDS = [(4, 2), (8, 4), (4, 1), (6, 2)]


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """Returns optimizer -> the result of a single process."""
    with process_group(CPU):
        return {each["name"]: trained(Plan.single_device(ROWS), each, STEPS) for each in OPTIMIZERS}


def compared(ranks: list[Results], alone: dict[str, dict[str, Any]]) -> None:
    """Compares the results of all ranks with those of a single process."""
    for case, found in ranks[0].items():
        expected = alone[case[1]]
        for feature, rows in expected["first"].items():
            ours = torch.cat([rank[case]["first"][feature] for rank in ranks])
            assert torch.equal(ours, rows), (case, feature)
        for ours, theirs in zip(found["whole"], expected["whole"], strict=True):
            assert ours.keys() == theirs.keys()
            for name, tensor in theirs.items():
                torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-6)
        assert not any(rank[case]["unequal"] for rank in ranks), case


@pytest.mark.parametrize(("world_size", "local_size"), WORLDS)
def test_training_equals_a_single_process(world_size: int, local_size: int, alone: dict[str, dict[str, Any]]) -> None:
    """History by position, item and user in shared tables, and bags; copies agree to the bit after every step."""
    plans = {"tiers": tiers_of(world_size, local_size)}
    compared(run_ranks(world_size, trained_all, plans, STEPS), alone)
