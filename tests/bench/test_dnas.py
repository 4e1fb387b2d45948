"""The benchmark of architectures: its planted log, what counts as products of columns, and its figures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bench.quality.dnas import DNAS, interval, layers_of_products, own_proposals
from bench.quality.dnas_logs import NOISE, SIGNAL, planted, planted_columns, planted_search


def test_the_planted_log_is_written_once(tmp_path: Path) -> None:
    """A case that was interrupted goes on with the log that it began with: a run refuses a newer one."""
    first = planted(tmp_path, 500)
    before = (tmp_path / "log.csv").stat().st_mtime_ns, (tmp_path / "log.csv").read_bytes()
    assert planted(tmp_path, 500) == first
    assert ((tmp_path / "log.csv").stat().st_mtime_ns, (tmp_path / "log.csv").read_bytes()) == before
    planted(tmp_path, 600)
    assert pl.read_csv(tmp_path / "log.csv").height == 600


def test_columns_tell_nothing_alone_and_much_in_pairs() -> None:
    frame, logit = planted_columns(50_000)
    assert logit.std() == pytest.approx(1.75)
    assert {frame[name].n_unique() for name in (*SIGNAL, *NOISE)} == {30}
    chance = 1 / (1 + np.exp(-logit))
    frame = frame.with_columns(pl.Series("logit", logit))
    of_single = {name: frame.group_by(name).agg(pl.col("logit").mean())["logit"].std() for name in SIGNAL}
    assert all(float(each or 0) < 0.2 for each in of_single.values())  # pyright: ignore[reportArgumentType]
    of_pair = frame.group_by("a", "b").agg(pl.col("logit").mean(), pl.len()).filter(pl.col("len") > 1)["logit"].std()
    assert float(of_pair or 0) > 1  # pyright: ignore[reportArgumentType]
    assert np.corrcoef(frame["click"].to_numpy(), chance)[0, 1] > 0.5


def test_the_planted_search_keeps_all_rows_and_may_spend_half_of_the_bytes() -> None:
    config = planted_search({"flops": 1000.0, "bytes": 800.0})
    assert (config.limits.flops, config.limits.bytes) == (1000.0, 400.0)
    assert config.tables.rows == (1.0,)
    assert config.supernet.masks == "soft"


@pytest.mark.parametrize(
    ("layers", "count"),
    [
        (["cross", "none"], 0),  # squares of single fields
        (["none", "cross"], 0),
        (["linear", "cross"], 1),
        (["convolution", "cross"], 1),
        (["cross", "linear"], 0),
        (["dot_product", "none"], 1),
        (["dot_product", "mask"], 2),
        (["mlp", "convolution"], 0),
        (["linear", "cross", "cross"], 2),
    ],
)
def test_products_of_columns_are_counted(layers: list[str], count: int) -> None:
    assert layers_of_products(layers) == count


def test_an_interval_is_students() -> None:
    low, high = interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))
    assert interval([1.0]) == (-math.inf, math.inf)


def test_proposals_of_a_method_are_those_after_its_random_ones() -> None:
    said = own_proposals([{"tpe": 10, "evolution": 3}, {"tpe": 5, "evolution": 9}])
    assert "7 of 15 trials of tpe" in said
    assert "5 of 12 trials of evolution" in said


def test_every_log_has_a_bound_on_flops() -> None:
    bounds = {name: each for name, each in DNAS.targets.items() if name.endswith(".flops_most")}
    assert len(bounds) == 4
    assert all(each.direction == "at most" for each in bounds.values())
