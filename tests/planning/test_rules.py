"""The rules planner: its decision for each kind of table, and its errors if nothing fits."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from planning_kit import statistics, table, topology

from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.plan import Placement
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning import PlanEstimate, plan_tables
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.planner import plan_problem, planned_by
from ziggurat.planning.problem import Problem, TableConstraint
from ziggurat.planning.quantities import parse_bytes


def config(**keys: Any) -> PlanningConfig:
    return PlanningConfig.model_validate(keys)


def planned(specs: list[TableSpec], where: Topology, **keys: Any) -> PlanEstimate:
    return plan_tables(specs, None, where, config(**keys), 1000)


def shardings(found: PlanEstimate) -> dict[str, str]:
    return {name: placement.sharding for name, placement in found.plan.placements.items()}


EVEN = [table(f"t{k}", 100_000, 16, "rowwise_adagrad") for k in range(8)]


def test_equal_tables_are_distributed_evenly() -> None:
    found = planned(EVEN, topology(devices=4))
    assert set(shardings(found).values()) == {"table_wise"}
    assert [sum(each.shard.rank == rank for each in found.shards) for rank in range(4)] == [2] * 4
    assert found.imbalance == pytest.approx(1)


def test_small_tables_are_replicated_and_others_not() -> None:
    """Four ranks have 1,000 examples each. Table-wise, 12 + 128 bytes an example are exchanged with each of three other
    ranks; a replica exchanges 1.5 · 65 bytes a row."""
    found = planned([*EVEN, table("small", 100), table("large", 20_000)], topology(devices=4))
    assert found.plan.placements["small"] == Placement("data_parallel", (0, 1, 2, 3))
    assert found.plan.placements["large"].sharding == "table_wise"
    few = planned([*EVEN, table("small", 100)], topology(devices=4), planner={"replicate_up_to": 6399})
    assert few.plan.placements["small"].sharding == "table_wise"


def test_one_process_holds_everything_whole() -> None:
    found = planned([*EVEN, table("small", 5)], topology(devices=1))
    assert {*found.plan.placements.values()} == {Placement("table_wise", (0,))}
    assert sum(device.inter_bytes + device.intra_bytes for device in found.devices) == 0


def test_a_table_too_large_for_a_device_is_split_by_rows() -> None:
    """FBGEMM's row-wise Adagrad cannot be split by columns."""
    large = table("large", 4_000_000, 16, "rowwise_adagrad")  # 272 MB
    found = planned([*EVEN, large], topology(devices=4, memory=200e6))
    assert found.plan.placements["large"] == Placement("row_wise", (0, 1, 2, 3))
    assert all(device.spare_bytes >= 0 for device in found.devices)
    assert found.notes == (
        "no statistics: assumes one id for each feature, and that all rows are looked up equally often",
    )


def test_columns_are_split_if_rows_would_cost_more() -> None:
    """SGD can be split by columns, which sends less than the partial sums of whole rows."""
    large = table("large", 4_000_000, 16)
    found = planned([*EVEN, large], topology(devices=4, memory=200e6))
    assert found.plan.placements["large"].sharding == "column_wise"
    adagrad = table("large", 4_000_000, 16, "rowwise_adagrad")
    loose = planned([*EVEN, adagrad], topology(devices=4, memory=200e6), planner={"fused": False})
    assert loose.plan.placements["large"].sharding == "column_wise"
    message = "table 'large': column_wise of row-wise Adagrad is looked up by torch"
    assert any(note.startswith(message) for note in loose.notes)


def test_rows_are_split_within_a_host_if_hosts_are_slow_to_reach() -> None:
    large = table("large", 4_000_000, 16, "rowwise_adagrad")
    found = planned([*EVEN, *(table(f"u{k}", 100_000) for k in range(24)), large], topology(4, 4, memory=200e6))
    placement = found.plan.placements["large"]
    assert placement.sharding == "table_row_wise"
    assert placement.ranks in {topology(4, 4).ranks_of(host) for host in range(4)}


def test_a_hot_table_is_split() -> None:
    """The table has thirty ids an example, and any device could hold it."""
    hot = table("hot", 200_000, 64)
    counts = {name: [1] * 100_000 for name in (each.name for each in EVEN)} | {"hot": [15] * 200_000}
    where = topology(devices=4, lookup=1e9)
    found = plan_tables([*EVEN, hot], statistics(100_000, counts), where, config(), 1000)
    assert found.ids_per_row["hot"] == 30
    assert found.plan.placements["hot"].sharding != "table_wise"
    whole = plan_tables(
        [*EVEN, hot], statistics(100_000, counts), where, config(tables={"hot": {"sharding": "table_wise"}}), 1000
    )
    assert found.step_seconds < 0.5 * whole.step_seconds
    assert found.imbalance < 1.05 < whole.imbalance


