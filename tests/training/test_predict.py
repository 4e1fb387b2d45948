"""Predictions of raw rows, from files of any format and from memory, equal the evaluation of the prepared rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import ziggurat
from tests.training.conftest import ROWS, MakeExperiment, write_log
from ziggurat.core.errors import ConfigError, DataError, RunFolderError
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training import api

TOLERANCE = 1e-6  # the same float32 arithmetic in batches of other sizes


def prepared_probabilities(run: Path, dataset: Dataset) -> dict[int, float]:
    """Returns row's time -> probability, computed from the prepared rows of all splits."""
    found: dict[int, float] = {}
    with api.Predictor(run) as predictor:
        for split in ("train", "validation", "test"):
            blocks = dataset.split(split)
            for block in range(len(blocks.blocks)):
                rows = blocks.read(block)
                batch = Columns([rows], dataset.schema).batch(np.arange(rows.num_rows))
                logits_BT, _ = predictor.recommender(batch)
                probabilities = logits_BT.sigmoid().detach()[:, 0].tolist()
                found.update(zip(rows["@time"].to_pylist(), probabilities, strict=True))
    return found


@pytest.fixture
def run(make_experiment: MakeExperiment) -> Path:
    experiment = make_experiment(data__time="when", training__epochs=2)
    return api.train(experiment, "run").run.folder


def test_raw_and_prepared_rows_have_the_same_probabilities(run: Path) -> None:
    prepared = prepared_probabilities(run, api.load_run(run).dataset())
    outcome = api.predict_files(run, ["log.csv"], Path("out.csv"))
    assert (outcome.rows, outcome.quarantined) == (ROWS, 0)
    with Path("out.csv").open(newline="") as file:
        scored = list(csv.DictReader(file))
    assert len(prepared) == len(scored) == ROWS
    worst = max(abs(float(row["probability"]) - prepared[int(row["when"])]) for row in scored)
    assert worst <= TOLERANCE


def test_every_column_of_the_log_is_unchanged_in_the_output(run: Path) -> None:
    api.predict_files(run, ["log.csv"], Path("out.csv"))
    with Path("log.csv").open(newline="") as before, Path("out.csv").open(newline="") as after:
        raw, scored = list(csv.DictReader(before)), list(csv.DictReader(after))
    for left, right in zip(raw, scored, strict=True):
        for name, value in left.items():
            if name == "age" and value:
                assert float(right[name]) == float(value)
            else:
                assert right[name] == value, name


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_every_output_format_holds_the_same_values(run: Path, suffix: str) -> None:
    out = Path(f"out.{suffix}")
    api.predict_files(run, ["log.csv"], out)
    read: dict[str, Any] = {
        "csv": lambda: pl.read_csv(out),
        "tsv": lambda: pl.read_csv(out, separator="\t"),
        "jsonl": lambda: pl.read_ndjson(out),
        "parquet": lambda: pl.read_parquet(out),
    }
    frame = read[suffix]()
    expected = api.predict(run, pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String}))
    np.testing.assert_allclose(frame["probability"].to_numpy(), expected[:, 0], atol=TOLERANCE)
    assert frame["note"].to_list() == [f"row {i}, quoted" for i in range(ROWS)]


def test_rows_in_memory_in_every_form(run: Path) -> None:
    columns: dict[str, list[Any]] = {
        "user": ["u1", "u2", None],
        "item": [3, 4, 99999],
        "age": [20.0, None, 3.5],
        "tags": [[1, 2], [], [0]],
        "history": [[5], [1, 2, 3, 4], []],
    }
    first = ziggurat.predict(run, columns)
    assert first.shape == (3, 1)
    np.testing.assert_array_equal(first, ziggurat.predict(run, pa.table(columns)))
    np.testing.assert_array_equal(first, ziggurat.predict(run, pl.DataFrame(columns)))
    np.testing.assert_array_equal(first, ziggurat.predict(run, pl.LazyFrame(columns)))
    records: list[dict[str, Any]] = pl.DataFrame(columns).to_dicts()
    np.testing.assert_array_equal(first, ziggurat.predict(run, [{**row, "odd": object()} for row in records]))
    with pytest.raises(DataError, match=r"row 4: received 'x' \(str\) in a list of dictionaries"):
        ziggurat.predict(run, [*records, "x"])  # pyright: ignore[reportArgumentType]
    stream: Any = pa.RecordBatch.from_pydict(columns)  # has an Arrow stream, as pandas DataFrames have
    np.testing.assert_array_equal(first, ziggurat.predict(run, stream))
    reader: Any = pa.table(columns).to_reader()
    np.testing.assert_array_equal(first, ziggurat.predict(run, reader))
    with pytest.raises(DataError, match="holds no rows any more: it can be read once only"):
        ziggurat.predict(run, reader)


