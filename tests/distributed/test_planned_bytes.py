"""The memory that a plan predicts equals that of the tables on real ranks, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.ranks import run_ranks
from tests.distributed.test_sharding import DIM, ROWS, SCHEMA
from ziggurat.core.plan import Plan
from ziggurat.core.topology import DeviceKind, Topology
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import Layout, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.embeddings.replicated import is_replicated
from ziggurat.planning import PlanEstimate, plan_tables
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.constraints import must_replicate
from ziggurat.training.process_group import process_group

CPU = torch.device("cpu")
OPTIMIZERS: list[dict[str, Any]] = [
    *({"name": name} for name in ("sgd", "adagrad", "rowwise_adagrad", "adam")), {"name": "adam", "rows": "all"},
]  # fmt: skip


def layout(optimizer: dict[str, Any]) -> Layout:
    return lay_out(EmbeddingsConfig.model_validate({"dim": DIM, "optimizer": optimizer}), SCHEMA, {})


def planned(optimizer: dict[str, Any], devices: int, **shardings: str) -> PlanEstimate:
    config = PlanningConfig.model_validate({"tables": {name: {"sharding": how} for name, how in shardings.items()}})
    topology = Topology(1, devices, "test", "cpu", 10**9, 1e10, 1e9, 1e9)
    return plan_tables(layout(optimizer).tables, None, topology, config, 12)


def held(rank: int, plan: Plan, optimizer: dict[str, Any]) -> tuple[int, int]:
    """Returns the bytes of weights and optimizer states on this rank, without a table's count of steps."""
    lookup = EmbeddingLookup(layout(optimizer), plan, CPU, seed=0)
    weights = lookup.weights().values()
    states = [state for name, state in lookup.optimizer_state().items() if not name.endswith("/steps")]
    return sum(each.nbytes for each in weights), sum(each.nbytes for each in states)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_one_process(optimizer: dict[str, Any]) -> None:
    found = planned(optimizer, 1)
    with process_group(CPU):
        weights, states = held(0, found.plan, optimizer)
    assert [(load.weight_bytes, load.state_bytes) for load in found.devices] == [(weights, states)]
    assert weights == 4 * DIM * sum(ROWS.values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:3], ids=str)
def test_two_ranks_of_every_kind(optimizer: dict[str, Any]) -> None:
    found = planned(optimizer, 2, user="row_wise", item="column_wise", tags="data_parallel")
    ranks = run_ranks(2, held, found.plan, optimizer)
    assert [(load.weight_bytes, load.state_bytes) for load in found.devices] == ranks


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_planning_and_tables_agree_on_what_has_no_kernel(optimizer: dict[str, Any], kind: DeviceKind) -> None:
    for spec in layout(optimizer).tables:
        assert must_replicate(spec, kind) == is_replicated(spec, torch.device(kind), "table_wise")
