"""TorchRec's planner: units, bytes, no output, the same plan in every process. The contract of all planners is tested
in test_planner_contract.py."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from planning_kit import statistics, table, topology
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning import PlanEstimate, plan_tables
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.placement import TableSplit
from ziggurat.planning.problem import Problem
from ziggurat.planning.torchrec_planner import TorchRec
from ziggurat.planning.torchrec_search import SearchSpace, search, torchrec_topology

BATCH = 1000


def config(**settings: object) -> PlanningConfig:
    return PlanningConfig.model_validate({"planner": {"name": "torchrec", **settings}})


def planned(specs: list[TableSpec], where: Topology, **settings: object) -> PlanEstimate:
    return plan_tables(specs, None, where, config(**settings), BATCH)


def seconds_of(split: TableSplit, where: Topology, rows: int = 1000, counted: DatasetStatistics | None = None) -> float:
    """Returns TorchRec's predicted seconds of the slowest device for one table of 128 columns with this split."""
    problem = Problem((table("t", rows, 128),), where, counted, BATCH)
    found = search(problem, {"t": [split]}, 0)
    assert found is not None
    return found.seconds


def test_times_are_those_of_torchrecs_model_in_our_units() -> None:
    """2,000 examples have one id each: 8 bytes read, 512 looked up and 512 written, twice that in the backward pass;
    512 bytes sent and 512 received. Bandwidths: 100 GB/s for look-ups, 10 GB/s within a host, 4 GB/s between hosts."""
    compute = 3 * 2000 * (8 + 512 + 512) / 1e11
    whole = TableSplit("table_wise", 1, (0,))
    assert seconds_of(whole, topology(1, 2)) == pytest.approx(compute + 2 * 2000 * 512 / 1e10)
    assert seconds_of(whole, topology(2, 1)) == pytest.approx(compute + 2 * 2000 * 512 / 4e9)
    assert seconds_of(whole, topology(1, 2, kind="cpu")) == seconds_of(whole, topology(1, 2))
    thrice = statistics(10, {"t": [1] * 30 + [0] * 970})
    assert seconds_of(whole, topology(1, 2), counted=thrice) == pytest.approx(
        3 * 2000 * (3 * 8 + 3 * 512 + 512) / 1e11 + 2 * 2000 * 512 / 1e10
    )


def test_all_reduces_run_at_the_bandwidth_of_their_link() -> None:
    """For a table's gradient: within a host the device's bandwidth, between hosts the host's whole bandwidth."""
    large, small = 2_000_000, 1_000_000
    for where, bandwidth in ((topology(1, 4), 1e10), (topology(2, 2), 4e9 / 1.5)):
        times = [seconds_of(TableSplit("data_parallel"), where, rows) for rows in (small, large)]
        slope = (times[1] - times[0]) / ((large - small) * 512)
        assert slope == pytest.approx(1 / bandwidth + 9.22 / 0.5e11)  # the rest: kernels over the whole gradient


