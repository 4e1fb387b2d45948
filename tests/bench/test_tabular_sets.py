"""The tables of the benchmark of pipelines: kinds told from values, capped rows, splits; none is fetched here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from bench.quality.tabular.labelled import TEST_SHARE, labelled, split, typed
from bench.quality.tabular.others import drawn, shipped_sets
from bench.quality.tabular.sets import LOGS, TABLES


def test_kinds_are_told_from_the_values() -> None:
    columns = {
        "text": ["a", "b", None],
        "codes": ["1", "2", "3"],
        "tenths": ["0.5", "1.0", "1.5"],
        "mixed": ["1", "2", "x"],
        "floats": [1.5, float("nan"), 2.5],
        "whole": [1.0, 2.0, None],
    }
    kinds = {name: typed(pl.Series(name, values))[1] for name, values in columns.items()}
    assert kinds == {
        "text": "categorical", "codes": "categorical", "tenths": "numeric", "mixed": "categorical",
        "floats": "numeric", "whole": "categorical",
    }  # fmt: skip
    assert typed(pl.Series("many", [str(each) for each in range(6)]))[1] == "numeric"
    numbers, _ = typed(pl.Series("floats", columns["floats"]))
    assert numbers.to_list() == [1.5, None, 2.5]


def test_rows_are_capped_by_class_and_constant_columns_left_out() -> None:
    frame = pl.DataFrame({"x": np.arange(1000) / 7, "same": [1] * 1000, "y": ["rare"] * 100 + ["often"] * 900})
    table = labelled("t", frame, 200)
    assert table.classes == ("often", "rare")
    assert [each.name for each in table.columns] == ["x"]
    assert Counter(table.labels.tolist()) == {0: 180, 1: 20}
    assert labelled("t", frame, 200).digest() == table.digest()


def test_splits_share_no_row_and_keep_the_classes() -> None:
    frame = pl.DataFrame({"x": np.arange(300) / 7, "y": [0, 1, 1] * 100})
    table = labelled("t", frame, 2000)
    train, test = split(table, 3)
    assert len(test.labels) == round(TEST_SHARE * 300)
    both = np.concatenate([train.columns[0].values, test.columns[0].values])
    assert sorted(both.tolist()) == sorted(table.columns[0].values.tolist())
    assert test.labels.mean() == table.labels.mean()
    assert split(table, 3)[1].digest() == test.digest()
    assert split(table, 4)[1].digest() != test.digest()


def test_there_are_at_least_thirty_sets_and_none_twice() -> None:
    names = [each.name for each in TABLES]
    assert len(names) == len(set(names)) >= 30
    assert not {"crx", "australian", "wdbc", "optdigits"} & set(names)
    assert [each.name for each in LOGS if each.given] == ["criteo_sample"]


def test_shipped_and_drawn_sets_are_tables() -> None:
    sizes = {each.name: each.load(Path(), None) for each in shipped_sets()}
    assert {name: (len(table.columns), len(table.classes)) for name, table in sizes.items()} == {
        "iris": (4, 3), "wine": (13, 3), "breast_cancer": (30, 2), "digits": (61, 10),
    }  # fmt: skip
    table = labelled("drawn", drawn(2000), 2000)
    kinds = {each.name: each.kind for each in table.columns}
    assert [name for name, kind in kinds.items() if kind == "categorical"] == ["shop", "weekday"]
    assert table.column("rating").has_missing
    assert 0.35 < table.labels.mean() < 0.6
