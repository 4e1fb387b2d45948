"""TorchRec's planner in our terms: units, bytes, silence, the same plan in every process. What it promises as every
planner does is tested in test_planner_contract.py."""

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
    """What TorchRec expects of the slowest device that holds one table of 128 columns, split so."""
    problem = Problem((table("t", rows, 128),), where, counted, BATCH)
    found = search(problem, {"t": [split]}, 0)
    assert found is not None
    return found.seconds


def test_times_are_those_of_its_model_in_our_units() -> None:
    """Of 2,000 examples with an id each: 8 bytes read, 512 looked up, 512 written, and as much twice in the backward
    pass; 512 sent and 512 got. Look-ups at 100 GB/s, 10 GB/s in a host, 4 GB/s between hosts of a device each."""
    compute = 3 * 2000 * (8 + 512 + 512) / 1e11
    whole = TableSplit("table_wise", 1, (0,))
    assert seconds_of(whole, topology(1, 2)) == pytest.approx(compute + 2 * 2000 * 512 / 1e10)
    assert seconds_of(whole, topology(2, 1)) == pytest.approx(compute + 2 * 2000 * 512 / 4e9)
    assert seconds_of(whole, topology(1, 2, kind="cpu")) == seconds_of(whole, topology(1, 2))
    thrice = statistics(10, {"t": [1] * 30 + [0] * 970})
    assert seconds_of(whole, topology(1, 2), counted=thrice) == pytest.approx(
        3 * 2000 * (3 * 8 + 3 * 512 + 512) / 1e11 + 2 * 2000 * 512 / 1e10
    )


def test_all_reduces_go_at_the_bandwidth_of_the_way_that_they_take() -> None:
    """Of a table's gradient: in a host the devices' own, between hosts all of the hosts'."""
    large, small = 2_000_000, 1_000_000
    for where, bandwidth in ((topology(1, 4), 1e10), (topology(2, 2), 4e9 / 1.5)):
        times = [seconds_of(TableSplit("data_parallel"), where, rows) for rows in (small, large)]
        slope = (times[1] - times[0]) / ((large - small) * 512)
        assert slope == pytest.approx(1 / bandwidth + 9.22 / 0.5e11)  # the rest: kernels over the whole gradient


WAYS = [
    TableSplit("table_wise"), TableSplit("row_wise"), TableSplit("column_wise", 2), TableSplit("table_row_wise"),
    TableSplit("grid"), TableSplit("data_parallel"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_its_own_bytes_promise_too_much_room(kind: str) -> None:
    """Why shards weigh what ziggurat counts; docs/planning.md tells of it."""
    where = topology(2, 2, kind="cpu" if kind == "cpu" else "cuda")
    ours, theirs = _bytes(table("t", 100_000), where, None)
    assert all(their < our for our, their in zip(ours, theirs, strict=True))
    assert theirs[-1] < 0.51 * ours[-1]  # the gradient of a table that every device holds
    ours, theirs = _bytes(table("t", 100), where, statistics(10, {"t": [3] * 100}))
    assert theirs[-1] > 10 * ours[-1]  # ids and vectors of its own examples, which ziggurat has taken off already
    assert all(their < our for our, their in zip(ours[:-1], theirs[:-1], strict=True))


def _bytes(spec: TableSpec, where: Topology, counted: DatasetStatistics | None) -> tuple[list[int], list[int]]:
    """Of the first shard of each of WAYS, as we count and as TorchRec would."""
    devices = torchrec_topology(where, 10**9)
    space = SearchSpace(Problem((spec,), where, counted, BATCH), {spec.name: WAYS}, devices)
    options = space.enumerate(space.collection, [])
    ours = [option.shards[0].storage for option in options]
    sharder = build_sharder_data_map({sharder_name(EmbeddingBagCollection): EmbeddingBagCollectionSharder()})
    EmbeddingStorageEstimator(devices).estimate(options, sharder)
    theirs = [option.shards[0].storage for option in options]
    return [each.hbm + each.ddr for each in ours if each], [each.hbm + each.ddr for each in theirs if each]


def test_trying_every_combination_is_never_worse_by_its_model() -> None:
    specs = [table(f"t{k}", 5000 * (k + 1), 32 * (k + 1)) for k in range(4)]
    for memory in (1e9, 18e6):
        problem = Problem(tuple(specs), topology(devices=2, memory=memory), None, BATCH)
        ways = {
            each.name: [TableSplit("table_wise"), TableSplit("row_wise"), TableSplit("column_wise", 2)]
            for each in specs
        }
        every, greedy = (search(problem, ways, proposals) for proposals in (81, 80))
        assert every is not None
        assert greedy is not None
        assert every.seconds <= greedy.seconds


def test_columns_of_rowwise_adagrad_are_split_where_that_is_asked_for() -> None:
    specs = [table("wide", 100_000, 512, "rowwise_adagrad"), table("narrow", 1000, 16)]
    where = topology(devices=4, kind="cpu")
    fused, loose = (planned(specs, where, fused=fused) for fused in (True, False))
    assert fused.plan.placements["wide"].sharding not in ("column_wise", "grid")
    assert loose.plan.placements["wide"].sharding == "column_wise"
    assert any(note.startswith("table 'wide': column_wise of row-wise Adagrad") for note in loose.notes)


def test_its_prediction_is_noted_beside_ours() -> None:
    found = planned([table("a", 100_000)], topology(devices=2))
    assert [note for note in found.notes if note.startswith("torchrec: by TorchRec's own model, the slowest device")]


def test_what_finds_no_room_is_named() -> None:
    """As the planner itself says it; users are told of what would do instead, where anything would."""
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


def test_every_process_comes_to_the_same_plan_in_silence_and_imports_the_engine_only_to_plan() -> None:
    """Words are hashed anew in every process, and TorchRec's own search space is made of sets of them."""
    said: set[str] = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CASE, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        said.add(done.stdout)
    lazy, plan = json.loads(said.pop())
    assert not said
    assert lazy
    assert "data_parallel" in {each["sharding"] for each in plan["placements"].values()}  # of which TorchRec warns


def test_loggers_are_left_as_they_were() -> None:
    root = logging.getLogger()
    before = ([*root.handlers], [*root.filters], root.level)
    planned([table("a", 100_000), table("small", 5)], topology(devices=2))
    assert ([*root.handlers], [*root.filters], root.level) == before