SPLITS = [
    TableSplit("table_wise"), TableSplit("row_wise"), TableSplit("column_wise", 2), TableSplit("table_row_wise"),
    TableSplit("grid"), TableSplit("data_parallel"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_torchrecs_own_bytes_are_too_low(kind: str) -> None:
    """This is why ziggurat's own figures for the bytes of shards are used; see docs/planning.md."""
    where = topology(2, 2, kind="cpu" if kind == "cpu" else "cuda")
    ours, theirs = _bytes(table("t", 100_000), where, None)
    assert all(their < our for our, their in zip(ours, theirs, strict=True))
    assert theirs[-1] < 0.51 * ours[-1]  # TorchRec omits the gradient of a replicated table
    ours, theirs = _bytes(table("t", 100), where, statistics(10, {"t": [3] * 100}))
    assert (
        theirs[-1] > 10 * ours[-1]
    )  # TorchRec counts ids and vectors of own examples, which ziggurat subtracts before
    assert all(their < our for our, their in zip(ours[:-1], theirs[:-1], strict=True))


def _bytes(spec: TableSpec, where: Topology, counted: DatasetStatistics | None) -> tuple[list[int], list[int]]:
    """Returns the bytes of the first shard of each of SPLITS, as counted by ziggurat and by TorchRec."""
    devices = torchrec_topology(where, 10**9)
    space = SearchSpace(Problem((spec,), where, counted, BATCH), {spec.name: SPLITS}, devices)
    options = space.enumerate(space.collection, [])
    ours = [option.shards[0].storage for option in options]
    sharder = build_sharder_data_map({sharder_name(EmbeddingBagCollection): EmbeddingBagCollectionSharder()})
    EmbeddingStorageEstimator(devices).estimate(options, sharder)
    theirs = [option.shards[0].storage for option in options]
    return [each.hbm + each.ddr for each in ours if each], [each.hbm + each.ddr for each in theirs if each]


def test_trying_every_combination_is_never_worse_by_torchrecs_model() -> None:
    specs = [table(f"t{k}", 5000 * (k + 1), 32 * (k + 1)) for k in range(4)]
    for memory in (1e9, 18e6):
        problem = Problem(tuple(specs), topology(devices=2, memory=memory), None, BATCH)
        options = {
            each.name: [TableSplit("table_wise"), TableSplit("row_wise"), TableSplit("column_wise", 2)]
            for each in specs
        }
        every, greedy = (search(problem, options, proposals) for proposals in (81, 80))
        assert every is not None
        assert greedy is not None
        assert every.seconds <= greedy.seconds


def test_columns_of_rowwise_adagrad_are_split_only_unless_fused() -> None:
    specs = [table("wide", 100_000, 512, "rowwise_adagrad"), table("narrow", 1000, 16)]
    where = topology(devices=4, kind="cpu")
    fused, loose = (planned(specs, where, fused=fused) for fused in (True, False))
    assert fused.plan.placements["wide"].sharding not in ("column_wise", "grid")
    assert loose.plan.placements["wide"].sharding == "column_wise"
    assert any(note.startswith("table 'wide': column_wise of row-wise Adagrad") for note in loose.notes)


def test_torchrecs_prediction_is_noted() -> None:
    found = planned([table("a", 100_000)], topology(devices=2))
    assert [note for note in found.notes if note.startswith("torchrec: by TorchRec's own model, the slowest device")]


def test_a_table_that_does_not_fit_is_named() -> None:
    """This is the planner's own message; users get the changes that would suffice instead, if there are any."""
    planner = TorchRec(TorchRec.Config())
    large = table("large", 4_000_000, 16)  # 256 MB
    problem = Problem((large, table("small", 100)), topology(devices=4, memory=50e6), None, BATCH)
    with pytest.raises(NoFeasiblePlan, match=r"19\.5 MB short: .* 'large' needs 64\.\d MB of it, however it is split"):
        planner.plan(problem)
    many = tuple(table(f"t{k}", 300_000, 16) for k in range(20))  # 384 MB
    with pytest.raises(NoFeasiblePlan, match=r"20 tables need 395 MB or more, the devices have 169 MB for them"):
        planner.plan(Problem(many, topology(devices=4, memory=50e6), None, BATCH))


CASE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from planning_kit import table, topology
from ziggurat.planning import plan_tables
from ziggurat.planning.config import PlanningConfig

specs = [table(f"t{k}", 7000 * (k % 5 + 1), 16 * (k % 3 + 1)) for k in range(9)] + [table("small", 5)]
lazy = "torchrec" not in sys.modules
config = PlanningConfig.model_validate({"planner": {"name": "torchrec"}})
plan = plan_tables(specs, None, topology(2, 2, memory=20e6), config, 500).plan
print(json.dumps([lazy, plan.to_json()]))
"""


def test_every_process_makes_the_same_plan_silently_and_imports_torchrec_only_to_plan() -> None:
    """Strings hash differently in every process, and TorchRec's own search space is made of sets of strings."""
    outputs: set[str] = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CASE, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        outputs.add(done.stdout)
    lazy, plan = json.loads(outputs.pop())
    assert not outputs
    assert lazy
    assert "data_parallel" in {each["sharding"] for each in plan["placements"].values()}  # TorchRec would warn of these


def test_loggers_are_left_as_they_were() -> None:
    root = logging.getLogger()
    before = ([*root.handlers], [*root.filters], root.level)
    planned([table("a", 100_000), table("small", 5)], topology(devices=2))
    assert ([*root.handlers], [*root.filters], root.level) == before
