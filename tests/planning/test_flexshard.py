"""FlexShard: the cost of tiers against drawn batches, thresholds against brute force, plans within memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_kit import statistics, table

from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning import PlanEstimate, plan_tables
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.flexshard import FlexShard
from ziggurat.planning.flexshard.growth import growth
from ziggurat.planning.flexshard.thresholds import TierCounts, fastest_counts, kept_bytes, step_seconds
from ziggurat.planning.planner import problem_of
from ziggurat.planning.problem import Problem
from ziggurat.planning.tier_cost import PricedTable, baseline_bytes

BATCH, LENGTH = 32, 20
ANY_GAIN = {"extra_memory": None, "least_gain": 0}


def where(hosts: int = 4, devices: int = 2, memory: float = 1e9) -> Topology:
    """Links of 1 Gbit/s within hosts, a tenth of that between them."""
    return Topology(hosts, devices, "test", "cpu", int(memory), 1e10, 1.25e8, 1.25e7)


def history(rows: int = 500, dim: int = 16, optimizer: str = "rowwise_adagrad", name: str = "item") -> TableSpec:
    return table(name, rows, dim, optimizer, features=("viewed",), positions={"viewed": LENGTH})


def zipf(rows: int, exponent: float = 1.1) -> list[int]:
    shares = np.arange(1, rows + 1) ** -exponent
    return [int(count) for count in 1e6 * shares / shares.sum()]


def problem(spec: TableSpec, topology: Topology, counts: list[int]) -> Problem:
    return Problem((spec,), topology, statistics(sum(counts) // LENGTH, {spec.name: counts}), BATCH)


def planned(*tables: TableSpec, topology: Topology | None = None, counts: bool = True, **config: Any) -> PlanEstimate:
    each = {spec.name: zipf(spec.rows) for spec in tables}
    counted = statistics(10**6 // LENGTH, each) if counts else None
    section = {"planner": {"name": "flexshard", **config.pop("planner", {})}, "reserve": 0, **config}
    return plan_tables(tables, counted, topology or where(), PlanningConfig.model_validate(section), BATCH)


def test_loads_are_those_of_drawn_batches() -> None:
    """Bytes are counted from the sets of rows that ranks, hosts and the world need in drawn batches."""
    spec, topology = history(300), where(3, 2)
    tiered = problem(spec, topology, zipf(300)).tiered(spec)
    copied, host = 40, 60
    loads = tiered.loads(copied, host)
    random, shares = np.random.default_rng(0), np.array(zipf(300)) / sum(zipf(300))
    steps, look_ups = 60, round(tiered.lookups)
    assert look_ups == pytest.approx(tiered.lookups, rel=1e-3)
    v, world, near, intra, inter = 64, 6, 1 / 2, np.zeros(3), np.zeros(3)
    for _ in range(steps):
        needed_GR = np.zeros((world, 300), bool)
        for rank in range(world):
            needed_GR[rank, random.choice(300, look_ups, p=shares)] = True
        host_NR, any_R = needed_GR.reshape(3, 2, 300).any(1), needed_GR.any(0)
        tiers = slice(0, copied), slice(copied, copied + host), slice(copied + host, 300)
        q1, q2, q3 = (needed_GR[:, tier].sum() / world for tier in tiers)
        u1 = any_R[tiers[0]].sum()
        intra += near * np.array([(q1 + u1) * v + copied / 4, q2 * (4 + 2 * v), q3 * (4 + 2 * v) / 3])
        for number, rows in ((0, copied), (1, host)):
            h, u = host_NR[:, tiers[number]].sum() / 3, any_R[tiers[number]].sum()
            inter[number] += (h + u) * v * (2 / 3) / 2 + rows * (4 / 8, 2 / 16)[number]
        inter[2] += q3 * (4 + 2 * v) * 4 / 6
    assert [load.intra_bytes for load in loads] == pytest.approx(intra / steps, rel=0.02)
    assert [load.inter_bytes for load in loads] == pytest.approx(inter / steps, rel=0.02)
    assert sum(load.lookups for load in loads) == pytest.approx(1)


def test_two_hosts_send_their_sums_to_each_other() -> None:
    spec = history(100, 4)
    tiered = problem(spec, where(2, 1), [1] * 100).tiered(spec)
    on_every_rank = tiered.loads(100, 0)[0]
    touched = 100 * (1 - 0.99 ** round(tiered.lookups))
    assert on_every_rank.touched == pytest.approx(touched, rel=0.01)
    assert on_every_rank.inter_bytes == pytest.approx(touched * 16 + 100 / 8, rel=0.01)
    assert on_every_rank.intra_bytes == 0


def test_rows_that_in_batch_negatives_repeat_are_needed_once() -> None:
    """Of 256 examples 32 are read and each is there 8 times: drawn distinct rows are those of the 32."""
    spec, counts = history(300), zipf(300)
    counted = statistics(sum(counts) // LENGTH, {"item": counts})
    read = Problem((spec,), where(), counted, BATCH).tiered(spec)
    repeated = Problem((spec,), where(), counted, 8 * BATCH, read_share=1 / 8).tiered(spec)
    assert repeated.loads(40, 60) == read.loads(40, 60)
    random, shares = np.random.default_rng(0), np.array(counts) / sum(counts)
    drawn = [np.tile(random.choice(300, (BATCH, LENGTH), p=shares), (8, 1)) for _ in range(40)]
    needed = np.mean([len(np.unique(each)) for each in drawn])
    assert sum(load.touched for load in repeated.loads(0, 0)) == pytest.approx(needed, rel=0.02)
    sent = np.array(baseline_bytes(read)[:2])
    assert baseline_bytes(repeated)[:2] == pytest.approx(8 * sent)


def test_rows_of_dropped_negatives_are_not_looked_up() -> None:
    """A quarter of the examples is left: all figures of tiers but the room of the batch are those of a fourth."""
    spec, counts = history(300), zipf(300)
    counted = statistics(sum(counts) // LENGTH, {"item": counts})
    quarter = Problem((spec,), where(), counted, BATCH // 4)
    kept = Problem((spec,), where(), counted, BATCH, kept_share=1 / 4)
    assert kept.tiered(spec).loads(40, 60) == quarter.tiered(spec).loads(40, 60)
    assert baseline_bytes(kept.tiered(spec)) == baseline_bytes(quarter.tiered(spec))
    for sharding in ("row_wise", "data_parallel"):
        plan = Plan(8, {"item": Placement(sharding, tuple(range(8)))}, 2)
        assert kept.costs(spec, plan)[0][1].seconds == pytest.approx(quarter.costs(spec, plan)[0][1].seconds)
    assert kept.client_bytes == pytest.approx(4 * quarter.client_bytes, abs=4)


def test_shards_add_up_to_the_tiers() -> None:
    spec, topology = history(101), where(2, 2)
    given = problem(spec, topology, zipf(101))
    placement = Placement("row_tiers", (0, 1, 2, 3), copied_rows=10, host_rows=15)
    costs = given.costs(spec, Plan(4, {"item": placement}, 2))
    loads = given.tiered(spec).loads(10, 15)
    assert len(costs) == 12
    assert sum(cost.weight_bytes for _, cost in costs) == 64 * (4 * 10 + 2 * 15 + 76)
    for attribute in ("intra_bytes", "inter_bytes"):
        assert sum(getattr(cost, attribute) for _, cost in costs) == pytest.approx(
            4 * sum(getattr(load, attribute) for load in loads)
        )


@st.composite
def small_tables(draw: st.DrawFn) -> PricedTable:
    counts = sorted(draw(st.lists(st.integers(0, 60), min_size=4, max_size=14)), reverse=True)
    counts[0] += 1
    hosts, devices = draw(st.sampled_from([(4, 2), (2, 4), (4, 1), (1, 4), (3, 3)]))
    intra, between = draw(st.sampled_from([(1e8, 1e7), (1e9, 1e9), (1e7, 1e8)]))
    topology = Topology(hosts, devices, "test", "cpu", 10**9, draw(st.sampled_from([1e8, 1e10])), intra, between)
    spec = history(len(counts), draw(st.sampled_from([4, 64])), draw(st.sampled_from(["sgd", "adagrad"])))
    counted = statistics(draw(st.sampled_from([1, 20, 400])), {"item": counts})
    return Problem((spec,), topology, counted, draw(st.integers(1, 4))).tiered(spec)


def every_pair(tiered: PricedTable) -> list[TierCounts]:
    rows, topology = tiered.table.rows, tiered.topology
    two_levels = topology.hosts > 1 and topology.devices > 1
    pairs = product(range(rows + 1), range(rows + 1) if two_levels else [0])
    return [TierCounts(copied, host) for copied, host in pairs if copied + host <= rows]


@settings(max_examples=60)
@given(small_tables())
def test_thresholds_are_those_of_brute_force(tiered: PricedTable) -> None:
    found = fastest_counts([tiered], np.inf)
    assert found is not None
    assert step_seconds([tiered], found) == pytest.approx(
        min(step_seconds([tiered], [pair]) for pair in every_pair(tiered))
    )


@settings(max_examples=60)
@given(small_tables(), st.floats(0, 1))
def test_in_short_memory_they_are_within_a_row_of_brute_force(tiered: PricedTable, part: float) -> None:
    pairs = every_pair(tiered)
    kept = {pair: kept_bytes([tiered], [pair]) for pair in pairs}
    seconds = {pair: step_seconds([tiered], [pair]) for pair in pairs}
    least, most = min(kept.values()), max(kept.values())
    memory = least + part * (most - least) + 1e-6
    found = fastest_counts([tiered], memory)
    assert found is not None
    assert kept_bytes([tiered], found) <= memory * (1 + 1e-8)
    row = max(tiered.loads(1, 0)[0].kept_bytes, 1.0)  # the hottest row takes most
    best = min(seconds[pair] for pair in pairs if kept[pair] <= max(memory - 2 * row, least + 1e-6))
    assert step_seconds([tiered], found) <= best * (1 + 1e-9)
    assert fastest_counts([tiered], least * (1 - 1e-6) - 1e-6) is None


def test_slack_fills_the_rows_on_every_rank() -> None:
    spec = history(5000)
    tiered = problem(spec, where(), zipf(5000)).tiered(spec)
    exact, slack = (fastest_counts([tiered], np.inf, share) for share in (0.0, 0.01))
    assert exact is not None
    assert slack is not None
    assert slack[0].copied > exact[0].copied
    assert step_seconds([tiered], exact) < step_seconds([tiered], slack) <= 1.01 * step_seconds([tiered], exact)


def test_sequences_get_tiers_and_the_rules_place_the_others() -> None:
    other = table("user", 1000)
    found = planned(history(5000), other)
    placement = found.plan.placements["item"]
    assert placement.sharding == "row_tiers"
    assert placement.copied_rows
    assert placement.host_rows
    assert found.plan.placements["user"] == planned(other).plan.placements["user"]
    (tiers,) = found.tiers
    first, second = tiers.thresholds
    assert first is not None
    assert second is not None
    assert 1 > first > second > 0
    assert "copied to every rank" in found.plan.notes[0]
    ways = {way.name: way for way in tiers.alternatives}
    mine, split = ways["in tiers"], ways["rows split, de-duplicated"]
    each = ways["rows split, each look-up sent"]
    assert mine.inter_bytes < split.inter_bytes < each.inter_bytes
    assert mine.exchange_seconds < split.exchange_seconds < each.exchange_seconds
    assert mine.kept_bytes <= each.kept_bytes
    assert found.to_json()["tiers"][0]["table"] == "item"
    assert Plan.from_json(found.plan.to_json()) == found.plan


def test_other_tables_get_tiers_where_asked() -> None:
    found = planned(history(), table("user", 1000), planner={"tables": ["user"]})
    assert [name for name, each in found.plan.placements.items() if each.sharding == "row_tiers"] == ["user"]


def test_less_memory_means_fewer_copies() -> None:
    roomy = planned(history(5000), planner={"extra_memory": None})
    needed, split = (way.kept_bytes for way in roomy.tiers[0].alternatives[:2])
    client = roomy.topology.memory_bytes - max(each.spare_bytes for each in roomy.devices) - needed
    copied = [roomy.plan.placements["item"].copied_rows]
    for share in (0.7, 0.4):
        memory = client + split + share * (needed - split)
        tight = planned(history(5000), topology=where(memory=memory), planner={"extra_memory": None})
        assert min(each.spare_bytes for each in tight.devices) >= 0
        copied.append(tight.plan.placements["item"].copied_rows)
    assert copied[0] > copied[1] >= copied[2]
    with pytest.raises(NoFeasiblePlan, match=r"short: the least that a plan was found for"):
        planned(history(5000), topology=where(memory=client + 0.3 * split))


def test_beside_a_disk_copies_take_half_of_the_memory_for_rows() -> None:
    roomy = planned(history(5000), planner=ANY_GAIN).plan.placements["item"]
    row = 4 * 16 + 4
    assert roomy.copied_rows is not None
    assert roomy.host_rows is not None
    copies = (roomy.copied_rows + roomy.host_rows / 2) * row
    for share in (0.5, 0.1):
        memory = 2 * share * copies
        beyond = {"memory": f"{int(memory)}B"}
        found = planned(history(5000), planner=ANY_GAIN, beyond_memory=beyond).plan.placements["item"]
        assert found.copied_rows is not None
        assert found.host_rows is not None
        taken = (found.copied_rows + found.host_rows / 2) * row
        assert 0.9 * memory / 2 - 2 * row < taken <= memory / 2
    same = planned(history(5000), planner=ANY_GAIN, beyond_memory={"memory": f"{int(2.1 * copies)}B"})
    assert same.plan.placements["item"] == roomy


def test_without_statistics_all_rows_are_in_one_tier() -> None:
    found = planned(history(), counts=False, planner={"extra_memory": "1MB"})
    placement = found.plan.placements["item"]
    assert (placement.copied_rows, placement.host_rows) in {(0, 0), (0, 500), (500, 0)}
    assert any("without statistics" in note for note in found.notes)


def test_constraints_are_kept_and_one_device_holds_all() -> None:
    found = planned(history(), tables={"item": {"sharding": "row_wise"}})
    assert found.plan.placements["item"].sharding == "row_wise"
    assert planned(history(), topology=where(1, 1)).plan.placements["item"].sharding == "table_wise"
    assert planned(history(optimizer="adam")).plan.placements["item"].sharding == "data_parallel"


@pytest.mark.parametrize(
    ("planner", "tables", "message"),
    [
        ({"tables": ["itme"]}, {}, "tables.itme: there is no such table; did you mean 'item'"),
        ({"tables": ["viewed"]}, {}, "tables.viewed: there is no such table; the feature .* looks up the table 'slow'"),
        ({"tables": ["item"]}, {"item": {"sharding": "row_wise"}}, "planning.tables.item asks for row_wise"),
        ({"tables": ["slow"]}, {}, "'row_tiers', but its optimizer is adam|'row_tiers', but no kernel has adam"),
        ({}, {"item": {"sharding": "row_tiers"}}, "use planning.planner: {name: flexshard, tables: \\[item\\]}"),
    ],
)
def test_what_cannot_be_in_tiers_is_refused(planner: dict[str, Any], tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(history(), history(name="slow", optimizer="adam"), planner=planner, tables=tables)


def test_a_name_is_checked_on_one_device_too() -> None:
    config = PlanningConfig.model_validate({"planner": {"name": "flexshard", "tables": ["itme"]}})
    with pytest.raises(ConfigError, match=r"planner\.tables\.itme: there is no such table; did you mean 'item'"):
        config.check([history()])


@pytest.mark.parametrize(
    ("spec", "tables", "why"),
    [
        (history(optimizer="adam"), {}, "its optimizer, adam, needs a copy of it on every device"),
        (history(), {"item": {"sharding": "row_wise"}}, "planning.tables places it row_wise"),
        (history(rows=7), {}, "it has 7 rows for 8 devices"),
    ],
)
def test_a_table_of_sequences_without_tiers_has_its_reason(spec: TableSpec, tables: dict[str, Any], why: str) -> None:
    notes = planned(spec, tables=tables).notes
    assert any(note.startswith("flexshard: no table has tiers") for note in notes)
    assert any(f"table 'item' has no tiers: {why}" in note for note in notes)
    beside = planned(spec, history(name="other"), tables=tables).notes
    assert any(f"table 'item' has no tiers: {why}" in note for note in beside)


def test_no_extra_memory_is_that_of_each_look_up_sent() -> None:
    """Rows of equal frequency, so that each figure is that of one row times their number."""
    spec, topology = history(400, 16, "sgd"), where(2, 2)
    tiered = problem(spec, topology, [50] * 400).tiered(spec)
    needed = 1 - (1 - 1 / 400) ** tiered.lookups
    host, world = (1 - (1 - 1 / 400) ** (ranks * tiered.lookups) for ranks in (2, 4))
    split, copied = kept_bytes([tiered], [TierCounts(0, 0)]), kept_bytes([tiered], [TierCounts(400, 0)])
    assert split == pytest.approx(400 * (64 / 4 + 2 * needed * (64 + 4) + 4 + 4 / 4), rel=1e-6)
    assert copied == pytest.approx(
        400 * (64 + 64 * (2 * needed + world + (host + world) / 2) + 2 + 4 / 4 + 5 / 2 + 8), rel=1e-6
    )
    assert baseline_bytes(tiered)[2] == pytest.approx(400 * 64 / 4 + tiered.lookups * (8 + 2 * 64), rel=1e-6)


@pytest.mark.parametrize("extra", [0, 2_000, 10_000])
def test_copies_take_no_more_than_the_extra_memory(extra: int) -> None:
    """Rows that a rank needs in three of five steps are worth copies of all of them, for which memory is short."""
    spec, counts = history(700), [1_000] * 700

    def kept(extra_memory: int | None) -> float:
        section = {"planner": {"name": "flexshard", "extra_memory": extra_memory}, "reserve": 0}
        counted = statistics(sum(counts) // LENGTH, {"item": counts})
        found = plan_tables([spec], counted, where(), PlanningConfig.model_validate(section), BATCH)
        return sum(load.kept_bytes for load in found.tiers[0].tiers)

    allowed = extra + baseline_bytes(problem(spec, where(), counts).tiered(spec))[2]
    assert allowed - 500 < kept(extra) <= allowed * (1 + 1e-6)
    assert kept(extra) < kept(extra + 2_000) < kept(None)


def test_copies_that_save_little_are_left_out() -> None:
    saving = planned(history(), planner={"least_gain": 0})
    copied = saving.plan.placements["item"]
    assert (copied.copied_rows or 0) + (copied.host_rows or 0) > 0
    none = planned(history(), planner={"least_gain": 0.9})
    placement = none.plan.placements["item"]
    assert (placement.sharding, placement.copied_rows, placement.host_rows) == ("row_tiers", 0, 0)
    assert any("of the tables' modelled time, so there are none" in note for note in none.notes)
    assert none.step_seconds > saving.step_seconds


def test_a_table_that_no_training_row_looks_up_has_no_copies() -> None:
    config = PlanningConfig.model_validate({"planner": {"name": "flexshard"}, "reserve": 0})
    found = plan_tables((history(),), statistics(1000, {"item": [0] * 500}), where(), config, BATCH)
    placement = found.plan.placements["item"]
    assert (placement.sharding, placement.copied_rows, placement.host_rows) == ("row_tiers", 0, 0)


def test_growth_with_ranks() -> None:
    spec = history(5000)
    config = PlanningConfig.model_validate({"planner": {"name": "flexshard"}, "reserve": 0})
    given = problem_of([spec], statistics(50_000, {"item": zipf(5000)}), where(), config, BATCH)
    grown = growth(given, spec, [1, 2, 4, 16], FlexShard.Config())
    assert [each.ranks for each in grown] == [2, 4, 8, 32]
    now = planned(spec).tiers[0].alternatives[0]
    assert grown[2].in_tiers.inter_bytes == pytest.approx(now.inter_bytes, rel=1e-6)
    assert grown[0].in_tiers.inter_bytes == 0
    for each in grown[1:]:
        assert each.in_tiers.inter_bytes < each.split.inter_bytes < each.every_look_up.inter_bytes
    per_rank = [each.in_tiers.inter_bytes / each.ranks for each in grown]
    assert per_rank == sorted(per_rank)
    saved = [1 - each.in_tiers.inter_bytes / each.split.inter_bytes for each in grown[1:]]
    assert saved[1:] == pytest.approx([0.1, 0.1], abs=0.03)  # it tends to a limit


@pytest.mark.parametrize(
    ("settings", "counts"),
    [({"least_gain": 0.9}, zipf(700)), ({"slack": 0.2}, zipf(700)), ({"extra_memory": None}, [1_000] * 700)],
)
def test_growth_has_the_settings_of_the_planner(settings: dict[str, Any], counts: list[int]) -> None:
    """On as many hosts as the problem has, the numbers are those of the plan."""
    spec = history(700)
    given = problem(spec, where(), counts)
    config = FlexShard.Config.model_validate(settings)
    (grown,) = growth(given, spec, [4], config)
    placement = FlexShard(config).plan(given).placements["item"]
    assert (grown.counts.copied, grown.counts.host) == (placement.copied_rows, placement.host_rows)
    (other,) = growth(given, spec, [4], FlexShard.Config())
    assert grown.counts != other.counts
