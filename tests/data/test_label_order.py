"""Ids are told from quantities by what they say of the label, where their values leave it open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

from ziggurat.cli.init import draft_config
from ziggurat.data.inference.label_order import LabelOrder, label_order
from ziggurat.training.api import prepare
from ziggurat.training.experiment import parse_experiment

ROWS = 40_000
Values = npt.NDArray[np.int64]


def drawn(values: Values, rates: npt.NDArray[np.float64], seed: int = 1) -> npt.NDArray[np.float64]:
    """Draws a label for each row; ``rates`` are by value."""
    return (np.random.default_rng(seed).random(len(values)) < rates[values]).astype(np.float64)


@pytest.fixture
def values() -> Values:
    """Numbers from 0 to 499, the small ones most often and without gaps, so that they may be ids and quantities."""
    return np.minimum(np.random.default_rng(0).exponential(80, ROWS).astype(np.int64), 499)


@pytest.mark.parametrize("rate", [0.3, 0.02])
def test_rates_without_order_are_of_ids(values: Values, rate: float) -> None:
    rates = rate * np.random.default_rng(2).gamma(2, 0.5, 500).clip(0, 3)
    found = label_order(values, drawn(values, rates))
    assert found.quantity is False
    assert found.differences > 6
    assert not found.mixed


def test_rates_that_follow_the_values_are_of_quantities(values: Values) -> None:
    smooth = 0.2 + 0.15 * np.sin(np.arange(500) / 60)
    found = label_order(values, drawn(values, smooth))
    assert found.quantity is True
    assert 0.6 < found.shared < 1.5


def test_many_values_with_few_rows_are_told_by_their_order() -> None:
    values = np.random.default_rng(3).integers(0, 30_000, ROWS)
    found = label_order(values, drawn(values, np.linspace(0.05, 0.5, 30_000)))
    assert found.quantity is True


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", [0.5, 0.01, 0.001])
def test_chance_decides_nothing(values: Values, rate: float, seed: int) -> None:
    found = label_order(values, drawn(values, np.full(500, rate), seed))
    assert found.quantity is None
    assert not found.mixed
    spread = np.random.default_rng(seed).permutation(ROWS)  # a row or two a value
    assert label_order(spread // 2, drawn(values, np.full(500, rate), seed)).quantity is None


def test_both_is_mixed(values: Values) -> None:
    rates = np.linspace(0.1, 0.5, 500) + np.random.default_rng(4).normal(0, 0.06, 500)
    found = label_order(values, drawn(values, rates.clip(0, 1)))
    assert (found.quantity, found.mixed) == (None, True)


def test_rows_that_were_written_twice_do_not_make_ids() -> None:
    values = np.arange(ROWS) // 2
    labels = np.repeat(drawn(np.zeros(ROWS // 2, np.int64), np.array([0.3])), 2)
    found = label_order(values, labels)
    assert found.differences > 6
    assert found.quantity is None


def test_labels_without_spread_and_few_values_decide_nothing(values: Values) -> None:
    assert label_order(values, np.ones(ROWS)) == LabelOrder()
    assert label_order(values % 5, drawn(values, np.full(500, 0.3))) == LabelOrder()
    assert label_order(values[:0], np.zeros(0)) == LabelOrder()


def written(folder: Path, values: Values, labels: npt.NDArray[np.float64]) -> str:
    columns = {"colour": values % 7, "x": values, "click": labels.astype(np.int64)}
    pl.DataFrame(columns).write_csv(folder / "log.csv")
    return draft_config(folder / "log.csv")


def test_init_goes_by_the_label_and_offers_the_other_way(tmp_path: Path, values: Values) -> None:
    without = written(tmp_path, values, drawn(values, np.full(500, 0.3)))
    assert "- {name: x, kind: numeric" in without
    assert "offered beside it" not in without
    rates = 0.3 * np.random.default_rng(2).gamma(2, 0.5, 500).clip(0, 3)
    text = written(tmp_path, values, drawn(values, rates))
    line = next(line for line in text.splitlines() if "- {name: x," in line)
    assert "kind: categorical" in line
    assert "the label differs between them without order" in line
    offered = next(line for line in text.splitlines() if "offered beside it" in line)
    assert "# - {name: x_number, kind: numeric, column: x," in offered
    assert "by the values alone: neighbouring values are about equally frequent" in offered
    experiment = parse_experiment(text.replace("  # - {name: x_number", "  - {name: x_number").encode(), Path("both"))
    prepared = prepare(experiment, tmp_path / "prepared")
    assert prepared.schema.dense == ("x_number",)
    assert set(prepared.schema.categorical) == {"colour", "x"}


def test_a_name_decides_before_the_label(tmp_path: Path, values: Values) -> None:
    rates = 0.3 * np.random.default_rng(2).gamma(2, 0.5, 500).clip(0, 3)
    frame = pl.DataFrame({"price": values, "click": drawn(values, rates).astype(np.int64)})
    frame.write_csv(tmp_path / "log.csv")
    assert "- {name: price, kind: numeric" in draft_config(tmp_path / "log.csv")


def test_the_last_word_decides_of_a_name_with_words_of_both_kinds(tmp_path: Path, values: Values) -> None:
    ids = ["rate_code_id", "price_id", "size_id", "age_group_id", "cost_center_id", "loss_code", "number_hash"]
    quantities, open_ones = ["id_count", "userAge", "item_price"], ["days_by_item", "ad_views_seen"]
    rates = 0.3 * np.random.default_rng(2).gamma(2, 0.5, 500).clip(0, 3)
    frame = pl.DataFrame(dict.fromkeys([*ids, *quantities, *open_ones], values))
    for labels, kind in ((drawn(values, np.full(500, 0.3)), "numeric"), (drawn(values, rates), "categorical")):
        frame.with_columns(click=labels.astype(np.int64)).write_csv(tmp_path / "log.csv")
        lines = draft_config(tmp_path / "log.csv").splitlines()
        found = {name: line for name in frame.columns for line in lines if f"- {{name: {name}, kind:" in line}
        assert all("kind: categorical" in found[name] and "ids by its name" in found[name] for name in ids)
        assert all("kind: numeric" in found[name] and "a quantity by its name" in found[name] for name in quantities)
        assert all(f"kind: {kind}" in found[name] for name in open_ones)
        assert sum("offered beside it" in line for line in lines) == len(open_ones)
        other = "words of its name are of either kind" if kind == "numeric" else "by the values alone"
        assert sum(f"offered beside it: {other}" in line for line in lines) == len(open_ones)