def test_hot_rows_count_as_imbalance_of_a_row_split() -> None:
    """All look-ups are in the first quarter of the rows, so under row-wise sharding rank 0 would do all the work."""
    hot = table("hot", 80_000, 64)
    counted = statistics(1000, {"hot": [40] * 2000 + [0] * 78_000})
    rows = plan_tables([hot], counted, topology(lookup=1e9), config(tables={"hot": {"sharding": "row_wise"}}), 1000)
    assert rows.imbalance > 2
    free = plan_tables([hot], counted, topology(lookup=1e9), config(), 1000)
    assert free.plan.placements["hot"].sharding == "column_wise"
    assert free.imbalance == pytest.approx(1)


def test_adam_without_a_kernel_is_replicated() -> None:
    tables = [table("a", 300_000, 16, "adam"), table("b", 300_000, 16, "adam_all")]
    assert shardings(planned(tables, topology(kind="cpu"))) == {"a": "data_parallel", "b": "data_parallel"}
    assert shardings(planned(tables, topology(kind="cuda")))["b"] == "data_parallel"
    assert shardings(planned([tables[0], *EVEN], topology(kind="cuda")))["a"] != "data_parallel"
    with pytest.raises(ConfigError, match=r"planning\.tables\.a\.sharding: 'row_wise', but no kernel has adam on cpu"):
        planned(tables, topology(kind="cpu"), tables={"a": {"sharding": "row_wise"}})


def test_ring_exchanges_cost_all_ranks_the_same() -> None:
    """A ring all-reduce takes equally long on all ranks."""
    found = planned([table(f"s{k}", 50) for k in range(6)], topology(2, 2))
    assert set(shardings(found).values()) == {"data_parallel"}
    assert found.imbalance == pytest.approx(1)


CONSTRAINTS: dict[str, Any] = {
    "t0": {"sharding": "table_wise", "ranks": [3]},
    "t1": {"sharding": "row_wise"},
    "t2": {"sharding": "table_row_wise", "ranks": [2, 3]},
    "t3": {"sharding": "grid"},
    "t4": {"sharding": "column_wise", "ranks": [2, 0, 2, 1]},
    "t5": {"sharding": "data_parallel"},
    "t6": {"sharding": "column_wise"},
    "t7": {"sharding": "table_row_wise"},
}


