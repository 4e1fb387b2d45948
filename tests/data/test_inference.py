"""Inference on small logs whose columns are obvious to a person."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.schema import ValueType
from ziggurat.data.inference.columns import profile_column
from ziggurat.data.inference.roles import Inference, infer, sort_files
from ziggurat.data.inference.sample import detect_format, read_sample
from ziggurat.data.inference.words import words
from ziggurat.data.readers.source_files import resolve_files


def infer_files(folder: Path, *names: str, label: str | None = None) -> Inference:
    return infer(resolve_files(names, folder, [".csv"]), label)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def log(rows: int, header: str, row: object) -> str:
    generator = random.Random(0)
    assert callable(row)
    return header + "\n" + "".join(f"{row(k, generator)}\n" for k in range(rows))


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", b"x,y\n1,2\n", "csv"),
        ("a", b'{"x": 1}\n{"x": 2}\n', "jsonl"),
        ("a", b"1 3:1 4:1\n0 2:1 # note\n", "libsvm"),
        ("a", b"-1 0:3:1 1:4:0.5\n", "libsvm"),
        ("a", b"x y\n1 2\n", "csv"),
        ("a.json.gz", b'{"x": 1}\n', "jsonl"),
        ("a.gz", b"1 3:1\n", "libsvm"),
    ],
)
def test_formats_are_detected(name: str, text: bytes, expected: str, tmp_path: Path) -> None:
    write(tmp_path / name, gzip.compress(text) if name.endswith(".gz") else text)
    (file,) = resolve_files([name], tmp_path, [])
    assert detect_format(file) == expected


def test_parquet_is_detected_by_its_bytes(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "odd.name")
    (file,) = resolve_files(["odd.name"], tmp_path, [])
    assert detect_format(file) == "parquet"


@pytest.mark.parametrize(
    ("text", "delimiter", "header", "width"),
    [
        ("a,b\n1,2\n3,4\n", ",", True, 2),
        ("1,2\n3,4\n", ",", False, 2),
        ("a\tb,c\n1\t2\n3\t4\n", "\t", True, 2),
        ("a;b\n1,5;2\n2,5;3\n", ";", True, 2),
        ("a|b\nx|1\ny|2\n", "|", True, 2),
        ('name,city\n"Doe, J",Bern\n"Roe, R",Rome\n', ",", True, 2),
        ("red,big\nred,small\nblue,big\n", ",", False, 2),  # the first line's words come back: it names nothing
        ("red,,NA\nblue,2,4\n", ",", False, 3),  # a row with missing cells
        ("red,red\nblue,big\n", ",", False, 2),
        (",a\n0,5\n1,6\n", ",", True, 2),
        ("\ufeffa,b\r\n1,2\r\n3,4\r\n", ",", True, 2),
        ("only\n1\n2\n", ",", True, 1),
    ],
)
def test_delimiter_and_header(text: str, delimiter: str, header: bool, width: int, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", text)
    sample = read_sample(resolve_files(["a.csv"], tmp_path, []))
    assert (sample.dialect.delimiter.decode(), sample.header, sample.frame.width) == (delimiter, header, width)
    assert sample.complete
    assert sample.total_rows == sample.frame.height


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"a,a,,label\n1,2,3,0\n4,5,6,1\n", "line 1: the header names column 'a' twice, in places 1 and 2"),
        (b"a,label\n", "the file holds a header but no rows"),
        (b"a,label\n\n", "the file holds a header but no rows"),
    ],
)
def test_a_header_that_is_wrong_is_explained(text: bytes, problem: str, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", text)
    with pytest.raises(DataError, match=rf"a\.csv.*{problem}"):
        infer_files(tmp_path, "a.csv")


def test_a_libsvm_file_with_too_many_numbers_is_explained(tmp_path: Path) -> None:
    write(tmp_path / "a.libsvm", "".join(f"{k % 2} {k}:0.5\n" for k in range(1_200)))
    with pytest.raises(DataError, match=r"a\.libsvm: 1,200 indices hold values other than 1"):
        infer_files(tmp_path, "a.libsvm")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1 3:x", r"a\.libsvm, line 3: malformed libsvm row: received '3:x', expected index:value"),
        ("1 x", r"a\.libsvm, line 3: malformed libsvm row: received 'x'"),
        ("x 3:1", r"a\.libsvm, line 3: malformed libsvm row: received 'x', expected a number first"),
    ],
)
def test_a_malformed_libsvm_row_is_named(row: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "a.libsvm", f"1 1:1 2:1\n\n{row}\n")
    with pytest.raises(DataError, match=message):
        infer_files(tmp_path, "a.libsvm")


def test_a_large_file_is_sampled_from_beginning_to_end(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "n,word\n" + "".join(f"{n},w\n" for n in range(100_000)))
    sample = read_sample(resolve_files(["a.csv"], tmp_path, []), limit_bytes=1 << 17)
    numbers = sample.frame["n"].cast(pl.Int64)
    assert not sample.complete
    assert sample.frame.height < 35_000
    assert numbers[0] == 0
    assert numbers.max() > 75_000  # pyright: ignore[reportOptionalOperand]
    assert sample.total_rows == pytest.approx(100_000, rel=0.06)


def test_files_of_different_formats_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x\n1\n")
    write(tmp_path / "b.jsonl", '{"x": 1}\n')
    with pytest.raises(DataError, match=r"a.csv \(csv\), b.jsonl \(jsonl\)"):
        read_sample(resolve_files(["a.csv", "b.jsonl"], tmp_path, []))


def test_a_truncated_parquet_file_is_rejected(tmp_path: Path) -> None:
    pl.DataFrame({"x": range(1000)}).write_parquet(tmp_path / "whole.parquet")
    write(tmp_path / "cut.parquet", (tmp_path / "whole.parquet").read_bytes()[:500])
    with pytest.raises(DataError, match=r"cut\.parquet: truncated, corrupt or no Parquet file"):
        read_sample(resolve_files(["cut.parquet"], tmp_path, []))


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "kind", "null_words"),
    [
        (["1", "-2", "+3"], ValueType.INTEGER, ()),
        ([" 1", " 2"], ValueType.INTEGER, ()),
        (["1.5", "2", "1e3"], ValueType.FLOAT, ()),
        (["01040", "48823"], ValueType.TEXT, ()),  # a zip code: leading zeros mean something
        (["99999999999999999999", "1"], ValueType.TEXT, ()),  # beyond int64
        (["a", "b"], ValueType.TEXT, ()),
        (["1", "NA", "2", "-"], ValueType.INTEGER, ("-", "NA")),
        (["0.5", "nan", "none"], ValueType.FLOAT, ("nan", "none")),
        (["1", ".", "2"], ValueType.INTEGER, (".",)),  # as statistics programs write it
        (["none", "x", "?", "y"], ValueType.TEXT, ("?",)),  # among words, "none" is a word
        (["12", "T8H1N", "none"], ValueType.TEXT, ()),
        (["?", "?"], ValueType.TEXT, ("?",)),
    ],
)
def test_types_of_text(cells: list[str], kind: ValueType, null_words: tuple[str, ...]) -> None:
    profile = profile_column(pl.Series("x", cells), complete=True)
    assert (profile.type, profile.null_words, profile.many) == (kind, null_words, False)


def test_typed_columns() -> None:
    def kind(values: list[object], dtype: pl.DataType | None = None) -> tuple[ValueType, bool]:
        profile = profile_column(pl.Series("x", values, dtype=dtype, strict=False), complete=True)
        return profile.type, profile.many

    assert kind([1, 2]) == (ValueType.INTEGER, False)
    assert kind([True, None]) == (ValueType.INTEGER, False)
    assert kind([1.0, 2.0, None]) == (ValueType.INTEGER, False)  # whole floats, as pandas writes ids with gaps
    assert kind([1.5, 2.0]) == (ValueType.FLOAT, False)
    assert kind([[1, 2], [3]]) == (ValueType.INTEGER, True)
    assert kind([["a"], []]) == (ValueType.TEXT, True)
    moments = profile_column(pl.Series("x", ["2024-05-01 10:00:00"]).str.to_datetime(), complete=True)
    assert moments.is_temporal
    assert moments.minimum == 1714557600e6


def test_statistics_of_a_column() -> None:
    profile = profile_column(pl.Series("x", ["5", "1", "1", None, "9"]), complete=True)
    assert (profile.rows, profile.missing, profile.distinct, profile.singleton_share) == (
        5,
        0.2,
        3,
        pytest.approx(2 / 3),
    )
    assert (profile.minimum, profile.median, profile.maximum, profile.common[0]) == (1, 5, 9, 1)
    assert not profile.ascending
    assert profile_column(pl.Series("x", [3, 4, 9]), complete=True).ascending


def test_the_number_of_different_values_is_estimated_from_a_sample() -> None:
    generator = random.Random(1)
    sample = pl.Series("x", [generator.randrange(5_000) for _ in range(4_000)])
    profile = profile_column(sample, complete=False)
    assert profile.distinct < 3_000
    assert profile.distinct_estimate == pytest.approx(5_000, rel=0.1)
    assert profile_column(sample, complete=True).distinct_estimate == profile.distinct


@pytest.mark.parametrize("delimiter", ["|", ";", ",", " "])
def test_bags_in_cells(delimiter: str) -> None:
    generator = random.Random(2)
    cells = [delimiter.join(generator.sample("abcdefgh", generator.randrange(1, 5))) for _ in range(500)]
    profile = profile_column(pl.Series("tags", cells), complete=True)
    assert (profile.many, profile.delimiter, profile.distinct, profile.longest) == (True, delimiter, 8, 4)


def test_sentences_and_times_are_not_bags() -> None:
    names = pl.Series("name", [f"Film {number} The {number * 7}" for number in range(300)])
    assert not profile_column(names, complete=True).many
    moments = pl.Series("when", [f"2024-05-01 10:{k % 60:02}:{k // 60:02}" for k in range(600)])
    profile = profile_column(moments, complete=True)
    assert (profile.many, profile.is_temporal) == (False, True)


def test_a_few_non_numeric_cells_are_recorded() -> None:
    cells = [str(k % 70) for k in range(500)] + ["oops"]
    profile = profile_column(pl.Series("x", cells), complete=True)
    assert (profile.type, profile.non_numeric_cells) == (ValueType.TEXT, ("oops",))


# --- parts -----------------------------------------------------------------------------------------------------------


def test_words_of_a_name() -> None:
    assert words("userId") == words("user_id") == words("User ID") == {"user", "id"}


def test_files_are_assigned_to_splits_by_their_names(tmp_path: Path) -> None:
    for name in ("criteo_train.csv", "criteo_dev.csv", "criteo_test.csv"):
        write(tmp_path / name, "a\n1\n")
    parts = sort_files(resolve_files(["."], tmp_path, [".csv"]))
    assert {part: [file.name for file in files] for part, files in parts.items()} == {
        "train": ["criteo_train.csv"], "validation": ["criteo_dev.csv"], "test": ["criteo_test.csv"],
    }  # fmt: skip
    only = sort_files(resolve_files(["criteo_test.csv"], tmp_path, [".csv"]))
    assert [file.name for file in only["train"]] == ["criteo_test.csv"]


def test_a_rating_log(tmp_path: Path) -> None:
    text = log(
        2_000,
        "user_id,movie,rating,timestamp,age,genres",
        lambda k, g: (
            f"{g.randrange(100)},{g.randrange(300) + 7000},{g.randrange(1, 6)},"
            + f"{1_600_000_000 + 60 * k},{g.randrange(15, 70)},"
            + "|".join(g.sample(["Drama", "Comedy", "War", "Crime", "Sci-Fi"], g.randrange(1, 4)))
        ),
    )
    write(tmp_path / "ratings.csv", text)
    found = infer_files(tmp_path, "ratings.csv")
    assert [(label.profile.name, label.at_least) for label in found.labels] == [("rating", 4)]
    assert found.time is not None
    assert found.group is not None
    assert (found.time.name, found.group.name, found.split.name) == ("timestamp", "user_id", "time_within_key")
    kinds = {feature.profile.name: feature.kind for feature in found.features}
    assert kinds == {
        "user_id": "categorical",
        "movie": "categorical",
        "timestamp": None,
        "age": "numeric",
        "genres": "bag",
    }


def test_a_click_log_with_two_labels_and_a_history(tmp_path: Path) -> None:
    text = log(
        3_000,
        "row,click,buy,item_id,last_items,price,constant,const_missing,token",
        lambda k, g: (
            f"{k},{int(g.random() < 0.3)},{int(g.random() < 0.1)},{g.randrange(60)},"
            + " ".join(str(g.randrange(60)) for _ in range(g.randrange(2, 9)))
            + f",{g.lognormvariate(3, 1):.2f},7,,{g.random().hex()}"
        ),
    )
    write(tmp_path / "log.csv", text)
    found = infer_files(tmp_path, "log.csv")
    assert [label.profile.name for label in found.labels] == ["click", "buy"]
    assert found.split.name == "random"
    features = {feature.profile.name: feature for feature in found.features}
    assert {name: feature.kind for name, feature in features.items()} == {
        "row": None, "item_id": "categorical", "last_items": "sequence", "price": "numeric", "constant": None,
        "const_missing": None, "token": None,
    }  # fmt: skip
    assert features["last_items"].table == "item_id"
    assert "row number" in features["row"].reason
    assert "nothing to learn" in features["constant"].reason
    assert "nearly every row" in features["token"].reason


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([k % 13 for k in range(500)], "categorical"),  # few whole numbers
        ([(k * 37) % 900 + 4_000 for k in range(5_000)], "categorical"),  # dense and even, as ids are
        ([int(1.012**k) for k in range(1_000)], "numeric"),  # most values small
        ([(k * 7_919_777) % 90_000_000 for k in range(40)] * 25, "categorical"),  # large, recurring
    ],
)
def test_integers_are_ids_or_quantities(values: list[int], kind: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": values, "label": [k % 2 for k in range(len(values))]})
    frame.write_parquet(tmp_path / "a.parquet")
    (feature,) = infer_files(tmp_path, "a.parquet").features
    assert feature.kind == kind


@pytest.mark.parametrize(
    ("column", "values", "at_least", "equals"),
    [
        ("y", [0, 1, 1], None, None),
        ("y", [-1, 1, 1], 1, None),
        ("y", [True, False, True], None, None),
        ("income", ["<=50K", ">50K", "<=50K"], None, ">50K"),
        ("stars", [1, 2, 3, 4, 5, 5], 4, None),
        ("stars", [10, 20, 30, 40], 30, None),
        ("anything", [0, 1, 1], None, None),  # in last place
    ],
)
def test_labels(column: str, values: list[object], at_least: float | None, equals: str | None, tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": [f"v{k % 4}" for k in range(8 * len(values))], column: values * 8})
    frame.write_parquet(tmp_path / "a.parquet")
    (label,) = infer_files(tmp_path, "a.parquet").labels
    assert (label.profile.name, label.at_least, label.equals) == (column, at_least, equals)


def test_the_user_names_the_label(tmp_path: Path) -> None:
    frame = pl.DataFrame({"click": [0, 1] * 20, "dwell": [float(k) / 3 for k in range(40)], "d": ["a", "b"] * 20})
    frame.write_parquet(tmp_path / "a.parquet")
    (label,) = infer_files(tmp_path, "a.parquet", label="dwell").labels
    assert (label.kind, label.loss, label.at_least) == ("regression", None, None)
    assert infer_files(tmp_path, "a.parquet", label="d").labels[0].equals in ("a", "b")
    with pytest.raises(ConfigError, match="no column 'dwel'") as caught:
        infer_files(tmp_path, "a.parquet", label="dwel")
    assert "did you mean 'dwell'?" in caught.value.hint


def test_no_label_is_an_error_that_names_the_columns(tmp_path: Path) -> None:
    pl.DataFrame({"a": ["x", "y", "z"], "b": [1.5, 2.5, 3.5]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="no column looks like a label") as caught:
        infer_files(tmp_path, "a.parquet")
    assert "--label COLUMN; columns: a, b" in caught.value.hint


@pytest.mark.parametrize(
    ("header", "row", "reason"),
    [("label", "{}", "the label label\n"), ("label,shop", "{},main", "the label label: 'shop' is always the same")],
)
def test_a_log_without_features_is_rejected(header: str, row: str, reason: str, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", log(20, header, lambda k, _: row.format(k % 2)))
    with pytest.raises(DataError, match=rf"a\.csv: no column can be a feature beside {reason}") as caught:
        infer_files(tmp_path, "a.csv")
    assert "at least one column to learn from" in caught.value.hint


def test_a_requested_label_needs_two_values(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "user,word\n1,a\n2,a\n3,a\n")
    with pytest.raises(ConfigError, match=r"column 'word' cannot be a label: it holds one value only, 'a'"):
        infer_files(tmp_path, "a.csv", label="word")


def test_quoted_line_ends_in_every_row(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "y,x,t\n" + '1,"a\nb",0.5\n0,"c\nd",1.5\n' * 20)
    found = infer_files(tmp_path, "a.csv")
    assert found.sample.dialect.newlines_in_values
    assert found.labels[0].profile.name == "y"


def test_files_with_other_columns_are_rejected(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "y,x\n" + "1,2\n0,3\n" * 20)
    write(tmp_path / "b.csv", "y,z\n" + "1,2\n0,3\n" * 20)
    with pytest.raises(DataError, match=r"b.csv: its header lacks x and has z instead, compared with .*a.csv"):
        infer_files(tmp_path, "a.csv", "b.csv")


def test_columns_in_another_order_are_not_mixed_up(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "y,x\n" + "1,20\n0,30\n" * 20)
    write(tmp_path / "b.csv", "x,y\n" + "20,1\n30,0\n" * 20)
    found = infer_files(tmp_path, "a.csv", "b.csv")
    assert [label.profile.name for label in found.labels] == ["y"]
    assert (found.labels[0].profile.minimum, found.labels[0].profile.maximum) == (0, 1)


@pytest.mark.parametrize(
    ("item", "shared"),
    [
        (lambda k: f"p{k * 7 % 150}", True),  # the same texts under another name
        (lambda k: str(k * 7 % 150), True),  # the same numbers, nearly all of them
        (lambda k: str(k * 7 % 900), False),  # numbers among which those of the history are few
        (lambda k: f"q{k * 7 % 150}", False),
    ],
)
def test_a_history_shares_the_table_of_the_column_whose_values_it_holds(
    item: Callable[[int], str], shared: bool, tmp_path: Path
) -> None:
    letter = item(0).rstrip("0123456789").replace("q", "p")
    text = log(
        3_000,
        "user,item,click,hist",
        lambda k, g: (
            f"{k % 150},{item(k)},{int(g.random() < 0.3)},"
            + '"['
            + ", ".join(f"{letter}{g.randrange(150)}" for _ in range(g.randrange(2, 9)))
            + ']"'
        ),
    )
    write(tmp_path / "log.csv", text)
    features = {feature.profile.name: feature for feature in infer_files(tmp_path, "log.csv").features}
    assert features["hist"].kind == "sequence"
    assert features["hist"].table == ("item" if shared else None)
    assert ("values of item" in features["hist"].reason) is shared


def test_what_describes_users_does_not_identify_them(tmp_path: Path) -> None:
    def row(k: int, draw: random.Random) -> str:
        affinity, account = f"{draw.randrange(2)}.0", "abcd"[draw.randrange(4)]
        return f"{affinity},{account},{draw.randrange(90)},{draw.randrange(60)},{k % 2}"

    header = "user_item_affinity,status_of_account,user_age,visitor,label"
    write(tmp_path / "a.csv", log(1_500, header, row))
    found = infer_files(tmp_path, "a.csv")
    assert found.group is not None
    assert found.group.name == "visitor"


@pytest.mark.parametrize(
    "cells",
    [["red", "green", None, "red"] * 5, ["north-east", "süd", "west"] * 9, ["na", "yes", "no"] * 9, ["inf", "red"] * 9,
     [None] * 5, ["a b", "c"] * 9, ["1", "red"] * 9, ["May", "June"] * 30, ["true", "false"] * 9, ["", "red"] * 9],
)  # fmt: skip
def test_plain_words_are_profiled_as_any_text_is(cells: list[str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    series = pl.Series("colour", cells, pl.String)
    found = profile_column(series, complete=True)
    monkeypatch.setattr("ziggurat.data.inference.columns._plain_words", lambda texts: False)
    slowly = profile_column(series, complete=True)
    assert sorted(found.common) == sorted(slowly.common)
    assert replace(found, common=()) == replace(slowly, common=())