def test_a_pandas_frame_with_odd_columns_is_predicted_without_a_warning(
    run: Path, recwarn: pytest.WarningsRecorder
) -> None:
    pd = pytest.importorskip("pandas", reason="pandas is not installed; ziggurat does not need it")
    columns: dict[Any, Any] = {"user": ["u1", "u2"], "item": [3, 4], "age": [20.0, None], 7: [1, 2], 8: [1j, "x"]}
    columns |= {"tags": [[1, 2], []], "history": [[5], [1]]}
    expected = ziggurat.predict(run, {str(name): values for name, values in columns.items()})
    np.testing.assert_array_equal(ziggurat.predict(run, pd.DataFrame(columns)), expected)
    sparse = pd.DataFrame({**columns, "age": pd.arrays.SparseArray([20.0, float("nan")])})
    np.testing.assert_array_equal(ziggurat.predict(run, sparse), expected)
    with pytest.raises(DataError, match=r"column 'item': holds values of several types: int \(1\) and str \('a'\)"):
        ziggurat.predict(run, pd.DataFrame({**columns, "item": [1, "a"]}))
    assert [str(each.message) for each in recwarn if issubclass(each.category, UserWarning)] == []


def test_bad_rows_are_quarantined_and_the_others_keep_their_order(run: Path) -> None:
    lines = Path("log.csv").read_text().splitlines()
    lines[5] = "u1,not a number,3,1,2,1,0,1004,x"
    lines[9] = "u1,3"
    Path("broken.csv").write_text("\n".join(lines) + "\n")
    outcome = api.predict_files(run, ["broken.csv"], Path("out.csv"), on_bad_row="quarantine")
    assert (outcome.rows, outcome.quarantined) == (ROWS - 2, 2)
    bad = [json.loads(line) for line in outcome.quarantine.read_text().splitlines()]
    assert [(row["line"], row["column"]) for row in bad] == [(6, "item"), (10, None)]
    times = pl.read_csv("out.csv")["when"].to_list()
    assert times == [1000 + i for i in range(ROWS) if i not in {4, 8}]


def test_a_bad_row_stops_prediction_if_the_run_does_not_quarantine(run: Path) -> None:
    Path("broken.csv").write_text(Path("log.csv").read_text() + "u1,not a number,3,1,2,1,0,1004,x\n")
    Path("out.csv").write_text("earlier")
    problem = rf"broken.csv, line {ROWS + 2}, column 'item': not an integer"
    with pytest.raises(DataError, match=rf"{problem}[\s\S]*predict with --on-bad-row quarantine"):
        api.predict_files(run, ["broken.csv"], Path("out.csv"))
    assert Path("out.csv").read_text() == "earlier"
    assert not list(Path().glob("*quarantine*"))


def test_files_without_labels_are_predicted(run: Path) -> None:
    pl.read_csv("log.csv").drop("click", "buy", "when").write_csv("unlabelled.csv")
    assert api.predict_files(run, ["unlabelled.csv"], Path("out.parquet")).rows == ROWS


def test_the_run_predicts_after_its_dataset_is_deleted(run: Path) -> None:
    import shutil

    shutil.rmtree("prepared")
    assert api.predict_files(run, ["log.csv"], Path("out.csv")).rows == ROWS
    with pytest.raises(DataError, match="the prepared dataset of run is not there"):
        api.evaluate(run)


