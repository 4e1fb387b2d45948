"""Preparation end to end: files in, dataset, transform and statistics out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from feature_kit import Experiment, experiment, write_csv

from ziggurat.core.errors import ConfigError, DataError, RunFolderError
from ziggurat.core.schema import GROUP_COLUMN, TIME_COLUMN, WEIGHT_COLUMN, label_column
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.data.encoded.dataset import SPLITS, Dataset, Split
from ziggurat.data.readers.source import open_source
from ziggurat.features.preparation.prepare import ENCODERS, QUARANTINE, prepare
from ziggurat.features.transform import Transform

FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "categorical", "type": "integer"},
    {"name": "city", "kind": "categorical", "encoder": {"name": "vocabulary", "min_count": 2, "oov_rows": 3}},
    {"name": "age", "kind": "numeric", "transforms": [{"name": "log"}, {"name": "standardise"}]},
    {"name": "age_bucket", "kind": "numeric", "column": "age", "transforms": [{"name": "bucketise", "bins": 4}]},
    {"name": "tags", "kind": "bag", "max_length": 3},
    {"name": "history", "kind": "sequence", "type": "integer", "last": 2, "table": "item"},
    {"name": "item", "kind": "categorical", "type": "integer", "encoder": {"name": "hash", "rows": 50}},
]


def log(rows: int, seed: int = 0) -> dict[str, list[Any]]:
    """Returns a log with every kind of column and with missing cells."""
    random = np.random.default_rng(seed)
    maybe = lambda cells, share: [None if random.random() < share else cell for cell in cells]  # noqa: E731
    return {
        "user": random.integers(-5, 30, rows).tolist(),
        "city": maybe([f"city {int(c)}" for c in random.geometric(0.1, rows)], 0.1),
        "age": maybe(random.integers(1, 80, rows).tolist(), 0.2),
        "tags": maybe(["|".join(random.choice(list("abcdefg"), random.integers(1, 6))) for _ in range(rows)], 0.3),
        "history": ["|".join(str(i) for i in random.integers(0, 99, random.integers(0, 5))) for _ in range(rows)],
        "item": random.integers(0, 99, rows).tolist(),
        "click": (random.random(rows) < 0.3).astype(int).tolist(),
        "w": random.integers(1, 4, rows).tolist(),
        "t": random.permutation(rows).tolist(),
    }


def rows_of(folder: Path, split: Split) -> pa.Table:
    blocks = Dataset(folder).split(split)
    batches = [blocks.read(i) for i in range(len(blocks.blocks))]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def run(tmp_path: Path, parsed: Experiment, name: str = "prepared") -> Path:
    return prepare(parsed.data, parsed.features, tmp_path / name)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    folder = tmp_path_factory.mktemp("prepare")
    write_csv(folder / "log.csv", log(2000))
    parsed = experiment(
        FEATURES,
        folder=str(folder),
        weight="w",
        group="user",
        time="t",
        split={"name": "random", "validation": 0.2, "test": 0.1, "seed": 4},
        block_rows=256,
    )
    return parsed, run(folder, parsed)


def test_the_dataset_equals_the_transform_of_the_raw_rows(prepared: tuple[Experiment, Path]) -> None:
    parsed, folder = prepared
    transform = Transform.load(folder / ENCODERS)
    dataset = Dataset(folder)
    assert transform.schema == dataset.schema
    source = open_source(parsed.data.source, parsed.data.folder, transform.raw_schema())
    encoded = pa.Table.from_batches([transform.apply(block).batch for block in source.blocks()])
    for split in SPLITS:
        rows = rows_of(folder, split)
        times = rows.column(TIME_COLUMN).to_numpy()  # times are unique, so they identify the rows
        order = np.argsort(encoded.column(TIME_COLUMN).to_numpy())
        expected = encoded.take(pa.array(order[times])).select(rows.column_names)
        assert rows.cast(expected.schema).equals(expected)
    sizes = [dataset.split(split).rows for split in SPLITS]
    assert sum(sizes) == 2000
    np.testing.assert_allclose(np.array(sizes) / 2000, [0.7, 0.2, 0.1], atol=0.03)


def test_rows_keep_their_order_and_targets(prepared: tuple[Experiment, Path]) -> None:
    _, folder = prepared
    raw = log(2000)
    place = {t: row for row, t in enumerate(raw["t"])}
    for split in SPLITS:
        rows = rows_of(folder, split).to_pydict()
        source_rows = [place[t] for t in rows[TIME_COLUMN]]
        assert source_rows == sorted(source_rows)
        assert rows[label_column("click")] == [raw["click"][row] for row in source_rows]
        assert rows[WEIGHT_COLUMN] == [raw["w"][row] for row in source_rows]
        assert rows[GROUP_COLUMN] == [raw["user"][row] for row in source_rows]


def test_statistics_equal_a_count_of_the_training_rows(prepared: tuple[Experiment, Path]) -> None:
    _, folder = prepared
    statistics = DatasetStatistics.load(folder)
    schema = Dataset(folder).schema
    tables = {split: rows_of(folder, split) for split in SPLITS}
    train = tables["train"]
    assert statistics.rows == {split: table.num_rows for split, table in tables.items()}
    for split, table in tables.items():
        rate = float(table.column(label_column("click")).to_numpy().mean(dtype=np.float64))
        assert statistics.label_rates["click"][split] == pytest.approx(rate, rel=1e-12)
    for table, rows in schema.rows.items():
        counted = np.zeros(rows, np.int64)
        for feature in (name for name, owner in schema.tables.items() if owner == table):
            column = train.column(feature).combine_chunks()
            ids = column.flatten() if pa.types.is_list(column.type) else column
            counted += np.bincount(ids.to_numpy(), minlength=rows)
        np.testing.assert_array_equal(statistics.tables[table].accesses, counted)
    lengths = np.array([len(row) for row in train.column("tags").to_pylist()])
    tags = statistics.features["tags"]
    assert tags.coverage == pytest.approx(np.mean(lengths > 0))
    assert tags.missing_share == 0.0  # an empty CSV cell of a bag is a bag without values
    assert tags.mean_pooling == pytest.approx(lengths[lengths > 0].mean())
    assert tags.max_pooling == lengths.max() == 3
    city = statistics.features["city"]
    assert city.missing_share == pytest.approx(np.mean(train.column("city").to_numpy() == 0))
    held_out = np.concatenate([tables[split].column("city").to_numpy() for split in ("validation", "test")])
    present = held_out[held_out != 0]
    assert city.unknown_share == pytest.approx(np.mean(present <= 3))
    assert 0 < city.unknown_share < 0.5


def test_numeric_statistics_equal_those_of_the_raw_training_values(prepared: tuple[Experiment, Path]) -> None:
    _, folder = prepared
    raw, train = log(2000), rows_of(folder, "train")
    place = {t: row for row, t in enumerate(raw["t"])}
    cells = [raw["age"][place[t]] for t in train.column(TIME_COLUMN).to_pylist()]
    present = np.array([cell for cell in cells if cell is not None], np.float64)
    feature = DatasetStatistics.load(folder).features["age"]
    numeric = feature.numeric
    assert numeric is not None
    assert (numeric.count, numeric.min, numeric.max) == (len(present), present.min(), present.max())
    assert numeric.mean == pytest.approx(present.mean(), rel=1e-12)
    assert numeric.std == pytest.approx(present.std(), rel=1e-12)
    assert numeric.quantiles["0.5"] == np.median(present)
    assert feature.missing_share == pytest.approx(1 - len(present) / len(cells))
    logs = np.log1p(np.where([cell is None for cell in cells], np.median(present), [cell or 0 for cell in cells]))
    expected = (logs - logs.mean()) / logs.std()
    np.testing.assert_allclose(train.column("age").to_numpy(), expected, rtol=1e-5, atol=1e-6)


def test_statistics_survive_saving(prepared: tuple[Experiment, Path], tmp_path: Path) -> None:
    statistics = DatasetStatistics.load(prepared[1])
    statistics.save(tmp_path)
    for name in ("statistics.json", "statistics.safetensors"):
        assert (tmp_path / name).read_bytes() == (prepared[1] / name).read_bytes()


def test_a_second_run_does_nothing(prepared: tuple[Experiment, Path]) -> None:
    parsed, folder = prepared
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert prepare(parsed.data, parsed.features, folder) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert not (folder / ".staging").exists()
    assert sorted(path.name for path in folder.iterdir()) == [
        "encoders",
        "manifest.json",
        "statistics.json",
        "statistics.safetensors",
        "test",
        "train",
        "validation",
    ]


def test_the_raw_files_may_be_moved(prepared: tuple[Experiment, Path], tmp_path: Path) -> None:
    parsed, folder = prepared
    raw = parsed.data.folder / "log.csv"
    moved = tmp_path / "log.csv"
    moved.hardlink_to(raw)
    assert prepare(parsed.data.model_copy(update={"folder": tmp_path}), parsed.features, folder) == folder


def test_a_folder_of_another_config_is_not_overwritten(prepared: tuple[Experiment, Path]) -> None:
    parsed, folder = prepared
    with pytest.raises(RunFolderError, match="prepared from another config"):
        prepare(parsed.data.model_copy(update={"weight": None}), parsed.features, folder)
    with pytest.raises(RunFolderError, match="prepared from another config"):
        prepare(parsed.data, parsed.features[1:], folder)


def test_a_repeated_preparation_gives_the_same_bytes(prepared: tuple[Experiment, Path], tmp_path: Path) -> None:
    parsed, folder = prepared
    again = run(tmp_path, parsed)
    assert contents(again) == contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_files_decide_the_split(tmp_path: Path) -> None:
    for name, rows, seed in (("train", 300, 1), ("valid", 40, 2), ("test", 50, 3)):
        write_csv(tmp_path / f"{name}.csv", log(rows, seed))
    parsed = experiment(
        FEATURES,
        folder=str(tmp_path),
        source={"name": "csv", "files": ["train.csv"]},
        split={"name": "files", "validation": ["valid.csv"], "test": ["test.csv"]},
    )
    folder = run(tmp_path, parsed)
    assert [Dataset(folder).split(split).rows for split in SPLITS] == [300, 40, 50]
    labels = {name: rows_of(folder, name).column(label_column("click")).to_pylist() for name in SPLITS}
    assert labels["validation"] == log(40, 2)["click"]
    assert labels["test"] == log(50, 3)["click"]

    shared = parsed.data.split.model_copy(update={"validation": 0.25})
    held_out = prepare(parsed.data.model_copy(update={"split": shared}), parsed.features, tmp_path / "held_out")
    train, validation, test = (Dataset(held_out).split(split).rows for split in SPLITS)
    assert (train + validation, test) == (300, 50)
    assert 50 < validation < 100


def test_a_file_in_two_splits_is_rejected(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", log(10))
    parsed = experiment(FEATURES, folder=str(tmp_path), split={"name": "files", "test": ["log.csv"]})
    with pytest.raises(ConfigError, match=r"log\.csv is listed for train and for test"):
        run(tmp_path, parsed)


def test_rows_of_a_key_stay_together(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", log(1500))
    split = {"name": "random", "key": "user", "validation": 0.2, "test": 0.2}
    folder = run(tmp_path, experiment(FEATURES, folder=str(tmp_path), split=split, group="user"))
    users = [set(rows_of(folder, name).column(GROUP_COLUMN).to_pylist()) for name in SPLITS]
    assert not users[0] & users[1]
    assert not users[0] & users[2]
    assert not users[1] & users[2]


def test_splits_by_time(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", log(500))
    by_time = experiment(FEATURES, folder=str(tmp_path), split={"name": "time"}, time="t", group="user")
    folder = run(tmp_path, by_time, "by_time")
    times = [rows_of(folder, name).column(TIME_COLUMN).to_pylist() for name in SPLITS]
    assert [sorted(split_times) for split_times in times] == [
        list(range(400)),
        list(range(400, 450)),
        list(range(450, 500)),
    ]
    split = {"name": "time_within_key", "key": "user"}
    parsed = experiment(FEATURES, folder=str(tmp_path), split=split, time="t", group="user")
    rows = {name: rows_of(run(tmp_path, parsed, "within"), name).to_pydict() for name in SPLITS}
    for user in set(log(500)["user"]):
        last = [
            [t for t, g in zip(rows[name][TIME_COLUMN], rows[name][GROUP_COLUMN], strict=True) if g == user]
            for name in SPLITS
        ]
        count = sum(len(part) for part in last)
        assert [len(part) for part in last[1:]] == [max(1, math.floor(count * 0.1))] * 2
        assert max(last[0]) < min(last[1])
        assert max(last[1]) < min(last[2])


def test_quarantined_rows_do_not_affect_the_dataset(tmp_path: Path) -> None:
    columns = log(300)
    columns["item"] = [item % 40 for item in columns["item"]]
    good = {name: list(cells) for name, cells in columns.items()}
    columns["age"][10] = "old"  # the reader rejects it
    columns["click"][20] = 3  # a label outside its range
    columns["item"][30] = 999  # an id outside its table
    columns["w"][40] = -1
    for cells in good.values():
        for row in (40, 30, 20, 10):
            del cells[row]
    features = [*FEATURES[:5], {**FEATURES[6], "encoder": {"name": "identity", "rows": 40}}]
    settings: dict[str, Any] = {"weight": "w", "time": "t", "split": {"name": "time"}}
    for name, cells in (("bad", columns), ("good", good)):
        (tmp_path / name).mkdir()
        write_csv(tmp_path / name / "log.csv", cells)
    with pytest.raises(DataError, match=r"log\.csv, line 12, column 'age'.*old"):
        run(tmp_path, experiment(features, folder=str(tmp_path / "bad"), **settings), "failed")
    bad = run(
        tmp_path,
        experiment(features, folder=str(tmp_path / "bad"), on_bad_row="quarantine", **settings),
        "prepared_bad",
    )
    clean = run(tmp_path, experiment(features, folder=str(tmp_path / "good"), **settings), "prepared_good")
    rejected = [json.loads(line) for line in (bad / QUARANTINE).read_text().splitlines()]
    assert [(row["line"], row["column"]) for row in rejected] == [(12, "age"), (22, "click"), (32, "item"), (42, "w")]
    assert Dataset(bad).manifest["quarantined"]["rows"] == 4
    bytes_bad, bytes_good = contents(bad), contents(clean)
    for name in bytes_good:
        if name != "manifest.json":
            assert bytes_bad[name] == bytes_good[name], name


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"click": [1, 1, 1], "x": [1, 2, 3]}, {}, "label 'click': only one class.*0 zeros, 3 ones"),
        ({"click": [0, 0, 0], "x": [1, 2, 3]}, {}, "label 'click': only one class.*3 zeros, 0 ones"),
        ({"click": [], "x": []}, {}, "empty|no rows|no usable rows"),
        ({"click": [5, 5], "x": [1, 2]}, {"on_bad_row": "quarantine"}, "no usable rows; 2 were rejected"),
        (
            {"click": [0, 1] * 10, "x": [7] * 20},
            {"split": {"name": "time"}, "time": "x"},
            r"split 'time' leaves no training rows \(train 0, validation 0, test 20\); rows with equal times",
        ),
    ],
)
def test_data_that_cannot_be_trained_on_is_rejected(
    tmp_path: Path, columns: dict[str, list[Any]], settings: dict[str, Any], message: str
) -> None:
    write_csv(tmp_path / "log.csv", columns)
    split = {"split": {"name": "random", "validation": 0, "test": 0}}
    parsed = experiment([{"name": "x", "kind": "numeric"}], folder=str(tmp_path), **{**split, **settings})
    with pytest.raises(DataError, match=message):
        run(tmp_path, parsed)


def test_columns_without_a_single_value_are_prepared(tmp_path: Path) -> None:
    empty: list[Any] = [None] * 20
    write_csv(tmp_path / "log.csv", {"x": empty, "c": empty, "b": empty, "click": [0, 1] * 10})
    features = [{"name": "x", "kind": "numeric"}, {"name": "c", "kind": "categorical"}, {"name": "b", "kind": "bag"}]
    folder = run(tmp_path, experiment(features, folder=str(tmp_path), split={"name": "random", "test": 0.3}))
    rows = rows_of(folder, "train").to_pydict()
    assert set(rows["x"]) == {0.0}
    assert set(rows["c"]) == {0}
    assert all(row == [] for row in rows["b"])
    statistics = DatasetStatistics.load(folder)
    assert math.isnan(statistics.features["x"].numeric.mean)  # type: ignore[union-attr]
    assert (statistics.features["c"].coverage, statistics.features["c"].missing_share) == (0.0, 1.0)
    assert (statistics.features["b"].coverage, statistics.features["b"].mean_pooling) == (0.0, 0.0)
    assert Dataset(folder).schema.rows == {"c": 2, "b": 2}


def test_an_implicit_fill_is_reported(tmp_path: Path) -> None:
    class Notes:
        def __init__(self) -> None:
            self.notes: list[str] = []
            self.stages: list[str] = []

        def start(self, stage: str, total: float | None, unit: str) -> None:
            self.stages.append(stage)

        def advance(self, done: float, **figures: float | str) -> None: ...
        def finish(self, message: str = "") -> None: ...
        def note(self, message: str) -> None:
            self.notes.append(message)

    write_csv(
        tmp_path / "log.csv", {"x": [1, None, 3, 4], "y": [1, 2, 3, 4], "z": [None, 2, 3, None], "click": [0, 1, 0, 1]}
    )
    features = [{"name": name, "kind": "numeric"} for name in "xyz"]
    parsed = experiment(features, folder=str(tmp_path), split={"name": "random", "validation": 0, "test": 0})
    progress = Notes()
    prepare(parsed.data, parsed.features, tmp_path / "out", progress)
    assert progress.notes == [
        "missing numbers are filled with the training median: z 50.0%, x 25.0%; add a fill step to change that"
    ]
    assert progress.stages == ["read", "fit", "encode"]
