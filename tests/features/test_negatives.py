"""Sampled negatives: never a known positive, reproducible, distributed as declared, with the item's own columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from feature_kit import experiment, write_csv
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.progress import Silent
from ziggurat.core.schema import GROUP_COLUMN, TIME_COLUMN, label_column
from ziggurat.data.encoded.dataset import SPLITS, Dataset, Split
from ziggurat.features.negatives_config import PopularityNegatives, UniformNegatives, protocol
from ziggurat.features.preparation import negatives as module
from ziggurat.features.preparation.negative_sampling import NO_ITEM, NegativeSampler
from ziggurat.features.preparation.prepare import prepare
from ziggurat.features.raw_index import index_raw

IDENTITY = {"name": "identity", "rows": 1000}
FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "categorical", "type": "integer", "encoder": IDENTITY},
    {"name": "item", "kind": "categorical", "type": "integer", "encoder": IDENTITY},
    {"name": "genre", "kind": "categorical", "type": "integer", "encoder": IDENTITY},
    {"name": "tags", "kind": "bag", "type": "integer", "encoder": IDENTITY},
    {"name": "price", "kind": "numeric", "transforms": [{"name": "fill", "value": 0.0}]},
    {"name": "hour", "kind": "categorical", "type": "integer", "encoder": IDENTITY},
]
NEGATIVES = {"name": "uniform", "user": "user", "item": "item", "item_columns": ["genre", "tags", "price"]}


def log(rows: int = 600, users: int = 30, items: int = 40, seed: int = 0) -> dict[str, list[Any]]:
    """Returns a log of positives alone, in which genre, tags and price follow from the item."""
    draw = np.random.default_rng(seed)
    item = np.minimum(draw.geometric(0.08, rows) - 1, items - 1)
    return {
        "user": draw.integers(0, users, rows).tolist(),
        "item": item.tolist(),
        "genre": (item % 7).tolist(),
        "tags": ["|".join(str(tag) for tag in range(each % 4)) for each in item],
        "price": [None if each % 5 == 0 else each * 1.5 for each in item],
        "hour": draw.integers(0, 24, rows).tolist(),
        "t": list(range(rows)),
    }


def prepared(tmp_path: Path, negatives: dict[str, Any], name: str = "prepared", **data: Any) -> Path:
    settings = {"labels": [{"name": "played", "observed": True}], "time": "t", "group": "user", **data}
    parsed = experiment(FEATURES, **{"split": {"name": "time"}, **settings, "folder": tmp_path, "negatives": negatives})
    return prepare(parsed.data, parsed.features, tmp_path / name)


def rows_of(folder: Path, split: Split) -> pa.Table:
    blocks = Dataset(folder).split(split)
    return pa.Table.from_batches([blocks.read(number) for number in range(len(blocks.blocks))])


def test_negatives_follow_their_positives_and_are_never_known_positives(tmp_path: Path) -> None:
    columns = log()
    write_csv(tmp_path / "log.csv", columns)
    known = set(zip(columns["user"], columns["item"], strict=True))
    folder = prepared(tmp_path, {**NEGATIVES, "per_positive": 3, "evaluation": 5})
    sizes = {"train": 480, "validation": 60, "test": 60}
    for split in SPLITS:
        count = 3 if split == "train" else 5
        table = rows_of(folder, split)
        assert table.num_rows == sizes[split] * (1 + count)
        labels = table.column(label_column("played")).to_pylist()
        assert labels == [1.0, *[0.0] * count] * sizes[split]
        rows = table.to_pylist()
        for first in range(0, len(rows), 1 + count):
            positive, *negatives = rows[first : first + 1 + count]
            assert (positive["user"], positive["item"]) in known
            assert len({row["item"] for row in negatives}) == count
            for row in negatives:
                assert (row["user"], row["item"]) not in known
                for kept in ("user", "hour", GROUP_COLUMN, TIME_COLUMN):
                    assert row[kept] == positive[kept]
    assert Dataset(folder).manifest["negatives"] == {
        "sampled": {"train": 1440, "validation": 300, "test": 300},
        "missing": 0,
    }


def test_a_negative_has_the_columns_of_its_own_item(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", log())
    for row in rows_of(prepared(tmp_path, NEGATIVES), "train").to_pylist():
        item = row["item"]
        assert row["genre"] == item % 7
        assert row["tags"] == list(range(item % 4))
        assert row["price"] == pytest.approx(0.0 if item % 5 == 0 else item * 1.5)


def test_inputs_that_are_made_of_an_items_columns_are_those_of_its_own(tmp_path: Path) -> None:
    columns = log()
    write_csv(tmp_path / "log.csv", {**columns, "released": [86_400 * (each % 20) for each in columns["item"]]})
    born = {"name": "born", "kind": "time", "column": "released", "part": "day", "format": "seconds"}
    place = {"name": "place", "kind": "encoded", "column": "genre", "type": "integer", "encoding": {"name": "ordinal"}}
    negatives = {**NEGATIVES, "item_columns": ["genre", "released"]}
    parsed = experiment(
        [*FEATURES[:2], born, place],
        folder=str(tmp_path),
        labels=[{"name": "played", "observed": True}],
        negatives=negatives,
    )
    rows = rows_of(prepare(parsed.data, parsed.features, tmp_path / "prepared"), "train").to_pylist()
    assert {row[label_column("played")] for row in rows} == {0.0, 1.0}
    for row in rows:
        assert row["born_sin"] == pytest.approx(np.sin(2 * np.pi * (row["item"] % 20) / 31), abs=1e-6)
        assert row["place"] == row["item"] % 7


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", log())
    first, again, other = (
        rows_of(prepared(tmp_path, {**NEGATIVES, "seed": seed}, f"run{number}"), "train")
        for number, seed in enumerate((1, 1, 2))
    )
    assert first.equals(again)
    assert not first.equals(other)


def test_parts_do_not_change_the_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "log.csv", log())
    whole = rows_of(prepared(tmp_path, NEGATIVES, "whole"), "train")
    monkeypatch.setattr(module, "PART_ROWS", 37)
    assert rows_of(prepared(tmp_path, NEGATIVES, "parts"), "train").equals(whole)


def test_rows_that_are_no_positives_get_none(tmp_path: Path) -> None:
    columns = log()
    columns["played"] = [int(row % 3 == 0) for row in range(600)]
    write_csv(tmp_path / "log.csv", columns)
    folder = prepared(tmp_path, {**NEGATIVES, "per_positive": 2}, labels=[{"name": "played"}])
    table = rows_of(folder, "train")
    assert table.num_rows == 480 + 2 * 160
    assert table.column(label_column("played")).to_pylist().count(1.0) == 160


def test_a_user_with_nearly_all_items_gets_what_is_left(tmp_path: Path) -> None:
    columns = {name: [] for name in log(1)}
    for user, items in ((0, range(10)), (1, range(8))):
        for item in items:
            for name, value in zip(columns, (user, item, item % 7, "", item * 1.0, 5, len(columns["t"])), strict=True):
                columns[name].append(value)
    write_csv(tmp_path / "log.csv", columns)
    folder = prepared(tmp_path, NEGATIVES, split={"name": "random", "validation": 0.0, "test": 0.0})
    negatives = [row for row in rows_of(folder, "train").to_pylist() if row[label_column("played")] == 0]
    assert {(row["user"], row["item"]) for row in negatives} == {(1, 8), (1, 9)}
    assert Dataset(folder).manifest["negatives"]["missing"] == 10 * 4 + 8 * 2


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 12),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 14)), min_size=1, max_size=40),
    st.integers(1, 6),
    st.booleans(),
)
def test_draws_are_different_unknown_and_as_many_as_there_are(
    items: int, positives: list[tuple[int, int]], count: int, weighted: bool
) -> None:
    pool = np.arange(items, dtype=np.int64) * 7 - 3
    users, known = np.array(positives, np.int64).T
    weights = np.arange(1.0, items + 1) if weighted else None
    sampler = NegativeSampler(users, known * 7 - 3, pool, weights, seed=3)
    drawn = sampler.draw(users, np.arange(len(users)), count)
    for user, row in zip(users.tolist(), drawn.tolist(), strict=True):
        free = set(range(items)) - {item for each, item in positives if each == user}
        chosen = [item for item in row if item != NO_ITEM]
        assert len(set(chosen)) == len(chosen) == min(count, len(free))
        assert set(chosen) <= free


@pytest.mark.parametrize("power", [None, 0.75, 1.0])
def test_items_are_as_frequent_as_declared(power: float | None) -> None:
    counts = np.array([1, 2, 5, 20, 100, 400], np.float64)
    weights = None if power is None else counts**power
    users = np.arange(60_000)
    sampler = NegativeSampler(users, np.full(len(users), 5), np.arange(6), weights, seed=1)
    drawn = sampler.draw(users, users, 1).ravel()
    shares = np.bincount(drawn, minlength=6) / len(drawn)
    expected = np.ones(6) if weights is None else weights.copy()
    expected[5] = 0.0  # every user has that one
    expected /= expected.sum()
    np.testing.assert_allclose(shares, expected, atol=4 * np.sqrt(0.25 / len(drawn)))


def test_an_undeclared_column_of_the_item_is_noticed(tmp_path: Path) -> None:
    class Notes(Silent):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, message: str) -> None:
            self.notes.append(message)

    write_csv(tmp_path / "log.csv", log())
    notes = Notes()
    parsed = experiment(
        FEATURES,
        labels=[{"name": "played", "observed": True}],
        folder=tmp_path,
        negatives={**NEGATIVES, "item_columns": ["tags", "price"]},
    )
    prepare(parsed.data, parsed.features, tmp_path / "prepared", notes)
    assert [note.split(" has ")[0] for note in notes.notes if "item_columns" in note] == ["column 'genre'"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"negatives": None}, "add data.negatives"),
        ({"negatives": {**NEGATIVES, "label": "bought"}}, "'bought' is none of played"),
        ({"negatives": {**NEGATIVES, "item": "user"}}, "both the column 'user'"),
        ({"labels": [{"name": "a", "observed": True}, {"name": "b"}]}, "label: a or b"),
        ({"labels": [{"name": "a", "observed": True, "at_least": 3}]}, "has no column"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    values = {"labels": [{"name": "played", "observed": True}], "negatives": NEGATIVES, **changes}
    with pytest.raises(ConfigError, match=message):
        experiment(FEATURES, **values)


def test_one_item_is_not_enough(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", {**log(), "item": [3] * 600})
    with pytest.raises(DataError, match="have 1 item in column 'item'"):
        prepared(tmp_path, NEGATIVES)


def test_readers_of_raw_files_refuse_negatives(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", log())
    parsed = experiment(FEATURES, labels=[{"name": "played", "observed": True}], folder=tmp_path, negatives=NEGATIVES)
    with pytest.raises(ConfigError, match="do not sample negatives"):
        index_raw(parsed.data, parsed.features, tmp_path / "index", Silent())


def test_the_protocol_is_stated() -> None:
    uniform = UniformNegatives(user="user", item="item", evaluation=99, seed=4)
    assert "99 sampled negatives, drawn uniformly" in protocol(uniform)
    assert "Training rows had 4, so that predictions are too high here" in protocol(uniform)
    assert "predictions are too low" in protocol(uniform.model_copy(update={"per_positive": 200}))
    assert "Training rows" not in protocol(uniform.model_copy(update={"per_positive": 99}))
    assert "seed 4" in protocol(uniform)
    assert "by popularity to the power of 0.75" in protocol(PopularityNegatives(user="u", item="i"))
