"""Tables of row tiers beside others: at both ends they equal other shardings, and checkpoints know no tiers."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.distributed.rank_parts import part
from tests.distributed.ranks import run_ranks
from tests.distributed.test_dirty_rows_of_ranks import differ, everything, ids_in, place, whole
from tests.distributed.tier_cases import (
    BATCH,
    CPU,
    DIM,
    OPTIMIZERS,
    ROWS,
    batch,
    layout_of,
    looked_up,
    lookup_of,
    tiers_of,
    trained,
)
from ziggurat.core.errors import InvalidSection, ZigguratError
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.embeddings.offload import OffloadFolder
from ziggurat.embeddings.row_order import RowOrder
from ziggurat.embeddings.row_tiers.distinct_rows import TierBounds
from ziggurat.embeddings.row_tiers.flags import packed, packed_by_torch, padded, unpacked, unpacked_by_torch
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.tensor_slices import gather
from ziggurat.parallel.world import World
from ziggurat.planning.access_curve import AccessCurve
from ziggurat.planning.constraints import check_placement
from ziggurat.planning.tier_cost import PricedTable

WORLD, LOCAL, STEPS = 4, 2, 8
EVERYWHERE = tuple(range(WORLD))
ALL = {name: (rows, 0) for name, rows in ROWS.items()}
NONE = dict.fromkeys(ROWS, (0, 0))
FEW = {"user": (43, 0), "item": (10, 118), "tags": (0, 23)}
"""The rows that are split over all ranks are fewer than the ranks."""
SLOTS = {"user": 7, "item": 17, "tags": 4}
"""Slots of each rank; it holds 9, 23 and 5 rows of those that are split over all ranks."""
HOSTS = {name: (0, rows) for name, rows in ROWS.items()}
MIXED = tiers_of(WORLD, LOCAL).placed("user", "row_wise", EVERYWHERE).placed("tags", "data_parallel", EVERYWHERE)
SHARDINGS = {
    "data_parallel": Plan(WORLD, dict.fromkeys(ROWS, Placement("data_parallel", EVERYWHERE)), LOCAL),
    "row_wise": Plan(WORLD, dict.fromkeys(ROWS, Placement("row_wise", EVERYWHERE, 0)), LOCAL),
}


def compare_ends(rank: int) -> dict[str, Any]:
    """Returns what all kinds of plans train, in one process group."""
    rowwise = OPTIMIZERS[1]
    plans = {"all": tiers_of(WORLD, LOCAL, ALL), "none": tiers_of(WORLD, LOCAL, NONE)}
    plans |= {"hosts": tiers_of(WORLD, LOCAL, HOSTS), "few": tiers_of(WORLD, LOCAL, FEW), "mixed": MIXED, **SHARDINGS}
    found = {name: trained(plan, rowwise, STEPS) for name, plan in plans.items()}
    reduced = ParallelConfig(forward_precision="bf16", backward_precision="fp16")
    found["reduced"] = trained(tiers_of(WORLD, LOCAL), rowwise, STEPS, reduced)
    found["tiers"] = trained(tiers_of(WORLD, LOCAL), rowwise, STEPS)
    adagrad = {"name": "adagrad", "lr": 0.1}
    found |= {f"adagrad_{name}": trained(plans[name], adagrad, STEPS) for name in ("mixed", "row_wise")}
    found["marks"] = marked(rank)
    found["late"], found["partial"] = late(), partial(plans)
    found["in_memory"], found["on_disk"] = (contents(slots) for slots in (None, SLOTS))
    return found


def late() -> list[str]:
    """Returns the errors of backward passes of batches that are no longer on their way, and of those that are."""
    plan = tiers_of(WORLD, LOCAL)
    lookup, errors = lookup_of(plan, OPTIMIZERS[0]), list[str]()

    def back(loss: torch.Tensor) -> None:
        try:
            loss.backward()
        except ZigguratError as error:
            errors.append(str(error))
        else:
            errors.append("")

    first, second = (looked_up(lookup, batch(step), plan, step, ahead=False) for step in (0, 1))
    back(second)
    back(first)  # another batch was looked up since
    lookup.exchange()
    third = looked_up(lookup, batch(2), plan, 2, ahead=False)
    lookup.release()
    back(third)
    fourth = looked_up(lookup, batch(3), plan, 3, ahead=False)
    with torch.no_grad():
        lookup.finish(lookup.start(batch(50)))
    back(fourth)
    lookup.exchange()
    return errors


def partial(plans: dict[str, Plan]) -> dict[str, Any]:
    """Returns what plans train where some features, and whole tables, get no gradient.

    A user and the history get one, the item, looked up in the same table before the history, and the tags do not.
    """
    found: dict[str, Any] = {}
    for name in ("mixed", "row_wise", "tiers"):
        plan = tiers_of(WORLD, LOCAL) if name == "tiers" else plans[name]
        lookup = lookup_of(plan, OPTIMIZERS[0])
        before = gather(lookup.tensor_slices())
        for step in range(3):
            rows = lookup.finish(lookup.start(part(batch(step), dist.get_rank(), WORLD))).by_feature
            loss = sum((rows[each] * rows[each].detach().sin()).sum() for each in ("user", "history"))
            (loss * (WORLD / BATCH)).backward()  # pyright: ignore[reportAttributeAccessIssue]
            lookup.exchange()
        found[name] = gather(lookup.tensor_slices())
        found[f"{name}_before"] = before
    return found


def contents(slots: dict[str, int] | None) -> dict[str, Any]:
    """Returns the rows and states of this rank's shards after some steps, with the rows of the last tier on a disk."""
    plan = tiers_of(WORLD, LOCAL)
    with tempfile.TemporaryDirectory() as folder:
        if slots is not None:
            placements = {name: replace(each, slots=slots[name]) for name, each in plan.placements.items()}
            plan = replace(plan, placements=placements)
        lookup = lookup_of(plan, OPTIMIZERS[1], offload=OffloadFolder(Path(folder), "threads"))
        coming = [lookup.start(part(batch(0), dist.get_rank(), WORLD))]
        for step in range(STEPS):
            coming.append(lookup.start(part(batch(step + 1), dist.get_rank(), WORLD)))
            rows = lookup.finish(coming.pop(0)).by_feature
            (torch.stack([(each * each.detach().sin()).sum() for each in rows.values()]).sum() / BATCH).backward()
            lookup.exchange()
            if step == 3:
                with torch.no_grad():  # before the batch that waits
                    lookup.finish(lookup.start(part(batch(step + 50), dist.get_rank(), WORLD)))
        lookup.drop(coming.pop())
        taken = {place(shard): everything(shard.dirty.begin_snapshot("all", "base"), 5)[1] for shard in lookup.shards()}
        ids = {place(shard): shard.weight.rows for shard in lookup.shards()}
        transferred = lookup.transferred()
        lookup.close()
    return {"taken": taken, "ids": ids, "transferred": transferred}


