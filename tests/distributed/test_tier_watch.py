"""The watch of tiers compares a rank's look-ups with those that the plan expects, and notes those that have moved."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from ziggurat.core.plan import Placement
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.row_tiers.distinct_rows import TierBounds
from ziggurat.parallel.world import World
from ziggurat.training.placement.tier_watch import TierWatch

CPU, EVERYWHERE = torch.device("cpu"), tuple(range(4))


class _Rows:
    """A table of 20 rows, 4 copied to every rank and 6 to every host, without its rows."""

    spec = TableSpec("t", 20, 8, ("t",), "sum", {"name": "sgd"}, 0.01)
    bounds = TierBounds(spec, Placement("row_tiers", EVERYWHERE, None, None, 4, 6), World(0, 4, 2), CPU)


def test_lookups_that_move_to_other_rows_are_noted_once() -> None:
    """Two look-ups an example; rows 19, 18, … are looked up less and less."""
    accesses = np.arange(20, dtype=np.int64)
    statistics = DatasetStatistics(rows={"train": 95}, label_rates={}, tables={"t": TableStatistics("t", 20, accesses)})
    watch = TierWatch([cast("Any", _Rows)], statistics, examples=3, world=World(0, 4, 2))
    total = {"t/copied_lookups": 60.0, "t/host_lookups": 100.0, "t/split_lookups": 40.0}
    total |= {"t/copied_rows": 10.0, "t/host_rows": 10.0, "t/split_rows": 30.0}
    figures = watch.figures({}, total, steps=10)
    assert [figures[f"t/{tier}_share"] for tier in ("copied", "host", "split")] == pytest.approx([0.3, 0.5, 0.2])
    expected = [figures[f"t/{tier}_share_expected"] for tier in ("copied", "host", "split")]
    assert expected == pytest.approx([(16 + 17 + 18 + 19) / 190, sum(range(10, 16)) / 190, sum(range(10)) / 190])
    assert figures["t/split_rows"] == 3
    shares = np.arange(20) / 190
    assert figures["t/split_rows_expected"] == pytest.approx(sum(1 - (1 - share) ** 6 for share in shares[:10]))
    touched = [1 - (1 - share) ** 6 for share in shares[::-1]]
    of_pairs = [1 - (1 - share) ** 12 for share in shares[::-1]]
    of_all = [1 - (1 - share) ** 24 for share in shares[::-1]]
    row, position = 4 * 8, 4
    assert figures["host_rows_bytes_in_host_expected"] == pytest.approx(sum(touched[4:10]) * (position + row) / 2)
    split = sum(touched[10:]) * (position + 2 * row) / 4
    assert figures["split_rows_bytes_in_host_expected"] == pytest.approx(split)
    assert figures["split_rows_bytes_between_hosts_expected"] == pytest.approx(2 * split)
    inside = sum(touched[:10]) + sum(of_all[:4])  # to the rank that sums a row, and back to the other that copies it
    assert figures["copies_bytes_in_host_expected"] == pytest.approx(inside * row / 2 + 4 / 8)
    flags = 4 * (4 - 2) / 8 + 6 * 1 / (8 * 2)
    between = sum(of_pairs[:10]) * row / 2 + flags  # each host's sums to the other
    assert figures["copies_bytes_between_hosts_expected"] == pytest.approx(between)
    assert not watch.notes(figures)
    moved = watch.figures(total, {**total, "t/split_lookups": 140.0, "t/copied_lookups": 160.0}, steps=10)
    assert moved["t/split_share"] == 0.5
    (note,) = watch.notes(moved)
    assert "table 't': 50% of its look-ups are of copied rows, 76% were expected" in note
    assert not watch.notes(moved)


@pytest.mark.parametrize(("copied", "hosts"), [(0, 0), (40, 50)])
def test_lookups_that_gather_on_fewer_rows_are_noted(copied: int, hosts: int) -> None:
    """64 look-ups of 1,000 rows of equal frequency; then all of them are of 10 rows, copied or not."""

    class Rows:
        spec = TableSpec("t", 1000, 8, ("t",), "sum", {"name": "sgd"}, 0.01)
        bounds = TierBounds(spec, Placement("row_tiers", EVERYWHERE, None, None, copied, hosts), World(0, 4, 2), CPU)

    counted = TableStatistics("t", 1000, np.full(1000, 100, np.int64))
    statistics = DatasetStatistics(rows={"train": 100_000}, label_rates={}, tables={"t": counted})
    watch = TierWatch([cast("Any", Rows)], statistics, examples=64, world=World(0, 4, 2))
    expected = watch.figures({}, {"t/split_rows": 0.0}, steps=1)
    usual: dict[str, float] = {}
    for tier in ("copied", "host", "split"):
        usual[f"t/{tier}_lookups"] = 64 * expected[f"t/{tier}_share_expected"]
        usual[f"t/{tier}_rows"] = expected[f"t/{tier}_rows_expected"]
    assert not watch.notes(watch.figures({}, usual, steps=1))
    few = {f"t/{tier}_rows": usual[f"t/{tier}_rows"] * 10 / 62 for tier in ("copied", "host", "split")}
    (note,) = watch.notes(watch.figures({}, usual | few, steps=1))
    assert "a batch needs 10 distinct rows, 62 were expected" in note


def test_lookups_that_move_to_copied_rows_are_noted() -> None:
    accesses = np.ones(20, np.int64)
    statistics = DatasetStatistics(rows={"train": 10}, label_rates={}, tables={"t": TableStatistics("t", 20, accesses)})
    watch = TierWatch([cast("Any", _Rows)], statistics, examples=3, world=World(0, 4, 2))
    (note,) = watch.notes(watch.figures({}, {"t/copied_lookups": 6.0, "t/copied_rows": 4.0}, steps=1))
    assert "table 't': 100% of its look-ups are of copied rows, 50% were expected" in note