def test_refused_calls_leave_no_files(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot tell the output format from '.xls'"):
        api.predict_files(run, ["log.csv"], Path("out.xls"))
    with pytest.raises(DataError, match="column 'item'"):
        pl.read_csv("log.csv").drop("item").write_csv("less.csv")
        api.predict_files(run, ["less.csv"], Path("out.csv"))
    with pytest.raises(DataError, match="no columns 'user', 'age', 'tags', 'history', which"):
        api.predict(run, {"item": [1]})
    with pytest.raises(DataError, match=r"item.*'x'"):
        api.predict(run, {"user": ["u"], "item": ["x"], "age": [1.0], "tags": [[1]], "history": [[1]]})
    with pytest.raises(RunFolderError, match=r"no run folder[\s\S]*runs beside it: run"):
        api.predict_files("rnu", ["log.csv"], Path("out.csv"))
    api.predict_files(run, ["log.csv"], Path("first.csv"))
    with pytest.raises(DataError, match="there is a column 'probability' already"):
        api.predict_files(run, ["first.csv"], Path("out.csv"))
    assert not list(Path().glob("out.*"))
    assert not list(Path().glob(".out.*"))


@pytest.mark.parametrize("link", ["the file itself", "symlink", "quarantine"])
def test_an_input_is_never_overwritten(run: Path, link: str) -> None:
    before = Path("log.csv").read_bytes()
    out = Path("log.csv") if link == "the file itself" else Path("out.csv")
    if link == "symlink":
        out.symlink_to("log.csv")
    if link == "quarantine":
        Path("out.csv.quarantine.jsonl").symlink_to("log.csv")
    with pytest.raises(DataError, match="is one of the files to read"):
        api.predict_files(run, ["log.csv"], out)
    assert Path("log.csv").read_bytes() == before


def test_a_refused_call_keeps_an_earlier_quarantine(run: Path) -> None:
    earlier = {name: Path(f"{name}.quarantine.jsonl") for name in ("out.csv", "out.xls")}
    for path in earlier.values():
        path.write_text("kept\n")
    with pytest.raises(RunFolderError):
        api.predict_files("rnu", ["log.csv"], Path("out.csv"))
    with pytest.raises(DataError, match="no such file"):
        api.predict_files(run, ["lag.csv"], Path("out.csv"))
    with pytest.raises(ConfigError):
        api.predict_files(run, ["log.csv"], Path("out.xls"))
    assert [path.read_text() for path in earlier.values()] == ["kept\n"] * 2


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_columns_keep_their_order_and_the_probability_comes_last(run: Path, suffix: str) -> None:
    names = ["note", "item", "when", "history", "user", "tags", "click", "age", "buy"]
    frame = pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String})
    frame.select(names).write_csv("turned.csv")
    out = Path(f"out.{suffix}")
    api.predict_files(run, ["turned.csv"], out)
    read: dict[str, Any] = {
        "csv": lambda: pl.read_csv(out),
        "tsv": lambda: pl.read_csv(out, separator="\t"),
        "jsonl": lambda: pl.read_ndjson(out),
        "parquet": lambda: pl.read_parquet(out),
    }
    assert read[suffix]().columns == [*names, "probability"]


def test_csv_cells_are_quoted_only_where_needed(run: Path) -> None:
    head, first, *_ = Path("log.csv").read_text().splitlines()
    user, item, _, tags, history, click, buy, when, _ = next(csv.reader([first]))
    rows = [f"{user},{item},2.5,{tags},{history},{click},{buy},{when},{note}" for note in ('"a, ""b"""', "plain", "")]
    Path("few.csv").write_text("\n".join([head, *rows]) + "\n")
    api.predict_files(run, ["few.csv"], Path("out.csv"))
    written = [line.rsplit(",", 1)[0] for line in Path("out.csv").read_text().splitlines()]
    assert written == [head, *rows]