def marked(rank: int) -> dict[str, Any]:
    """Returns by step the ids of rows marked and changed, by shard; and what full snapshots during steps hold."""
    plan = tiers_of(WORLD, LOCAL)
    lookup = lookup_of(plan, OPTIMIZERS[1])
    shards = lookup.shards()
    marks: list[dict[Any, tuple[list[int], list[int]]]] = []

    def step(number: int) -> None:
        (looked_up(lookup, batch(number), plan, number, ahead=True) * WORLD).backward()
        lookup.exchange()

    for number in range(3):
        before = {place(shard): whole(shard) for shard in shards}
        step(number)
        with torch.no_grad():
            lookup.finish(lookup.start(batch(number + 50)))
        lookup.drop(lookup.start(batch(number + 60)))  # never looked up
        lookup.finish(lookup.start(batch(number + 70)))
        lookup.release()  # no backward pass
        taken = {place(shard): (shard, shard.dirty.begin_snapshot("last", "last")) for shard in shards}
        marks.append(
            {
                at: (ids_in(shard, everything(each, 4)[0]), differ(shard, before[at]))
                for at, (shard, each) in taken.items()
            }
        )
    then, pending = [whole(shard) for shard in shards], [shard.dirty.begin_snapshot("all", "base") for shard in shards]
    step(3)
    held = [everything(each, 3)[1] for each in pending]
    same = all(
        torch.equal(numbers[name], tensor)
        for numbers, expected in zip(held, then, strict=True)
        for name, tensor in expected.items()
    )
    return {"marks": marks, "same": same, "rank": rank}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks(WORLD, compare_ends)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("all", "data_parallel"),
        ("none", "row_wise"),
        ("hosts", "row_wise"),
        ("mixed", "tiers"),
        ("few", "tiers"),
        ("adagrad_mixed", "adagrad_row_wise"),
    ],
)
def test_tiers_at_their_ends_equal_other_shardings(name: str, other: str, ranks: list[dict[str, Any]]) -> None:
    """All rows copied is data_parallel, none is row_wise; and other tables may have other shardings."""
    for found in ranks:
        for feature, rows in found[other]["first"].items():
            torch.testing.assert_close(found[name]["first"][feature], rows, rtol=0, atol=6e-8)
    for ours, theirs in zip(ranks[0][name]["whole"], ranks[0][other]["whole"], strict=True):
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            torch.testing.assert_close(ours[key], tensor, rtol=0, atol=1e-6)
    assert not any(found[name]["unequal"] for found in ranks)


