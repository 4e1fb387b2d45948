"""The files that a source reads, and its errors about files that it cannot read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_kit import INTEGER, as_nobody, schema

from ziggurat.core.errors import DataError
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.reader import RawSource
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.text import stored

COLUMNS = schema(user=INTEGER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.csv", "a.csv", "more/c.tsv", "more/.hidden.csv", "_SUCCESS", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("user\n7\n")
    (tmp_path / "more/d.csv.gz").write_bytes(gzip.compress(b"user\n7\n"))
    return tmp_path


def open_csv(folder: Path, *files: str, **options: int) -> RawSource:
    return open_source(CsvSource(files=list(files)), folder, COLUMNS, **options)


def names(folder: Path, *files: str) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in open_csv(folder, *files).paths]


def test_files_folders_and_globs(folder: Path) -> None:
    assert names(folder, "b.csv", "a.csv") == ["b.csv", "a.csv"]
    assert names(folder, ".") == ["a.csv", "b.csv", "more/c.tsv", "more/d.csv.gz"]
    assert names(folder, "more") == ["more/c.tsv", "more/d.csv.gz"]
    assert names(folder, "*.csv") == ["a.csv", "b.csv"]
    assert names(folder, "**/*.csv*") == ["a.csv", "b.csv", "more/.hidden.csv", "more/d.csv.gz"]
    assert names(folder, str(folder / "more" / "[c]*")) == ["more/c.tsv"]
    assert names(folder, "b.csv", "*.csv", "b.csv") == ["b.csv", "a.csv"]


def test_a_name_that_looks_like_a_glob_is_the_file_if_it_exists(folder: Path) -> None:
    (folder / "a[1].csv").write_text("user\n7\n")
    assert names(folder, "a[1].csv") == ["a[1].csv"]


def test_the_files_argument_replaces_those_of_the_config(folder: Path) -> None:
    source = open_source(CsvSource(files=["absent.csv"]), folder, COLUMNS, ["b.csv"])
    assert source.paths == (folder / "b.csv",)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["c.csv"], r"c\.csv: no such file\n  hint: .* holds: _SUCCESS, a\.csv, b\.csv"),
        (["mroe/c.tsv"], r"mroe/c\.tsv: no such file\n  hint: did you mean '.*/more'\?"),
        (["more/zzzzz"], r"zzzzz: no such file\n  hint: .*/more holds: \.hidden\.csv, c\.tsv, d\.csv\.gz"),
        (["*.parquet"], r"\*\.parquet: no file matches this pattern"),
        (["more/*/*"], r"no file matches this pattern"),
        ([], r"the source names no files"),
    ],
)
def test_missing_files(folder: Path, files: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_csv(folder, *files)


def test_a_folder_without_a_file_of_the_format(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "empty" / "x.parquet").touch()
    with pytest.raises(DataError, match=r"empty: no file in this folder ends in \.csv, \.tsv"):
        open_csv(folder, "empty")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"log\.csv: the file is empty \(0 bytes\)"),
        (b"\n\r\n\n", r"log\.csv: the file holds no rows, only empty lines"),
        (b"user\n", r"log\.csv: the file holds a header but no rows"),
        (b"user", r"log\.csv: the file holds a header but no rows"),
    ],
)
def test_files_without_rows(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_csv(tmp_path, "log.csv")


def test_a_compressed_file_without_content(tmp_path: Path) -> None:
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match=r"log\.csv\.gz: the file is empty once decompressed"):
        open_csv(tmp_path, "log.csv.gz")


@pytest.mark.parametrize("locked", ["folder/log.csv", "folder"])
@pytest.mark.parametrize("named", ["folder/log.csv", "folder", "folder/*.csv"])
def test_no_permission(tmp_path: Path, locked: str, named: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/log.csv").write_text("user\n7\n")
    (tmp_path / locked).chmod(0)
    try:
        with (
            as_nobody(tmp_path),
            pytest.raises(DataError, match=r"folder(/log\.csv|/\*\.csv)?: no permission to read\n  hint: .*chmod"),
        ):
            open_csv(tmp_path, named)
    finally:
        (tmp_path / locked).chmod(0o755)


def test_a_fingerprint_changes_only_with_names_sizes_and_times(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = open_csv(folder, "a.csv", "b.csv").fingerprint()
    assert open_csv(folder, "a.csv", "b.csv").fingerprint() == first
    assert open_csv(folder, "b.csv", "a.csv").fingerprint() != first
    assert open_csv(folder, "a.csv").fingerprint() != first
    moved = folder.rename(tmp_path_factory.mktemp("elsewhere") / "data")
    assert open_csv(moved, "a.csv", "b.csv").fingerprint() == first
    os.utime(moved / "a.csv", ns=(0, 0))
    assert open_csv(moved, "a.csv", "b.csv").fingerprint() != first


def long_log(path: Path) -> None:
    path.write_text("user\n" + "".join(f"{n}\n" for n in range(10_000)))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (Path.unlink, r"log\.csv: vanished while it was being read .*\n  hint: put the file back"),
        (
            lambda path: path.write_text("user\n1\n"),
            r"log\.csv: changed while it was being read \(48895 bytes before, 7 now\)",
        ),
        (lambda path: os.utime(path, ns=(1, 1)), r"log\.csv: changed while it was being read"),
    ],
    ids=["vanishes", "is cut", "is touched"],
)
def test_a_file_that_changes_in_the_middle(tmp_path: Path, harm: object, message: str) -> None:
    long_log(tmp_path / "log.csv")
    blocks = open_csv(tmp_path, "log.csv", block_bytes=1_000).blocks()
    next(blocks)
    assert callable(harm)
    harm(tmp_path / "log.csv")
    with pytest.raises(DataError, match=message):
        list(blocks)


def test_a_second_file_that_vanished_after_opening(tmp_path: Path) -> None:
    long_log(tmp_path / "1.csv")
    long_log(tmp_path / "2.csv")
    source = open_csv(tmp_path, "1.csv", "2.csv")
    (tmp_path / "2.csv").unlink()
    blocks = source.blocks()
    assert next(blocks).table.num_rows == 10_000
    with pytest.raises(DataError, match=r"2\.csv: vanished"):
        next(blocks)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
@pytest.mark.parametrize("harm", ["truncated", "overwritten"])
def test_damaged_compressed_files(tmp_path: Path, codec: str, harm: str) -> None:
    numbers = random.Random(0).sample(range(10**9), 50_000)
    stored = bytearray(pa.compress(b"user\n" + b"".join(b"%d\n" % n for n in numbers), codec, asbytes=True))
    middle = len(stored) // 2
    if harm == "truncated":
        del stored[middle:]
    else:
        stored[middle : middle + 2_000] = bytes(2_000)
    path = tmp_path / ("log.csv.gz" if codec == "gzip" else "log.csv.zst")
    path.write_bytes(stored)
    source = open_csv(tmp_path, path.name, block_bytes=10_000)
    rows: list[int] = []

    def read_on() -> None:
        for block in source.blocks():
            rows.extend(block.table.column("user").to_pylist())

    with pytest.raises(
        DataError, match=rf"{path.name}: truncated or corrupt {codec} data .*\n  hint: copy or download"
    ):
        read_on()
    assert len(rows) < len(numbers)
    if harm == "truncated":
        assert rows == numbers[: len(rows)]


def test_a_text_file_named_as_if_compressed(tmp_path: Path) -> None:
    (tmp_path / "log.csv.gz").write_text("user\n7\n")
    with pytest.raises(DataError, match=r"log\.csv\.gz: is no gzip data, though its name ends in \.gz\n  hint: rename"):
        open_csv(tmp_path, "log.csv.gz")


@pytest.mark.parametrize(("codec", "suffix"), [("gzip", ".gz"), ("zstd", ".zst")])
@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.csv.zst"])
def test_a_compressed_file_named_as_if_it_were_another(tmp_path: Path, codec: str, suffix: str, name: str) -> None:
    (tmp_path / name).write_bytes(pa.Codec(codec).compress(b"user\n7\n", asbytes=True))
    if name.endswith(suffix):
        assert [block.table.num_rows for block in open_csv(tmp_path, name).blocks()] == [1]
        return
    with pytest.raises(DataError, match=rf"is {codec} data, which its name does not say\n  hint: .*/log\.csv{suffix}'"):
        open_csv(tmp_path, name)


def test_binary_files_are_identified_in_the_error(tmp_path: Path) -> None:
    table = pa.table({"user": [7]})
    pq.write_table(table, tmp_path / "parquet.csv")
    with pa.ipc.new_file(str(tmp_path / "arrow.csv"), table.schema) as file:
        file.write_table(table)
    with zipfile.ZipFile(tmp_path / "zip.csv", "w") as archive:
        archive.writestr("log.csv", "user\n7\n")
    (tmp_path / "bzip2.csv").write_bytes(bz2.compress(b"user\n7\n"))
    (tmp_path / "xz.csv").write_bytes(lzma.compress(b"user\n7\n"))
    for name, what in {"parquet": "a Parquet", "arrow": "an Arrow"}.items():
        with pytest.raises(DataError, match=rf"{name}\.csv: is {what}.* it is being read as text\n  hint: "):
            open_csv(tmp_path, f"{name}.csv")
    for name in ("zip", "bzip2", "xz"):
        with pytest.raises(DataError, match=rf"{name}\.csv: is {name} data, .*\n  hint: rename"):
            open_csv(tmp_path, f"{name}.csv")


def test_text_that_begins_like_a_binary_format_is_read_as_text(tmp_path: Path) -> None:
    for place, name in enumerate(("PAR1", "BZh9", "PK", "ARROW1")):
        (tmp_path / f"{place}.csv").write_text(f"{name},user\n7,8\n")
        (block,) = open_csv(tmp_path, f"{place}.csv").blocks()
        assert block.table["user"].to_pylist() == [8]


def test_what_is_no_file_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.csv")
    (folder / "zero.csv").symlink_to("/dev/zero")
    for name in ("pipe.csv", "zero.csv"):
        with pytest.raises(DataError, match=rf"{name}: is a pipe, a socket or a device, not a file"):
            open_csv(folder, name)
    assert names(folder, ".") == ["a.csv", "b.csv", "more/c.tsv", "more/d.csv.gz"]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("line", [b"7\n", b"\n"])
def test_a_file_that_becomes_huge_is_refused(folder: Path, suffix: str, line: bytes) -> None:
    codec = {"gz": "gzip", "zst": "zstd"}[suffix]
    with pa.CompressedOutputStream(str(folder / f"bomb.csv.{suffix}"), codec) as stream:
        stream.write(b"user\n")
        for _ in range(4):
            stream.write(line * (2**24 // len(line)))
    source, read = open_csv(folder, f"bomb.csv.{suffix}"), 0
    with pytest.raises(
        DataError, match=rf"bomb\.csv\.{suffix}: [\d,]+ bytes of it have become [\d,]+, and at most 200"
    ):
        for block in source.blocks():
            read += block.table.num_rows
    assert read <= 2**25


def test_a_file_that_compresses_well_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "FREE_BYTES", 2**16)
    lines = "".join(f"{number}\n" for number in range(50_000))
    (folder / "usual.csv.gz").write_bytes(gzip.compress(f"user\n{lines}".encode()))
    assert sum(block.table.num_rows for block in open_csv(folder, "usual.csv.gz").blocks()) == 50_000


@pytest.mark.parametrize("name", ["", "**/*.csv"])
def test_an_entry_that_cannot_be_listed_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (folder / "gone").mkdir()
    scandir = os.scandir

    def listed(path: str | Path) -> object:
        if Path(path) == folder / "gone":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)
    given = str(folder / name)
    with pytest.raises(DataError) as told:
        open_csv(folder, given)
    assert told.value.problem == f"{given}: {folder / 'gone'} vanished or cannot be read (No such file or directory)"
    assert "or the files one by one" in told.value.hint