@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("tsv", "\t")])
def test_lists_are_joined_by_the_delimiter_of_their_feature(
    make_experiment: MakeExperiment, suffix: str, separator: str
) -> None:
    log = pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String})
    log.with_columns(pl.col("tags").str.replace_all("|", ";", literal=True)).write_csv("log.csv")
    features = make_experiment().model_dump(mode="json")["features"]
    features[3]["delimiter"] = ";"
    run = api.train(make_experiment(features=features, training__epochs=1), "run").run.folder
    api.predict_files(run, ["log.csv"], Path(f"out.{suffix}"))
    cells: list[list[tuple[str, str]]] = []
    for path, delimiter in (("log.csv", ","), (f"out.{suffix}", separator)):
        with Path(path).open(newline="") as file:
            cells.append([(row["tags"], row["history"]) for row in csv.DictReader(file, delimiter=delimiter)])
    assert any(";" in tags for tags, _ in cells[0])
    assert any("|" in history for _, history in cells[0])
    assert cells[0] == cells[1]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_output_is_an_empty_table_if_all_rows_are_bad(run: Path, suffix: str) -> None:
    head = Path("log.csv").read_text().splitlines()[0]
    Path("broken.csv").write_text(f"{head}\nu1,not a number,3,1,2,1,0,1004,x\n")
    out = Path(f"out.{suffix}")
    outcome = api.predict_files(run, ["broken.csv"], out, on_bad_row="quarantine")
    assert (outcome.rows, outcome.quarantined) == (0, 1)
    if suffix == "jsonl":
        assert out.read_bytes() == b""
        return
    frame = pl.read_csv(out) if suffix == "csv" else pl.read_parquet(out)
    assert frame.columns == [*head.split(","), "probability"]
    assert len(frame) == 0
    if suffix == "parquet":
        assert dict(frame.schema)["probability"] == pl.Float32
        assert dict(frame.schema)["tags"] == pl.List(pl.Int64)