def test_rows_of_the_last_tier_on_a_disk_equal_those_in_memory(ranks: list[dict[str, Any]]) -> None:
    """Weights and states of all shards, to the bit; and rows did go to the disk."""
    for found in ranks:
        inside, beyond = found["in_memory"], found["on_disk"]
        assert inside["taken"].keys() == beyond["taken"].keys()
        for at, tensors in inside["taken"].items():
            assert torch.equal(inside["ids"][at], beyond["ids"][at])
            for name, tensor in tensors.items():
                assert torch.equal(beyond["taken"][at][name], tensor), (at, name)
        assert not inside["transferred"]
    assert sum(found["on_disk"]["transferred"]["writes"] for found in ranks) > 0


def test_copies_are_equal_where_numbers_travel_with_16_bits(ranks: list[dict[str, Any]]) -> None:
    assert not any(found["reduced"]["unequal"] for found in ranks)
    for exact, found in zip(ranks[0]["tiers"]["whole"], ranks[0]["reduced"]["whole"], strict=True):
        for name, tensor in exact.items():
            assert not torch.equal(found[name], tensor), name
            torch.testing.assert_close(found[name], tensor, rtol=2e-2, atol=2e-2)


def test_gradients_that_come_too_late_are_refused(ranks: list[dict[str, Any]]) -> None:
    """Without an error, the first of two batches that are looked up before a backward pass would lose its updates."""
    for found in ranks:
        in_time, overtaken, released, beside = found["late"]
        assert in_time == beside == ""
        for error in (overtaken, released):
            assert "that is no longer on its way" in error
            assert "exchange() before the next batch is looked up" in error


def test_features_and_tables_without_gradients_keep_their_rows(ranks: list[dict[str, Any]]) -> None:
    found = ranks[0]["partial"]
    for name in ("tiers", "mixed"):
        assert torch.equal(found[name]["tags"], found[f"{name}_before"]["tags"])
        for table, tensor in found["row_wise"].items():
            torch.testing.assert_close(found[name][table], tensor, rtol=0, atol=1e-6)
    assert not torch.equal(found["tiers"]["item"], found["tiers_before"]["item"])


def test_a_delta_holds_each_changed_row_once(ranks: list[dict[str, Any]]) -> None:
    """Shards of copies have the same place and marks on all their ranks; of equal places one rank writes."""
    for step in range(3):
        written: dict[str, list[int]] = {name: [] for name in ROWS}
        seen: dict[Any, list[int]] = {}
        for rank in ranks:
            for at, (marks, changes) in rank["marks"]["marks"][step].items():
                assert marks == seen.setdefault(at, marks), at
                assert set(changes) <= set(marks)
        for (table, _, _), marks in seen.items():
            written[table] += marks
        for table, ids in written.items():
            assert sorted(ids) == sorted(ids_of(step)[table]), (step, table)
    assert all(rank["marks"]["same"] for rank in ranks)


def test_steps_have_rows_that_an_item_and_a_history_look_up() -> None:
    """Such a row is updated once, or weights would not equal those of a single process (test_row_tiers)."""
    for number in range(STEPS):
        bags = batch(number).bags
        assert bags is not None
        assert _last_of_histories(number) & set(bags["item"].values().tolist())


def _last_of_histories(number: int) -> set[int]:
    """Returns the ids of the positions of a step's histories that are looked up."""
    sequences, count = batch(number).sequences, layout_of(OPTIMIZERS[0]).positions["history"].count
    assert sequences is not None
    found: set[int] = set()
    for first, last in pairwise(sequences["history"].offsets().tolist()):
        found |= set(sequences["history"].values()[max(first, last - count) : last].tolist())
    return found


def ids_of(number: int) -> dict[str, set[int]]:
    """Returns table -> the ids looked up in a step: of a history the last ones alone."""
    found: dict[str, set[int]] = {name: set() for name in ROWS}
    bags = batch(number).bags
    assert bags is not None
    for key, jagged in bags.to_dict().items():
        found[key] |= set(jagged.values().tolist())
    found["item"] |= _last_of_histories(number)
    return found


def test_traffic_is_counted_by_tier(ranks: list[dict[str, Any]]) -> None:
    totals = [found["tiers"]["traffic"] for found in ranks]
    lookups = sum(value for each in totals for name, value in each.items() if name.endswith("_lookups"))
    expected = sum(len(jagged.values()) for number in range(STEPS) for jagged in _bags(number))
    positions = sum(min(length, 6) for number in range(STEPS) for length in _history(number))
    assert lookups == expected + positions
    assert all(each["host_rows_bytes_between_hosts"] == 0 for each in totals)
    none = ranks[0]["none"]["traffic"]
    assert none["split_rows_bytes_between_hosts"] > 0
    assert none["copies_bytes_between_hosts"] == 0
    rows = sum(found["none"]["traffic"][f"{name}/split_rows"] for found in ranks for name in ROWS)
    sent = sum(
        found["none"]["traffic"][f"split_rows_bytes_{where}"]
        for found in ranks
        for where in ("in_host", "between_hosts")
    )
    assert 0 < sent < rows * (4 + 2 * 4 * DIM)  # an id, a row, a gradient; those of the rank itself are not sent


