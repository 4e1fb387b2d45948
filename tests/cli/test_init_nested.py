"""``init`` on nested columns: every value is a column or is left out by name, and what it writes can be prepared."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ziggurat.cli.init import draft_config
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import SPLITS
from ziggurat.training.api import load_experiment, predict, predict_files, prepare, train
from ziggurat.training.experiment import Experiment

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from format_kit import FORMATS, write

ROWS = 400


def drafted(folder: Path, path: Path, overrides: list[str] | None = None) -> tuple[str, Experiment]:
    text = draft_config(path, "click")
    (folder / "exp.yaml").write_text(text)
    return text, load_experiment(folder / "exp.yaml", overrides or [])


def left_out(text: str) -> dict[str, str]:
    """Returns the columns that the config leaves out for what they hold, with the reasons."""
    found = re.findall(r"^  # - \{column: (.*)\}  # left out: (.*)$", text, re.MULTILINE)
    return {name.strip('"'): reason for name, reason in found}


def contents(dataset: Dataset) -> dict[str, list[dict[str, Any]]]:
    """Returns the encoded rows of each split."""
    splits = {name: dataset.split(name) for name in SPLITS}
    return {
        name: [row for block in range(len(split.sizes)) for row in split.read(block).to_pylist()]
        for name, split in splits.items()
    }


def shop(rng: np.random.Generator) -> pa.Table:
    users = rng.integers(0, 40, ROWS)
    return pa.table(
        {
            "user": [{"id": int(u), "tags": ["a", "b"][: int(u) % 3]} for u in users],
            "item": pa.array([{"emb": [float(u) + 0.5, 1.25, -float(u)]} for u in users]),
            "attributes": pa.array(
                [[("colour", ["red", "blue"][u % 2]), (f"k{k}", "x")] for k, u in enumerate(users)],
                pa.map_(pa.string(), pa.string()),
            ),
            "hash": pa.array((users.astype(np.uint64) + np.uint64(1)) * np.uint64(11400714819323198485), pa.uint64()),
            "token": pa.array([bytes([255, u]) for u in users], pa.binary()),
            "paths": [[[int(u), 1], [2]] for u in users],
            "ratio": [float("inf") if k % 50 == 0 else u / 7 for k, u in enumerate(users)],
            "nothing": pa.nulls(ROWS),
            "empty": pa.array([{}] * ROWS, pa.struct([])),
            "click": rng.integers(0, 2, ROWS),
        }
    )


@pytest.mark.parametrize("name", ["log.parquet", "log.arrow"])
def test_every_column_of_a_file_is_used_or_left_out_by_name(tmp_path: Path, name: str) -> None:
    table = shop(np.random.default_rng(1))
    if name.endswith("parquet"):
        table = table.drop_columns("empty")  # Parquet has no objects without fields
    write(tmp_path / name, table)
    text, experiment = drafted(tmp_path, tmp_path / name)
    features = {feature.source_column: feature for feature in experiment.features}
    assert features["user.id"].kind == "categorical"
    assert features["user.tags"].kind == "bag"
    assert features["item.emb"].kind == "vector"
    assert "kind: vector, column: item.emb, length: 3" in text
    assert features["attributes.colour"].name == "attributes_colour"
    assert features["hash"].type == "text"  # type: ignore[union-attr]
    assert features["token"].kind == "categorical"
    assert "lists of lists, read as one list a row" in text
    assert "infinity_is_missing: true" in text
    reasons = left_out(text)
    assert reasons.pop("attributes").startswith("400 of its 401 keys: in fewer than 4 sampled rows")
    if name == "log.arrow":
        assert reasons.pop("empty") == "an object without fields"
    assert reasons == {}
    assert "# - {name: nothing" in text
    dataset = prepare(experiment, tmp_path / "prepared")
    assert sum(len(rows) for rows in contents(dataset).values()) == ROWS


def test_a_run_trained_on_nested_rows_predicts_them_in_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = shop(np.random.default_rng(2)).select(["user", "item", "paths", "click"])
    write(tmp_path / "log.parquet", table)
    _, experiment = drafted(tmp_path, tmp_path / "log.parquet", ["training.epochs=1", "model={name: dnn}"])
    run = train(experiment, tmp_path / "run").run
    expected = predict(run, table)
    assert np.ptp(expected) > 0
    assert np.array_equal(predict(run, table.to_pydict()), expected)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    assert np.array_equal(predict(run, frame), expected)
    for name in FORMATS:
        write(tmp_path / name, table)
        for suffix in (".parquet", ".jsonl", ".csv"):
            out = tmp_path / f"scored-{name}{suffix}"
            assert predict_files(run, tmp_path / name, out).rows == ROWS
            read = {".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson, ".csv": pl.read_csv}[suffix](out)
            assert read.columns == [*table.column_names, "probability"]
            assert np.array_equal(read["probability"].cast(pl.Float32).to_numpy(), expected[:, 0]), (name, suffix)
        assert (
            pq.read_table(tmp_path / f"scored-{name}.parquet")["user"].type == table["user"].type or name == "log.jsonl"
        )


def test_objects_in_json_lines(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = [
        {
            "u": {"id": int(rng.integers(30)), "big": 2**63 + int(rng.integers(30))},
            "ctx": {f"key{k}_{j}": 1 for j in range(3)} | {"page": ["home", "cart"][k % 2]},
            "mixed": {"a": 1} if k % 2 else 7,
            "odd": 0.5 if k % 2 else "x",
            "a.b": k % 7,
            "a": {"b": "never"},
            "a_b": k % 5,
            "views": [{"item": int(rng.integers(50)), "at": 1.5}, {"item": 3}],
            "vec": [rng.normal(), rng.normal()],
            "click": int(rng.integers(2)),
        }
        for k in range(ROWS)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text, experiment = drafted(tmp_path, tmp_path / "log.jsonl")
    columns = {feature.source_column: feature for feature in experiment.features}
    assert columns["u.big"].type == "text"  # type: ignore[union-attr]
    assert {"u.id", "ctx.page", "views.item", "vec", "a_b", "a.b"} <= columns.keys()
    assert {columns["a_b"].name, columns["a.b"].name} == {"a_b", "a_b 2"}
    reasons = left_out(text)
    assert reasons["mixed"] == "an object in some rows, and a value in others"
    assert reasons["odd"] == "fractions in some rows, and text in others"
    assert reasons["ctx"].startswith("1,200 of its 1,201 keys")
    assert "mixed.a" in reasons
    assert sum(len(rows) for rows in contents(prepare(experiment, tmp_path / "prepared")).values()) == ROWS


PHASES = [hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate]
SCALARS = [
    st.integers(-(2**63), 2**64 - 1),
    st.integers(0, 5),
    st.floats(-1e30, 1e30) | st.sampled_from([float("nan"), float("inf")]),
    st.sampled_from([0.5, 1.0, 2.5]),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4),
    st.sampled_from(["a", "b", "7", "8.5"]),
]
NAMES = st.sampled_from(["x", "y", "z", "x.y", "Ä b", "long name"])


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def values(draw: st.DrawFn, depth: int = 0) -> st.SearchStrategy[Any]:
    """Draws a strategy for the cells of a column."""
    kind = draw(st.integers(0, 3 if depth < 3 else 0))
    if kind == 1:
        return maybe(st.lists(maybe(draw(values(depth=3))), max_size=3))
    if kind == 2:
        names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
        return maybe(st.fixed_dictionaries({name: draw(values(depth=depth + 1)) for name in names}))
    if kind == 3:
        names = draw(st.lists(NAMES, min_size=1, max_size=2, unique=True))
        return maybe(st.lists(st.fixed_dictionaries({name: draw(values(depth=3)) for name in names}), max_size=3))
    return maybe(draw(st.sampled_from(SCALARS)))


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    columns = draw(st.dictionaries(NAMES, values(), min_size=1, max_size=4))
    columns = {f"c {name}": cells for name, cells in columns.items()}
    rows = [{"u": k % 9, "click": k * k % 3 % 2} for k in range(24)]
    return [row | {name: draw(cells) for name, cells in columns.items()} for row in rows]


@hypothesis.settings(max_examples=20, deadline=None, phases=PHASES, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(rows=tables())
def test_init_and_prepare_agree_on_drawn_tables_of_every_format(
    rows: list[dict[str, Any]], tmp_path_factory: Any
) -> None:
    try:
        table = pa.Table.from_pylist(rows)
    except (pa.ArrowInvalid, OverflowError):
        hypothesis.reject()  # whole numbers beyond int64 beside negative ones: no Arrow type holds them
    seen: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name in ("log.parquet", "log.arrow", "log.jsonl"):
        folder = tmp_path_factory.mktemp("drawn")
        write(folder / name, table)
        texts[name], experiment = drafted(folder, folder / name, ["data.split={name: random, key: u}"])
        dataset = prepare(experiment, folder / "prepared")
        seen[name] = ({feature.source_column: feature.kind for feature in experiment.features}, contents(dataset))
    for name in ("log.arrow", "log.jsonl"):
        assert seen[name][0] == seen["log.parquet"][0], f"{texts[name]}\n{texts['log.parquet']}"
        assert seen[name][1] == seen["log.parquet"][1], name
