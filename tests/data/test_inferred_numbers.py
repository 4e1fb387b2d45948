"""How a file writes its numbers, ids that tools made floats, and ids told from quantities by their values."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_kit import read
from ruamel.yaml import YAML

from ziggurat.cli.init import draft_config
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.inference.columns import profile_column
from ziggurat.data.inference.numeric.numbers import number_ways, rules_of_file
from ziggurat.data.inference.numeric.whole_numbers import is_quantity
from ziggurat.data.inference.roles import Inference, infer
from ziggurat.data.readers.cells.number_rules import NumberRules
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.source_files import resolve_files
from ziggurat.training.api import prepare
from ziggurat.training.experiment import load_experiment
from ziggurat.training.train import train


def write_log(path: Path, columns: dict[str, list[Any]], delimiter: str = ";") -> None:
    rows = zip(*columns.values(), strict=True)
    lines = [delimiter.join(columns), *(delimiter.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def inferred(folder: Path, columns: dict[str, list[Any]]) -> Inference:
    write_log(folder / "log.csv", {**columns, "click": [k % 2 for k in range(400)]})
    return infer(resolve_files(["log.csv"], folder, [".csv"]))


# --- how numbers are written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "ways"),
    [
        (["3,14", "-2", "7"], [(",", "")]),
        (["1.234,50 €", "5 €"], [(",", ".")]),
        (["$1,977", "$12"], [(".", ","), (",", "")]),  # 1977, or 1.977
        (["$1,977", "$12.50"], [(".", ",")]),
        (["5%", "12.5 %"], [(".", "")]),
        (["CHF 12.50", "CHF 1'200"], [(".", "'")]),
        (["1 234,5", "7"], [(",", " ")]),
        (["kr 5", "kr 6,5"], [(",", "")]),
        (["01040", "48823"], []),  # codes
        (["120,455,871", "130,222"], []),  # ids beside each other
        (["12,45,3", "1,2"], []),
        (["1.2.3", "1.2"], []),
        (["3,x", "4,y"], []),
        (["$", "5"], []),
        (["($1,234.50)", "$7"], [(".", ",")]),
        (["(12)", "7"], [(".", ""), (",", "")]),
        (["(12)", "(7)"], []),  # all are: no signs
        (["(a)", "7"], []),
    ],
)
def test_ways_in_which_a_column_can_be_read(cells: list[str], ways: list[tuple[str, str]]) -> None:
    assert [(rules.decimal, rules.thousands) for rules in number_ways(pl.Series(cells))] == ways


def test_the_columns_that_are_certain_decide_for_the_file() -> None:
    dollars, comma, point = (
        number_ways(pl.Series(cells)) for cells in (["1,977", "5"], ["3,5", "8"], ["3.5", "1,000.5"])
    )
    assert rules_of_file([dollars]) == NumberRules(".", ",")
    assert rules_of_file([dollars, comma]).decimal == ","
    assert rules_of_file([dollars, point]) == NumberRules(".", ",")
    assert rules_of_file([(), comma, point, comma]).decimal == ","


def test_amounts_in_parentheses_are_negative(tmp_path: Path) -> None:
    amounts = [k * 37.25 - 5_000 for k in range(400)]
    written = [f"(${-amount:,.2f})" if amount < 0 else f"${amount:,.2f}" for amount in amounts]
    write_log(
        tmp_path / "log.csv",
        {"shop": [k % 7 for k in range(400)], "price": written, "label": [k % 2 for k in range(400)]},
    )
    text = draft_config(tmp_path / "log.csv")
    assert "    negative: parentheses  # numbers in parentheses are negative\n" in text
    assert "{name: price, kind: numeric, " in text
    settings = YAML(typ="safe").load(text)["data"]["source"] | {"files": [str(tmp_path / "log.csv")]}
    schema = RawSchema((RawColumn("price", ValueType.FLOAT),))
    reading = read(open_source(CsvSource.model_validate(settings), tmp_path, schema))
    assert [row[0] for row in reading.rows] == amounts


def test_a_file_with_a_decimal_comma_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    columns = {
        "shop": [k % 7 for k in range(400)],
        "price": [f"{value:,.2f}".translate(str.maketrans(",.", ".,")) for value in draw.lognormal(5, 2, 400)],
        "discount": [f"{draw.integers(0, 50)}%" for _ in range(400)],
        "score": [f"{value:.4f}" for value in draw.random(400)],
        "label": [k % 2 for k in range(400)],
    }
    write_log(Path("log.csv"), columns)
    text = draft_config("log.csv")
    assert '    decimal: ","  # numbers such as ' in text
    assert '    thousands: "."  # numbers such as ' in text
    assert '    symbols: ["%"]  # signs around numbers; a per cent is a hundredth' in text
    assert (
        "written otherwise than most of the file's: write them alike" in text
    )  # score: one way wins, and that is said
    Path("exp.yaml").write_text(text)
    experiment = load_experiment("exp.yaml", ["training.epochs=1"])
    assert [feature.name for feature in experiment.features] == ["shop", "price", "discount"]
    assert train(experiment, "run").results is not None
    rows = CsvSource.model_validate(
        {"files": ["log.csv"], "delimiter": ";", "decimal": ",", "thousands": ".", "symbols": ["%"]}
    )
    schema = RawSchema((RawColumn("price", ValueType.FLOAT), RawColumn("discount", ValueType.FLOAT)))
    values = read(open_source(rows, tmp_path, schema)).rows
    assert values[0][0] == float(str(columns["price"][0]).replace(".", "").replace(",", "."))
    assert values[0][1] == int(str(columns["discount"][0])[:-1]) / 100


def test_bags_stay_bags(tmp_path: Path) -> None:
    bags = [f"{k % 9},{k % 7},{k % 5}" if k % 3 else str(k % 9) for k in range(400)]
    (bag,) = inferred(tmp_path, {"tags": bags}).features
    assert (bag.kind, bag.profile.delimiter) == ("bag", ",")


# --- ids as floats ---------------------------------------------------------------------------------------------------


def test_ids_that_a_tool_made_floats_are_ids(tmp_path: Path) -> None:
    users = [f"{k * 13 % 40}.0" if k % 19 else "" for k in range(400)]
    items = [f"{1000 + k % 30:.3E}" for k in range(400)]
    found = inferred(tmp_path, {"user_id": users, "item_id": items})
    user, item = found.features
    assert found.group is not None
    assert (user.kind, user.profile.type, item.kind) == ("categorical", ValueType.INTEGER, "categorical")
    assert "whole numbers written as floats, such as 13.0" in user.reason
    assert "such as 1.000E+03" in item.reason


def test_one_id_however_a_format_writes_it(tmp_path: Path) -> None:
    schema = RawSchema((RawColumn("id", ValueType.INTEGER),))
    expected = [(12,), (12,), (None,), (1012,)]
    (tmp_path / "log.csv").write_text("id,x\n12,1\n12.0,1\n,1\n1.012E+03,1\n")
    pl.DataFrame({"id": [12, 12.0, None, 1012.0]}, strict=False).write_parquet(tmp_path / "log.parquet")
    rows = ['{"id": 12}', '{"id": 12.0}', '{"id": null}', '{"id": 1.012E+03}']
    (tmp_path / "log.jsonl").write_text("\n".join(rows) + "\n")
    assert json.loads(rows[3]) == {"id": 1012.0}
    for source in (
        CsvSource(files=["log.csv"]),
        ParquetSource(files=["log.parquet"]),
        JsonLinesSource(files=["log.jsonl"]),
    ):
        assert read(open_source(source, tmp_path, schema)).rows == expected, source.name


def test_ids_beyond_int64_stay_text(tmp_path: Path) -> None:
    hashes = [str(2**63 + (k % 50) * 1_000_003) for k in range(400)]
    (column,) = inferred(tmp_path, {"url_hash": hashes}).features
    assert (column.kind, column.profile.type) == ("categorical", ValueType.TEXT)


EXACT_IDS = {  # column -> its values, its type, and whether they fit int64
    "user_id": ([123_456_789_012_345_678_901_234_567_890 + k % 40 for k in range(400)], pa.decimal128(38, 0), False),
    "item_id": ([7_000_000_000_000_000_000 + k % 40 for k in range(400)], pa.decimal128(38, 0), True),
    "shop_id": ([7_000_000_000_000_000_000 + k % 40 for k in range(400)], pa.decimal128(38, 10), True),
    "code": ([k % 40 for k in range(400)], pa.decimal32(5, 0), True),
    "hash": ([2**60 + 4096 * (k * k % 39) for k in range(400)], pa.float64(), True),
    "last_items": (
        [[7_000_000_000_000_000_000 + k % 40] * 2 for k in range(400)],
        pa.list_(pa.decimal128(20, 0)),
        True,
    ),
}


def exact_ids(name: str) -> pa.Array:
    values, kind, _ = EXACT_IDS[name]
    if pa.types.is_floating(kind):
        return pa.array(map(float, values), kind)
    return pa.array([list(map(Decimal, each)) if isinstance(each, list) else Decimal(each) for each in values], kind)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_ids_stored_as_decimals_and_doubles_keep_all_digits(tmp_path: Path, suffix: str) -> None:
    clicks = {"price": pa.array([Decimal(k) / 4 for k in range(400)], pa.decimal128(9, 2)), "click": [0, 1] * 200}
    table = pa.table({**{name: exact_ids(name) for name in EXACT_IDS}, **clicks})
    if suffix == "parquet":
        pq.write_table(table, tmp_path / "log.parquet")
    else:
        with pa.ipc.new_file(tmp_path / "log.arrow", table.schema) as writer:
            writer.write_table(table)
    found = infer(resolve_files([f"log.{suffix}"], tmp_path, [f".{suffix}"]))
    features = {each.profile.name: each for each in found.features}
    assert features["price"].kind == "numeric"
    for name, (values, _, fits) in EXACT_IDS.items():
        distinct = {str(value) for value in values}
        assert features[name].profile.distinct == len(distinct), name
        assert features[name].profile.type is (ValueType.INTEGER if fits else ValueType.TEXT), name
        assert features[name].kind == {"last_items": "sequence"}.get(name, "categorical"), name
    (tmp_path / "exp.yaml").write_text(draft_config(str(tmp_path / f"log.{suffix}")))
    prepare(load_experiment(tmp_path / "exp.yaml"), tmp_path / "prepared")


def test_ids_that_differ_in_digits_beyond_a_float_are_told_apart_in_text(tmp_path: Path) -> None:
    large = [7_000_000_000_000_000_000 + k % 40 for k in range(400)]
    csv = inferred(tmp_path, {"item_id": [f"{value}.0" for value in large], "price": [k / 4 for k in range(400)]})
    assert csv.features[0].profile.distinct == 40
    rows = [{"item_id": value if k else 5.0, "click": k % 2} for k, value in enumerate(large)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    objects = infer(resolve_files(["log.jsonl"], tmp_path, [".jsonl"]))
    assert (objects.features[0].profile.distinct, objects.features[0].kind) == (41, "categorical")


@pytest.mark.parametrize("kind", [pl.Decimal(38, 0), pl.Int128])
def test_a_series_of_wide_whole_numbers_is_profiled_exactly(kind: pl.DataType) -> None:
    ids = pl.Series("id", [str(2**80 + k % 7) for k in range(70)]).cast(kind)
    assert (profile_column(ids, True).distinct, profile_column(ids, True).type) == (7, ValueType.TEXT)
    ids = pl.Series("id", [str(2**60 + k % 7) for k in range(70)]).cast(kind)
    assert (profile_column(ids, True).distinct, profile_column(ids, True).type) == (7, ValueType.INTEGER)


# --- ids and quantities by their values ------------------------------------------------------------------------------


def ids(rows: int, draw: np.random.Generator) -> dict[str, Any]:
    count = max(20, rows // 20)
    popular = 1 / draw.permutation(1 + np.arange(count))
    share = popular / popular.sum()
    return {
        "dense": draw.choice(count, rows, p=share),
        "even": draw.integers(0, count, rows),
        "sparse": draw.choice(draw.choice(90 * count, count, replace=False), rows),
        "sparse popular": draw.choice(draw.choice(90 * count, count, replace=False), rows, p=share),
        "slots": draw.choice(draw.choice(np.arange(3, 500), min(160, count), replace=False), rows),
        "hash of 32 bits": draw.choice(draw.integers(0, 2**32, count), rows, p=share),
        "signed hash of 32 bits": draw.choice(draw.integers(-(2**31), 2**31, count), rows, p=share),
        "signed hash of 39 bits": draw.choice(draw.integers(-(2**38), 2**38, count), rows),
        "hash of 64 bits": draw.choice(draw.integers(-(2**63), 2**63 - 1, count), rows, p=share),
        "zip": draw.choice(draw.choice(np.arange(10_000, 99_999), count, replace=False), rows, p=share),
        "category and number": draw.choice(
            draw.integers(1, 40, count) * 100_000 + draw.integers(0, 500, count), rows, p=share
        ),
        "two blocks": draw.choice(np.r_[1000 : 1000 + count // 2, 50_000 : 50_000 + count - count // 2], rows, p=share),
    }


def quantities(rows: int, draw: np.random.Generator) -> dict[str, Any]:
    return {
        "counts": draw.geometric(0.02, rows),
        "rare counts": np.minimum(draw.zipf(1.7, rows), 10**6),
        "wide counts": draw.negative_binomial(2, 0.01, rows),
        "amounts": draw.lognormal(6, 1.5, rows).astype(int),
        "cents": draw.lognormal(2.5, 0.8, rows).astype(int) * 100 + np.where(draw.random(rows) < 0.8, 99, 49),
        "rounded": draw.lognormal(3, 1, rows).astype(int) * 100,
        "ages": np.clip(draw.normal(40, 12, rows), 16, 95).astype(int),
        "shares": np.clip(draw.beta(3, 2, rows) * 100, 0, 100).astype(int),
        "seconds": draw.exponential(300, rows).astype(int),
        "profits": (draw.normal(2_000, 5_000_000, rows)).astype(int),
        "profits in steps": (draw.normal(0, 900, rows)).astype(int) * 100,
        "degrees": draw.normal(10, 12, rows).astype(int),
        "scores": draw.normal(500, 100, rows).astype(int),
        "salaries": (draw.lognormal(10.5, 0.5, rows) / 1000).astype(int) * 1000,
        "milliseconds": draw.gamma(1.5, 20_000, rows).astype(int),
        "bytes": np.exp(draw.uniform(5, 18, rows)).astype(int),
    }


@pytest.mark.parametrize("rows", [5_000, 50_000])
def test_ids_and_quantities_are_told_apart_by_their_values(rows: int) -> None:
    draw = np.random.default_rng(rows)
    wrong = [name for name, values in ids(rows, draw).items() if is_quantity(values)[0]]
    wrong += [name for name, values in quantities(rows, draw).items() if not is_quantity(values)[0]]
    assert wrong == []


def test_few_rows_say_less_but_mostly_the_right() -> None:
    right = total = 0
    for seed in range(10):
        draw = np.random.default_rng(seed)
        drawn = [(False, values) for values in ids(300, draw).values()]
        drawn += [(True, values) for values in quantities(300, draw).values()]
        right += sum(is_quantity(values)[0] is truth for truth, values in drawn)
        total += len(drawn)
    assert right / total > 0.85


def test_the_reason_is_in_the_comment(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    spread = draw.choice(draw.choice(9_000, 30, replace=False), 400).tolist()
    counts = draw.geometric(0.02, 400).tolist()
    first, second = inferred(tmp_path, {"alpha": spread, "beta": counts}).features
    assert (first.kind, first.reason) == (
        "categorical",
        f"{len(set(spread))} different values; they recur, with gaps between them, as ids do",
    )
    assert second.kind == "numeric"
    profile = profile_column(pl.Series("beta", counts), complete=True)
    assert second.reason.endswith(f", {profile.minimum:.0f} … {profile.maximum:.0f}")