def _bags(number: int) -> list[Any]:
    bags = batch(number).bags
    assert bags is not None
    return list(bags.to_dict().values())


def _history(number: int) -> list[int]:
    sequences = batch(number).sequences
    assert sequences is not None
    return sequences.lengths().tolist()


@pytest.mark.parametrize("rows", [0, 1, 8, 13])
def test_flags_are_packed_as_torch_packs_them(rows: int) -> None:
    flags = torch.from_numpy(np.random.default_rng(rows).random((3, padded(rows))) < 0.5)
    assert torch.equal(packed(flags), packed_by_torch(flags))
    assert torch.equal(unpacked(packed(flags)), flags)
    assert torch.equal(unpacked_by_torch(packed(flags)), flags)


def test_distinct_rows_are_classified() -> None:
    """Of 12 rows 3 are on every rank, in ranges of 2 and 1; 4 on every host, 2 a rank; 5 over 4 ranks, 2, 2, 1, 0."""
    placement = Placement("row_tiers", EVERYWHERE, None, None, 3, 4)
    spec = TableSpec("t", 12, 8, ("t",), "sum", {"name": "sgd"}, 0.01)
    bounds = TierBounds(spec, placement, World(2, 4, 2), CPU)
    found = bounds.distinct(torch.tensor([11, 0, 2, 4, 11, 5, 7, 9, 2]))
    assert found.positions_U.tolist() == [0, 2, 4, 5, 7, 9, 11]
    assert found.positions_U[found.inverse_L].tolist() == [11, 0, 2, 4, 11, 5, 7, 9, 2]
    assert (found.copied, found.hosts, found.split) == ([1, 1], [1, 1], [1, 1, 1, 0])
    assert found.lookups() == [3, 2, 4]
    empty = bounds.distinct(torch.zeros(0, dtype=torch.int64))
    assert empty.lookups() == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": {"name": "adam", "rows": "touched"}}, "its optimizer is adam"),
        ({"copied_rows": 13}, "13 rows copied to every rank"),
        ({"slots": 4, "host_rows": 9}, "all rows are copied"),
        ({"ranks": (0, 1)}, "every rank in order"),
    ],
)
def test_what_tiers_cannot_do_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    topology = Topology(2, 2, "test", "cuda", 10**9, 1.0, 1.0, 1.0)
    given = {"ranks": EVERYWHERE, "slots": None, "copied_rows": 3, "host_rows": 4, "optimizer": {"name": "sgd"}}
    given |= change
    spec = TableSpec("t", 12, 8, ("t",), "sum", given.pop("optimizer"), 0.01)
    with pytest.raises(InvalidSection, match=message):
        check_placement(spec, Placement("row_tiers", **given), topology)


@pytest.mark.parametrize(("copied", "hosts"), [(0, 0), (4, 6), (20, 0), (0, 20)])
def test_the_order_of_rows_takes_what_the_cost_model_counts(copied: int, hosts: int) -> None:
    """Nothing is looked up, so that the model counts flags and the order alone, beside weights and states."""
    spec = TableSpec("t", 400, 8, ("t",), "sum", {"name": "sgd"}, 0.01)
    copied, hosts = 20 * copied, 20 * hosts
    plan = Plan(WORLD, {"t": Placement("row_tiers", EVERYWHERE, None, None, copied, hosts)}, LOCAL)
    order = RowOrder([spec], plan, {"t": np.arange(400, dtype=np.int32)}, CPU)
    assert order.held_bytes == 4 * 400
    for shard in plan.shards(spec):
        if shard.rank == 0 and shard.rows.size:
            order.row_ids("t", shard.rows.first, shard.rows.size)
    topology = Topology(2, 2, "test", "cpu", 10**9, 1.0, 1.0, 1.0)
    tiered = PricedTable(spec, AccessCurve(1.0, 400, np.array([400.0]), np.array([1 / 400])), topology, 0)
    flags = copied * (2 + WORLD / 4 + 5 / 2) + hosts * (17 / 8 * 2 + 1) / 2
    assert order.held_bytes == pytest.approx(sum(load.buffer_bytes for load in tiered.loads(copied, hosts)) - flags)
