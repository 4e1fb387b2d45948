"""Bad input on the command line: errors name the problem, its place and a hint, and leave no incomplete files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML

from tests.small_disk import small_disk
from tests.training.conftest import config_values, write_log
from ziggurat.cli.main import main
from ziggurat.core.config import set_by_path

ROWS = 600


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_log(tmp_path / "log.csv", ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_config(folder: Path, **changes: Any) -> None:
    values = config_values(folder)
    for path, value in changes.items():
        set_by_path(values, path.replace("__", "."), value)
    with (folder / "exp.yaml").open("w") as file:
        YAML().dump(values, file)


def run_command(*arguments: str) -> int:
    """Runs the command line in this process and returns its exit status."""
    sys.argv = ["ziggurat", *arguments]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def edit(path: Path, line: int, change: Callable[[str], str]) -> None:
    """Changes one line; lines are counted from 1, with the header."""
    lines = path.read_text().splitlines()
    lines[line - 1] = change(lines[line - 1])
    path.write_text("\n".join(lines) + "\n")


def cell(column: str, text: str) -> Callable[[str], str]:
    """Returns a change of a line that replaces the cell of ``column``; cells before ``note`` contain no comma."""
    index = ["user", "item", "age", "tags", "history", "click", "buy", "when"].index(column)

    def change(line: str) -> str:
        cells = line.split(",")
        cells[index] = text
        return ",".join(cells)

    return change


BAD_CELLS = {
    "text in a numeric column": ("age", "forty", ["line 7", "'age'", "'forty'"]),
    "not a number": ("age", "nan", ["line 7", "'age'", "nan", "leave the cell empty"]),
    "infinity": ("age", "-inf", ["line 7", "'age'", "inf", "leave the cell empty"]),
    "an id beyond int64": ("item", "9223372036854775808", ["line 7", "'item'", "9223372036854775808", "text"]),
    "text in an integer column": ("item", "seven", ["line 7", "'item'", "'seven'"]),
    "a bad element of a bag": ("tags", "1|x|2", ["line 7", "'tags'", "'x'"]),
    "a label outside its range": ("click", "2", ["line 7", "'click'", "2", "at_least"]),
    "an empty label": ("click", "", ["line 7", "'click'", "empty"]),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_a_bad_cell_stops_preparation_and_names_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    column, text, named = BAD_CELLS[case]
    edit(folder / "log.csv", 7, cell(column, text))
    write_config(folder)
    assert run_command("prepare", "exp.yaml") == 1
    errors = capsys.readouterr().err
    assert "log.csv" in errors
    assert "hint:" in errors
    for part in named:
        assert part in errors, errors
    assert "Traceback" not in errors
    assert not list(folder.glob("prepared/*/manifest.json"))


@pytest.mark.parametrize("case", BAD_CELLS)
def test_a_bad_cell_is_quarantined_and_the_rest_prepared(
    folder: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    column, text, _ = BAD_CELLS[case]
    edit(folder / "log.csv", 7, cell(column, text))
    write_config(folder, data__on_bad_row="quarantine")
    assert run_command("prepare", "exp.yaml") == 0
    assert "1 row set aside in " in capsys.readouterr().err
    quarantine = next(folder.glob("prepared/*/quarantine.jsonl")).read_text().splitlines()
    assert len(quarantine) == 1
    assert f'"line": 7, "column": "{column}"' in quarantine[0]


def damaging_changes(folder: Path) -> dict[str, Callable[[], None]]:
    """Returns case -> a function that damages the log."""
    log = folder / "log.csv"
    return {
        "missing file": log.unlink,
        "empty file": lambda: log.write_bytes(b""),
        "wrong delimiter": lambda: log.write_text(log.read_text().replace(",", ";")),
        "missing column": lambda: edit(log, 1, lambda line: line.replace("item", "itme")),
        "not UTF-8": lambda: log.write_bytes(log.read_bytes().replace(b"u3,", b"\xff\xfe,", 1)),
        "one class only": lambda: pl.read_csv(log).with_columns(click=pl.lit(0)).write_csv(log),
    }


FILE_CASES = {
    "missing file": ["log.csv", "no such file"],
    "empty file": ["log.csv", "empty"],
    "wrong delimiter": ["log.csv", "wrong delimiter", "';'"],
    "missing column": ["log.csv", "'item'", "did you mean 'itme'"],
    "not UTF-8": ["log.csv", "line ", "UTF-8"],
    "one class only": ["log.csv", "'click'", "only one class"],
}


@pytest.mark.parametrize("case", FILE_CASES)
def test_a_bad_file_is_refused_by_name(folder: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    damaging_changes(folder)[case]()
    write_config(folder)
    assert run_command("train", "exp.yaml") == 1
    errors = capsys.readouterr().err
    for part in (*FILE_CASES[case], "hint:"):
        assert part in errors, errors
    assert "Traceback" not in errors
    assert not list(folder.glob("prepared/*/manifest.json"))


def test_a_truncated_parquet_file_is_refused_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.read_csv("log.csv").write_parquet("log.parquet")
    content = Path("log.parquet").read_bytes()
    Path("log.parquet").write_bytes(content[: len(content) // 2])
    write_config(folder, data__source={"name": "parquet", "files": ["log.parquet"]})
    assert run_command("train", "exp.yaml") == 1
    errors = capsys.readouterr().err
    assert "log.parquet" in errors
    assert "truncated" in errors


def test_negative_ids_and_empty_bags_are_accepted(folder: Path) -> None:
    edit(folder / "log.csv", 7, cell("item", "-5"))
    edit(folder / "log.csv", 8, cell("tags", ""))
    edit(folder / "log.csv", 9, cell("history", ""))
    write_config(folder, training__epochs=1)
    assert run_command("train", "exp.yaml") == 0


def test_a_negative_id_is_outside_an_identity_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder / "log.csv", 7, cell("item", "-5"))
    features = config_values(folder)["features"]
    features[1]["encoder"] = {"name": "identity", "rows": 60}
    write_config(folder, features=features[:4])
    assert run_command("prepare", "exp.yaml") == 1
    errors = capsys.readouterr().err
    for part in ("log.csv", "line 7", "'item'", "-5", "60"):
        assert part in errors, errors


def test_a_batch_larger_than_the_data_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(folder)
    assert run_command("train", "exp.yaml", "--set", "training.batch_size=100000") == 1
    errors = capsys.readouterr().err
    assert "training.batch_size=100000" in errors
    assert "--set training.batch_size=" in errors
    assert run_command("train", "exp.yaml", "--set", "training.batch_size=100", "--run", "other") == 0


def test_the_error_for_an_unknown_key_names_the_nearest_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(folder)
    assert run_command("train", "exp.yaml", "--set", "training.bach_size=10") == 1
    assert "training.bach_size: unknown key; did you mean 'batch_size'?" in capsys.readouterr().err


def test_a_run_of_another_config_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(folder, training__epochs=1)
    assert run_command("train", "exp.yaml") == 0
    assert run_command("train", "exp.yaml", "--set", "embeddings.dim=16") == 1
    assert "embeddings.dim: the run has 8, you ask for 16" in capsys.readouterr().err


@pytest.fixture
def disk(folder: Path) -> Iterator[Path]:
    with small_disk(folder / "disk", 512) as mounted:
        yield mounted


def test_a_full_disk_stops_training_and_keeps_checkpoints_intact(
    folder: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(folder)
    assert run_command("prepare", "exp.yaml") == 0
    run = disk / "run"
    filler = disk / "filler"
    assert run_command("train", "exp.yaml", "--run", str(run), "--stop-after", "4") == 0
    filler.write_bytes(b"x" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 30_000))
    assert run_command("train", "exp.yaml", "--run", str(run)) == 1
    errors = capsys.readouterr().err
    assert "no space left on the device" in errors
    assert "hint:" in errors
    filler.unlink()
    assert run_command("train", "exp.yaml", "--run", str(run)) == 0


@contextlib.contextmanager
def ordinary_user(*, reaching: Path) -> Iterator[None]:
    """Runs the block as the user ``nobody`` if the process is root, because root may write anywhere."""
    for path in (reaching, *reaching.parents):
        if path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o055)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_no_permission_to_write_is_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(folder, training__epochs=1)
    assert (
        run_command("train", "exp.yaml") == 0
    )  # also imports all modules, which the user nobody may not be allowed to read
    (folder / "prepared").chmod(0o555)
    (folder / "runs").chmod(0o555)
    with ordinary_user(reaching=folder):
        prepared = run_command("prepare", "exp.yaml", "--set", "features.user.encoder={name: hash, rows: 100}")
        assert (prepared, "no permission to write" in (errors := capsys.readouterr().err)) == (1, True), errors
        trained = run_command("train", "exp.yaml", "--run", "runs/other")
        assert (trained, "no permission to write" in (errors := capsys.readouterr().err)) == (1, True), errors


def test_no_permission_to_read_is_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(folder)
    assert run_command("prepare", "exp.yaml") == 0
    (folder / "log.csv").chmod(0)
    with ordinary_user(reaching=folder):
        assert run_command("prepare", "exp.yaml", "--set", "features.user.encoder={name: hash, rows: 100}") == 1
    errors = capsys.readouterr().err
    assert "log.csv" in errors
    assert "permission" in errors


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.monitor=gauc", "'gauc' needs data.group"),
        ("training.monitor=click/auc", "'click/auc' is not measured; use auc"),
        ("evaluation.slices=[age]", "'age' is no feature with one id a row; there are: user, item"),
        ("evaluation.slices=[usr]", "did you mean 'user'?"),
        ("training.seed=99999999999999999999999", "training.seed: Input should be less than"),
        ("training.threads=100000", "training.threads: Input should be less than"),
    ],
)
def test_impossible_settings_are_refused_before_training(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str, message: str
) -> None:
    write_config(folder, data__group=None)
    assert run_command("train", "exp.yaml", "--set", setting) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
    assert not (folder / "runs").exists()


def test_a_run_folder_inside_a_file_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(folder)
    assert run_command("train", "exp.yaml", "--run", "log.csv/run") == 1
    assert "log.csv/run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["type", "items", "values", "keys", "train", "to", "forward"])
def test_a_feature_may_have_the_name_of_a_method(folder: Path, name: str) -> None:
    edit(folder / "log.csv", 1, lambda line: line.replace("item", name))
    features = config_values(folder)["features"][:2]
    write_config(folder, features=[features[0], {**features[1], "name": name}], training__epochs=1)
    assert run_command("train", "exp.yaml") == 0


def test_undefined_metrics_are_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String})
    frame.with_columns(one=pl.int_range(pl.len())).write_csv("log.csv")  # a group of its own for each row
    write_config(folder, data__group="one", training__epochs=1)
    assert run_command("train", "exp.yaml") == 0
    assert run_command("evaluate", "runs/small") == 0
    assert "gauc is undefined: no group holds both classes" in capsys.readouterr().out


def test_a_run_without_validation_and_test_splits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(folder, data__split={"name": "random", "validation": 0, "test": 0}, training__epochs=1)
    assert run_command("train", "exp.yaml") == 0
    assert "neither a validation nor a test split" in capsys.readouterr().out