@pytest.fixture
def parquet_run(make_experiment: MakeExperiment) -> Path:
    """Returns a run on Parquet files of many types; ``a.parquet`` and ``b.parquet`` hold the halves of the log."""
    log = pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String})
    lists = [
        pl.col(name).fill_null("").str.split("|").cast(pl.List(pl.Int16), strict=False) for name in ("tags", "history")
    ]
    typed = log.with_columns(
        *lists,
        pl.col("age").cast(pl.Float32),
        pl.col("item").cast(pl.UInt16),
        pl.col("click").cast(pl.Boolean),
        pl.from_epoch("when").dt.cast_time_unit("ms").dt.replace_time_zone("UTC").alias("at"),
        pl.col("when").cast(pl.Decimal(12, 2)).alias("price"),
        pl.col("user").cast(pl.Categorical).alias("kind"),
        pl.struct("item", "buy").alias("both"),
        pl.concat_list("when", "buy").alias("many"),
    ).select(pl.exclude("user"), "user")
    typed[: ROWS // 2].write_parquet("a.parquet", row_group_size=700)
    typed[ROWS // 2 :].write_parquet("b.parquet", row_group_size=500)
    source = {"name": "parquet", "files": ["a.parquet", "b.parquet"]}
    return api.train(make_experiment(data__source=source, training__epochs=1), "run").run.folder


def test_parquet_rows_keep_their_types(parquet_run: Path) -> None:
    assert api.predict_files(parquet_run, ["a.parquet", "b.parquet"], Path("out.parquet")).rows == ROWS
    raw = pl.concat([pl.read_parquet("a.parquet"), pl.read_parquet("b.parquet")])
    scored = pl.read_parquet("out.parquet")
    assert scored.columns == [*raw.columns, "probability"]
    assert scored.drop("probability").schema == raw.schema
    assert scored.drop("probability").equals(raw)
    expected = api.predict(parquet_run, raw)
    np.testing.assert_allclose(scored["probability"].to_numpy(), expected[:, 0], atol=TOLERANCE)


def test_parquet_rows_keep_their_order_without_the_bad_rows(parquet_run: Path) -> None:
    raw = pl.read_parquet("b.parquet")
    bad = pl.int_range(pl.len()).is_in([0, 499, 500, 1499])
    raw.with_columns(pl.when(bad).then(0.5).otherwise(pl.col("item")).alias("item")).write_parquet(
        "broken.parquet", row_group_size=500
    )
    outcome = api.predict_files(parquet_run, ["broken.parquet"], Path("out.parquet"), on_bad_row="quarantine")
    assert (outcome.rows, outcome.quarantined) == (ROWS // 2 - 4, 4)
    scored = pl.read_parquet("out.parquet")
    assert scored["note"].to_list() == raw.filter(~bad)["note"].to_list()
    assert scored.schema["item"] == pl.Float64


def test_parquet_columns_of_different_widths_are_widened(parquet_run: Path) -> None:
    pl.read_parquet("b.parquet").with_columns(pl.col("buy").cast(pl.Int8), pl.col("item").cast(pl.Int64)).write_parquet(
        "c.parquet"
    )
    api.predict_files(parquet_run, ["a.parquet", "c.parquet"], Path("out.parquet"))
    scored = pl.read_parquet("out.parquet")
    assert (scored.schema["buy"], scored.schema["item"]) == (pl.Int64, pl.Int64)
    assert scored["item"].to_list()[ROWS // 2 :] == pl.read_parquet("c.parquet")["item"].to_list()
    pl.read_parquet("b.parquet").with_columns(buy=pl.lit("one")).write_parquet("d.parquet")
    with pytest.raises(DataError, match="column 'buy' is of several types in the files: int64, "):
        api.predict_files(parquet_run, ["a.parquet", "d.parquet"], Path("other.parquet"))


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_parquet_rows_as_text(parquet_run: Path, suffix: str) -> None:
    out = Path(f"out.{suffix}")
    assert api.predict_files(parquet_run, ["a.parquet"], out).rows == ROWS // 2
    raw = pl.read_parquet("a.parquet")
    typed = {"tags": pl.String, "history": pl.String} if suffix == "csv" else {}
    frame = pl.read_csv(out, schema_overrides=typed) if suffix == "csv" else pl.read_ndjson(out)
    assert frame.columns == [*raw.columns, "probability"]
    assert frame["note"].to_list() == raw["note"].to_list()
    assert frame["age"].cast(pl.Float32).to_list() == raw["age"].to_list()
    assert frame["price"].cast(pl.String).to_list()[0] == ("1000.0" if suffix == "csv" else "1000.00")
    assert str(frame["at"][1]).startswith("1970-01-01 00:16:41")
    if suffix == "jsonl":
        assert frame["both"].to_list() == raw["both"].to_list()
        assert frame["many"].to_list() == raw["many"].to_list()
        assert frame["tags"].to_list() == raw["tags"].to_list()
    else:
        assert [json.loads(text) for text in frame["both"]] == raw["both"].to_list()
        assert [json.loads(text) for text in frame["many"]] == raw["many"].to_list()
        assert frame["tags"][1] == "|".join(map(str, raw["tags"][1]))


@pytest.mark.parametrize("rows", [5, "log.csv", [], ["log.csv"], None])
def test_rows_that_are_no_table_are_refused(run: Path, rows: Any) -> None:
    with pytest.raises(DataError, match=r"received [\s\S]*pass a polars or pandas DataFrame, a pyarrow Table, a dict"):
        api.predict(run, rows)


@pytest.mark.parametrize("item", [[1, "x"], [1, 2, 3], 5])
def test_columns_that_make_no_table_are_refused(run: Path, item: Any) -> None:
    rows = {"user": ["u", "v"], "item": item, "age": [1.0, 2.0], "tags": [[1], []], "history": [[1], []]}
    with pytest.raises(DataError, match="no table can be made"):
        api.predict(run, rows)


def test_evaluation_of_a_run_repeats_its_results(run: Path) -> None:
    results = api.load_run(run).results
    assert results is not None
    for split in ("validation", "test"):
        assert api.evaluate(run, split).compute() == results["figures"][split]  # type: ignore[arg-type]


def test_a_log_that_grew_needs_a_new_run(make_experiment: MakeExperiment, run: Path) -> None:
    write_log(Path("log.csv"), ROWS + 100)
    with pytest.raises(RunFolderError, match=r"was started on dataset \w+, the data now prepares to"):
        api.train(make_experiment(data__time="when", training__epochs=2), run)
