"""The policies decide which rows the next checkpoint writes."""

from __future__ import annotations

import pytest

from ziggurat.checkpoint.config import CheckpointsConfig, Policy
from ziggurat.checkpoint.format.manifest import Reference
from ziggurat.checkpoint.policy import FULL, Chain


def chain_after_full(policy: Policy) -> Chain:
    """Returns a chain with a full checkpoint of step 10."""
    chain = Chain(CheckpointsConfig(policy=policy))
    chain.add(FULL, Reference(step=10, id="a"), 1.0)
    return chain


@pytest.mark.parametrize("policy", ["one_shot", "consecutive", "intermittent"])
def test_a_delta_of_nearly_all_rows_is_written_in_full(policy: Policy) -> None:
    assert chain_after_full(policy).next(20, 0.9, 0.9) == FULL
    assert chain_after_full(policy).next(20, 0.89, 0.89).kind == "delta"


def test_each_policy_measures_deltas_from_its_own_reference() -> None:
    assert chain_after_full("consecutive").next(20, since_base=1.0, since_last=0.5).rows == "last"
    assert chain_after_full("one_shot").next(20, since_base=0.95, since_last=0.1) == FULL
    assert chain_after_full("full").next(20, 0.0, 0.0) == FULL