def test_constraints_are_kept() -> None:
    found = planned(EVEN, topology(2, 2), tables=CONSTRAINTS)
    placements = found.plan.placements
    assert placements["t0"] == Placement("table_wise", (3,))
    assert placements["t1"] == Placement("row_wise", (0, 1, 2, 3))
    assert placements["t2"] == Placement("table_row_wise", (2, 3))
    assert placements["t3"] == Placement("grid", (0, 1, 2, 3))
    assert placements["t4"] == Placement("column_wise", (2, 0, 2, 1))
    assert placements["t5"] == Placement("data_parallel", (0, 1, 2, 3))
    assert placements["t6"].sharding == "column_wise"
    assert placements["t7"].ranks in {(0, 1), (2, 3)}
    assert sum("row-wise Adagrad" in note for note in found.notes) == 3


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (
            {"t9": {"sharding": "row_wise"}},
            r"tables\.t9: there is no such table; ",
        ),
        (
            {"t0": {"sharding": "table_wise", "ranks": [0, 1]}},
            r"tables\.t0\.ranks: table_wise takes one rank; received \[0",
        ),
        ({"t0": {"sharding": "table_wise", "ranks": [4]}}, r"tables\.t0\.ranks: there is no rank 4\n  hint: .* 0 to 3"),
        ({"t0": {"sharding": "row_wise", "ranks": [0, 1]}}, r"tables\.t0\.ranks: row_wise takes every rank in order"),
        (
            {"t0": {"sharding": "table_row_wise", "ranks": [1, 2]}},
            r"ranks: .* one host; received \[1, 2\]\n .* \[0, 1\]",
        ),
        (
            {"t0": {"sharding": "column_wise", "ranks": [0, 1, 2]}},
            r"ranks: 3 equal parts of 16 .*\n  .* one of 1, 2, 4,",
        ),
        ({"narrow": {"sharding": "column_wise"}}, r"narrow\.sharding: 'column_wise', but its 4 columns have no 2 to 4"),
        ({"narrow": {"sharding": "grid"}}, r"narrow\.sharding: 'grid', but 4 columns over 2 hosts"),
        ({"t0": {"sharding": "column_wise", "ranks": []}}, r"ranks: 0 equal parts"),
    ],
)
def test_impossible_constraints_are_refused_naming_their_key(constraint: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        planned([*EVEN, table("narrow", 100, 4)], topology(2, 2), tables=constraint)
    assert caught.value.problem.startswith("planning.tables.")


def test_the_suggested_changes_make_room() -> None:
    large = table("large", 10_000_000, 16, "adagrad")  # 1.28 GB
    tables, where = [*EVEN, large], topology(devices=4, memory=300e6)
    with pytest.raises(NoFeasiblePlan) as caught:
        planned(tables, where)
    assert re.fullmatch(
        r"300 MB of memory a device is 74 MB short: the least that a plan was found for is 374 MB; device \d then has "
        r"37\.4 MB of reserve \(planning\.reserve\), 1\.26 MB for the ids and vectors of its 1,000 examples, 335 MB "
        r"for tables, most of it 32\d MB for table 'large', column_wise",
        caught.value.problem,
    )
    changes = caught.value.hint.removeprefix("any of these makes room: ").split("; ")
    assert changes[0] == "8 devices with 300 MB each"
    planned(tables, topology(devices=8, memory=300e6))
    memory = parse_bytes(changes[1].removesuffix(" of memory a device"))
    planned(tables, topology(devices=4, memory=memory))
    with pytest.raises(NoFeasiblePlan):
        planned(tables, topology(devices=4, memory=0.95 * memory))
    assert changes[2] == "embeddings.tables.large.dim: 8 (now 16)"
    planned([*EVEN, table("large", 10_000_000, 8, "adagrad")], where)
    assert changes[3] == "embeddings.tables.large.optimizer: {name: rowwise_adagrad} (now adagrad)"
    planned([*EVEN, table("large", 10_000_000, 16, "rowwise_adagrad")], where)


def test_a_batch_too_large_for_memory_is_named() -> None:
    """12 + 128 bytes for each of 1,000 examples on every device, the same again on the table's owner, 6.4 kB of
    weights, and a reserve of a tenth of the total: 286.4 / 0.9 = 318.2 kB."""
    with pytest.raises(NoFeasiblePlan) as caught:
        planned([table("small", 100)], topology(devices=1, memory=100e3))
    assert caught.value.problem == (
        "100 kB of memory a device is 219 kB short: the least that a plan was found for is 319 kB; device 0 then has "
        "31.9 kB of reserve (planning.reserve), 140 kB for the ids and vectors of its 1,000 examples, 146 kB for "
        "tables, most of it 146 kB for table 'small', table_wise"
    )
    problem = Problem((table("small", 100),), topology(devices=1, memory=100e3), None, 1000)
    with pytest.raises(NoFeasiblePlan, match=r"every device is 50 kB short before it holds any table: .* take 140 kB"):
        PlanningConfig().planner.build().plan(problem)
    pinned = replace(problem, constraints={"small": TableConstraint("table_wise", (0,))})
    with pytest.raises(NoFeasiblePlan, match=r"every device is 50 kB short before it holds any table: .* take 140 kB"):
        PlanningConfig().planner.build().plan(pinned)  # the table on a given rank does not count
    with pytest.raises(NoFeasiblePlan, match=r"makes room: .*; training\.batch_size: 500 \(now 1000\)"):
        planned([table("small", 100)], topology(devices=1, memory=250e3))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_least_memory_is_the_same_whatever_there_is(optimizer: str) -> None:
    """For a few large and many small tables. One less in the last digit does not suffice, and the missing bytes are the
    difference to it."""
    tables = [*EVEN, *(table(f"wide{k}", 20_000 * k, 64, optimizer) for k in range(1, 6))]
    least = set[int]()
    for memory in (1, 99, 100, 12_345, 10**6, 2 * 10**6, 9 * 10**6):
        with pytest.raises(NoFeasiblePlan) as caught:
            planned(tables, topology(memory=memory))
        message = re.match(r".* device is (.*) short: .* found for is (.*); device", caught.value.problem)
        assert message is not None
        short, needed = map(parse_bytes, message.groups())
        assert short == pytest.approx(needed - memory, rel=0.006)
        assert f"; {message[2]} of memory a device" in f"; {caught.value.hint.split(': ', 1)[1]}"
        least.add(needed)
    (needed,) = least
    planned(tables, topology(memory=needed))
    with pytest.raises(NoFeasiblePlan):
        planned(tables, topology(memory=needed - 10 ** (len(str(needed)) - 3)))


def test_an_obstructing_constraint_is_named() -> None:
    large = table("large", 4_000_000, 16)
    with pytest.raises(NoFeasiblePlan, match=r"leave out planning\.tables\.large") as caught:
        planned([*EVEN, large], topology(devices=4, memory=200e6), tables={"large": {"sharding": "data_parallel"}})
    assert "devices with" not in caught.value.hint  # more devices would not help


def test_one_of_many_tables_is_split_if_they_fit_only_so() -> None:
    """Five tables of 100 MB on four devices of 140 MB, so one must be split."""
    tables = [table(f"t{k}", 1_500_000, 16, "rowwise_adagrad") for k in range(5)]
    found = planned(tables, topology(devices=4, memory=150e6))
    assert 1 <= sum(sharding == "row_wise" for sharding in shardings(found).values()) <= 5
    assert all(device.spare_bytes >= 0 for device in found.devices)


def test_replicas_are_dropped_if_memory_is_short() -> None:
    tables = [table("wide", 3000, 512), *(table(f"t{k}", 100_000, 16) for k in range(4))]
    roomy = planned(tables, topology(devices=4, memory=1e9), planner={"replicate_up_to": "1GB"})
    tight = planned(tables, topology(devices=4, memory=36e6), planner={"replicate_up_to": "1GB"})
    assert all(device.spare_bytes >= 0 for device in tight.devices)
    copies = [sum(s == "data_parallel" for s in shardings(each).values()) for each in (roomy, tight)]
    assert copies[1] <= copies[0]


def in_tight_memory(seed: int) -> Problem:
    """Returns up to ten tables on devices that have 0.9 to 1.8 times the memory of their mean load, unsplit."""
    draw = random.Random(seed)
    specs = [
        table(
            f"t{k}", draw.choice([draw.randint(1, 300), draw.randint(300, 5000), draw.randint(5000, 60_000)]),
            4 * draw.randint(1, 12), draw.choice(["sgd", "rowwise_adagrad", "adagrad", "adam"]),
            features=tuple(f"f{k}.{n}" for n in range(draw.randint(1, 2))),
        )
        for k in range(draw.randint(1, 10))
    ]  # fmt: skip
    hosts, devices = draw.choice([(1, 2), (1, 4), (2, 2), (1, 3), (1, 8), (2, 4)])
    roomy = Problem(tuple(specs), topology(hosts, devices), None, draw.choice([20, 100]))
    mean = sum(roomy.whole(each).kept_bytes for each in specs) / (hosts * devices)
    memory = (mean * draw.uniform(0.9, 1.8) + roomy.client_bytes) / 0.9
    return roomy.but(topology=topology(hosts, devices, memory))


def fits(problem: Problem, **planner: Any) -> bool:
    try:
        planned_by(problem, config(planner=planner).planner.build())
    except NoFeasiblePlan:
        return False
    return True


TIGHT = (118, 157, 241, 252, *range(12))
"""Seeds of problems. In the first four, splitting by rows alone leaves no room, and the linear model has a plan."""


@pytest.mark.parametrize("seed", TIGHT)
def test_the_rules_find_room_where_recshard_does(seed: int) -> None:
    problem = in_tight_memory(seed)
    assert fits(problem, name="rules") >= fits(problem, name="recshard")


def test_a_table_is_split_in_the_way_that_needs_least_memory() -> None:
    """By rows, the buffers of a table are on all four devices, for all examples: then the others do not fit."""
    wide, plain = table("wide", 515, 36, "adagrad"), table("plain", 1111, 20, features=("a", "b"))
    other = table("other", 299, 40, "rowwise_adagrad", features=("c", "d"))
    found = plan_tables([wide, plain, other], None, topology(2, 2, 180e3), config(), 20)
    assert shardings(found) == {"wide": "column_wise", "plain": "table_wise", "other": "table_wise"}


def test_a_table_is_replicated_if_its_copies_are_smaller_than_its_buffers() -> None:
    large, wide = table("large", 474, 20, "adam"), table("wide", 493, 12, features=("a", "b"))
    small = table("small", 41, 24, "rowwise_adagrad", features=("c", "d"))
    found = plan_tables([large, wide, small], None, topology(devices=4, memory=100e3), config(), 20)
    assert shardings(found) == {"large": "row_wise", "wide": "column_wise", "small": "data_parallel"}


def test_the_error_names_the_planner_that_finds_room() -> None:
    """The baseline splits by rows only, which needs more buffers than there is memory."""
    problem = next(
        each
        for seed in range(40)
        if fits(each := in_tight_memory(seed), name="rules") and not fits(each, name="baseline")
    )
    with pytest.raises(NoFeasiblePlan, match=r"makes room: .*planning\.planner: \{name: rules\}, whose plan fits"):
        plan_problem(problem, config(planner={"name": "baseline"}).planner.build())
    short = problem.but(topology=topology(problem.topology.hosts, problem.topology.devices, memory=1e5))
    with pytest.raises(NoFeasiblePlan) as raised:
        plan_problem(short, config(planner={"name": "baseline"}).planner.build())
    assert "whose plan fits" not in raised.value.hint
