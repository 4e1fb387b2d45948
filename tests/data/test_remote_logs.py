"""Logs in an object store and on a web server: a real S3 server and a real web server, both on loopback."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.orc
import pytest
from web_server import WebServer, run_web_server

import ziggurat
from tests.s3_kit import Proxy
from ziggurat.core.errors import ConfigError, DataError, EnvironmentMismatch, ZigguratError
from ziggurat.core.remote import remote_file
from ziggurat.core.remote.file_system import open_file_system
from ziggurat.core.remote.remote_file import AHEAD, BLOCK_BYTES, KEPT, RemoteFile, block_at, bounds, find_remote
from ziggurat.data.encoded.manifest import SPLITS
from ziggurat.data.readers.source_files import resolve_files
from ziggurat.data.readers.urls import UrlPath

ROWS = 3000
SUFFIXES = (".csv", ".parquet")


def log(rows: int = ROWS, start: int = 0) -> pl.DataFrame:
    number = pl.int_range(start, start + rows, eager=True)
    return pl.DataFrame(
        {
            "user": [f"u{k % 97}" for k in number],
            "item": [f"i{k * 7 % 131}" for k in number],
            "price": number % 50 / 4,
            "click": (number * 13 % 7 < 2).cast(pl.Int8),
        }
    )


def written(frame: pl.DataFrame, name: str) -> bytes:
    """Returns the content of a file of the format that ``name`` says."""
    text = frame.write_csv().encode()
    match name.partition(".")[2]:
        case "csv":
            return text
        case "csv.gz":
            return gzip.compress(text)
        case "csv.zip":
            held = io.BytesIO()
            with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("rows.csv", text)
            return held.getvalue()
        case "jsonl":
            return frame.write_ndjson().encode()
        case "parquet":
            held = io.BytesIO()
            frame.write_parquet(held, row_group_size=500)
            return held.getvalue()
        case "arrow":
            held = io.BytesIO()
            frame.write_ipc(held, compat_level=pl.CompatLevel.oldest())
            return held.getvalue()
        case kind:
            assert kind == "orc"
            held = io.BytesIO()
            pa.orc.write_table(frame.to_arrow(compat_level=pl.CompatLevel.oldest()), held)
            return held.getvalue()


FORMATS = ("csv", "csv.gz", "csv.zip", "jsonl", "parquet", "arrow", "orc")


@pytest.fixture
def web() -> Iterator[WebServer]:
    with run_web_server() as server:
        yield server


def put(url: str, data: bytes) -> None:
    files, path = open_file_system(url)
    files.pipe_file(path, data)


def split_rows(dataset: ziggurat.Dataset) -> dict[str, list[Any]]:
    return {
        name: [
            batch.to_pydict()
            for block in range(len(dataset.split(name).sizes))
            for batch in [dataset.split(name).read(block)]
        ]
        for name in ("train", "validation", "test")
    }


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("place", ["s3", "web"])
def test_logs_elsewhere_are_read_as_on_a_disk(
    suffix: str, place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    data = written(log(), f"log.{suffix}")
    (tmp_path / f"log.{suffix}").write_bytes(data)
    if place == "s3":
        url = f"{request.getfixturevalue('s3')}/log.{suffix}"
        put(url, data)
    else:
        web = request.getfixturevalue("web")
        web.files[f"/logs/log.{suffix}"] = data
        url = f"{web.url}/logs/log.{suffix}"
    here, there = (ziggurat.draft_config(str(each)) for each in (tmp_path / f"log.{suffix}", url))
    assert here.partition("source:")[2] == there.partition("source:")[2]
    assert f'folder: "{url.rpartition("/")[0]}"' in there
    (tmp_path / "here.yaml").write_text(here)
    (tmp_path / "there.yaml").write_text(there)
    datasets = [
        ziggurat.prepare(ziggurat.load_experiment(tmp_path / f"{name}.yaml"), folder=tmp_path / name)
        for name in ("here", "there")
    ]
    assert split_rows(datasets[0]) == split_rows(datasets[1])
    assert sum(datasets[1].split(name).rows for name in SPLITS) == ROWS


def test_folders_globs_archives_and_keys_in_a_bucket(s3: str) -> None:
    for day in (1, 2):
        put(f"{s3}/days/day={day}/part.csv", written(log(10, day), "a.csv"))
    put(f"{s3}/days/_SUCCESS", b"done")
    put(f"{s3}/days/.hidden/part.csv", b"user\n1\n")
    put(f"{s3}/days/day=1/notes.md", b"# notes")
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("old/a.csv", written(log(5), "a.csv"))
        archive.writestr("old/b.csv", written(log(5), "b.csv"))
    put(f"{s3}/old.zip", held.getvalue())
    parts = [f"{s3}/days/day=1/part.csv", f"{s3}/days/day=2/part.csv"]

    def names(*given: str, folder: Any = Path()) -> list[str]:
        return [str(file.path) for file in resolve_files(given, folder, SUFFIXES)]

    assert names(f"{s3}/days") == names(f"{s3}/days/") == parts
    assert names(f"{s3}/days/*=*/*.csv") == names(f"{s3}/days/**/d*/part.csv") == parts
    assert names(f"{s3}/old.zip/old/*.csv") == [f"{s3}/old.zip/old/{each}.csv" for each in "ab"]
    assert names("days", "days/day=1/part.csv", folder=UrlPath.of(s3)) == parts
    held_files = resolve_files(["days"], UrlPath.of(s3), SUFFIXES)
    assert [file.name for file in held_files] == ["days/day=1/part.csv", "days/day=2/part.csv"]
    text = ziggurat.draft_config(f"{s3}/days")
    assert f'folder: "{s3}/days"' in text
    assert "from the names of the folders day=" in text


def test_many_files_in_a_bucket_are_named_by_one_pattern(s3: str) -> None:
    for number in range(25):
        put(f"{s3}/part-{number:02d}.csv", written(log(20, number), "a.csv"))
    text = ziggurat.draft_config(s3)
    assert f'folder: "{s3}"' in text
    assert 'files: ["**/*.csv"]' in text
    assert len(resolve_files(["**/*.csv"], UrlPath.of(s3), SUFFIXES)) == 25


def test_what_is_missing_in_a_bucket_is_named(s3: str) -> None:
    put(f"{s3}/clicks.csv", b"a,b\n1,2\n")
    put(f"{s3}/empty.csv", b"")
    with pytest.raises(DataError, match=r"(?s)clikcs.csv: no such file.*did you mean 's3://.*/run/clicks.csv'"):
        resolve_files([f"{s3}/clikcs.csv"], Path(), SUFFIXES)
    with pytest.raises(DataError, match="no file matches this pattern"):
        resolve_files([f"{s3}/*.parquet"], Path(), SUFFIXES)
    with pytest.raises(DataError, match=r"empty.csv: the file is empty"):
        resolve_files([f"{s3}/empty.csv"], Path(), SUFFIXES)
    with pytest.raises(DataError, match="there is no bucket 'no-such-bucket'"):
        resolve_files(["s3://no-such-bucket/a.csv"], Path(), SUFFIXES)
    with pytest.raises(ConfigError, match=r"no place is known by s4://; write a path, or a URL"):
        resolve_files(["s4://bucket/a.csv"], Path(), SUFFIXES)
    with pytest.raises(ConfigError, match=r"no place is known by htps://; did you mean https://"):
        resolve_files(["htps://host/a.csv"], Path(), SUFFIXES)
    with pytest.raises(DataError, match=r"credentials in it \(…@host\)"):
        resolve_files(["https://me:secret@host/a.csv"], Path(), SUFFIXES)
    for query in ("X-Amz-Signature=ab12", "download=1&access_token=ab12", "sig=ab12"):
        with pytest.raises(DataError, match=r"a.csv: a URL with .*=… would give others access") as refused:
            resolve_files([f"https://host/a.csv?{query}"], Path(), SUFFIXES)
        assert "ab12" not in str(refused.value)


def test_a_package_that_a_place_needs_is_named() -> None:
    with pytest.raises(EnvironmentMismatch, match=r"(?s)gs://bucket/a.csv: needs a package.*gcsfs"):
        resolve_files(["gs://bucket/a.csv"], Path(), SUFFIXES)


@pytest.mark.parametrize("fault", ["503", "cut"])
def test_requests_that_fail_for_a_while_are_repeated(
    web: WebServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(remote_file, "FIRST_PAUSE_S", 0.001)
    web.files["/a.csv"] = data = os.urandom(BLOCK_BYTES + 5)
    found = find_remote(f"{web.url}/a.csv")
    web.faults.extend([fault, fault, "", fault])
    with found.open() as stream:
        assert stream.read() == data
    assert not web.faults


def test_a_server_that_keeps_failing_is_named(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "FIRST_PAUSE_S", 0.001)
    web.files["/a.csv"] = b"a,b\n1,2\n"
    found = find_remote(f"{web.url}/a.csv")
    web.faults.extend(["503"] * 4)
    with found.open() as stream, pytest.raises(DataError, match=r"a.csv: cannot be read: the server answers 503"):
        stream.read()
    web.faults.append("403")
    with found.open() as stream, pytest.raises(DataError, match=r"the server '127.0.0.1:\d+' refuses it"):
        stream.read()
    assert not web.faults  # a refusal is not repeated


def test_a_server_that_cannot_be_asked_for_a_file_is_named(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "FIRST_PAUSE_S", 0.001)
    web.files["/a.csv"] = b"a,b\n1,2\n"
    web.always = "500"
    with pytest.raises(DataError, match=r"a.csv: cannot be read: the server answers 500, in all attempts"):
        find_remote(f"{web.url}/a.csv")
    web.always = "401"
    with pytest.raises(DataError, match=r"a.csv: cannot be read: the server '127.0.0.1:\d+' refuses it"):
        find_remote(f"{web.url}/a.csv")
    web.always = "404"
    with pytest.raises(FileNotFoundError):
        find_remote(f"{web.url}/a.csv")
    for host in ("127.0.0.1:1", "no-such-host.invalid"):
        with pytest.raises(DataError, match=rf"http://{host}/a.csv: cannot be read: no connection to the server"):
            find_remote(f"http://{host}/a.csv")


def test_a_store_that_fails_for_a_while_is_asked_again(s3: str, proxy: Proxy) -> None:
    data = written(log(50), "a.csv")
    put(f"{s3}/a.csv", data)
    proxy.on = "GET"
    proxy.faults.extend(["503", "cut", "half"])
    with find_remote(f"{s3}/a.csv").open() as stream:
        assert stream.read() == data
    assert not proxy.faults


@pytest.mark.parametrize("place", ["s3", "web"])
def test_a_file_that_changes_while_it_is_read_is_refused(place: str, request: pytest.FixtureRequest) -> None:
    first, second = os.urandom(2 * BLOCK_BYTES), os.urandom(2 * BLOCK_BYTES)
    if place == "s3":
        url = f"{request.getfixturevalue('s3')}/a.csv"
        change = lambda data: put(url, data)  # noqa: E731
    else:
        web: WebServer = request.getfixturevalue("web")
        url = f"{web.url}/a.csv"

        def change(data: bytes) -> None:
            web.files["/a.csv"] = data
            web.versions["/a.csv"] = web.versions.get("/a.csv", 0) + 1

    change(first)
    (file,) = resolve_files([url], Path(), SUFFIXES)
    file.check_unchanged()
    change(second)
    with pytest.raises(DataError, match=r"a.csv: changed while it was being read"):
        file.check_unchanged()
    assert resolve_files([url], Path(), SUFFIXES)[0].modified_ns != file.modified_ns


def test_a_file_that_vanishes_while_it_is_read_is_named(web: WebServer) -> None:
    web.files["/a.csv"] = os.urandom(3 * BLOCK_BYTES)
    found = find_remote(f"{web.url}/a.csv")
    with found.open() as stream:
        stream.read(10)
        del web.files["/a.csv"]
        with pytest.raises(DataError, match=r"a.csv: vanished while it was being read"):
            stream.seek(2 * BLOCK_BYTES)
            stream.read(10)
    with pytest.raises(DataError, match=r"a.csv: vanished while it was being read"):
        found.check_unchanged()


def test_a_server_that_sends_no_parts_is_refused_by_name(web: WebServer) -> None:
    web.files["/a.csv"] = b"a,b\n1,2\n" * 100_000
    web.parts = False
    with pytest.raises(DataError, match=r"(?s)a.csv: its server does not say the size.*download it"):
        find_remote(f"{web.url}/a.csv")
    web.parts, web.sized = True, False
    with pytest.raises(DataError, match=r"(?s)a.csv: its server does not say the size.*download it"):
        find_remote(f"{web.url}/a.csv")
    with pytest.raises(DataError, match=r"b.csv: the server has no such file"):
        resolve_files([f"{web.url}/b.csv"], Path(), SUFFIXES)


def test_a_page_in_place_of_a_log_is_named(web: WebServer) -> None:
    page = b"<!DOCTYPE HTML>\n<html><body><h1>Index of /logs</h1>\n<a href='a.csv'>a.csv</a></body></html>\n"
    web.files |= {"/logs/": page, "/logs": page, "/private.csv": page}
    for name in ("logs/", "logs"):
        with pytest.raises(DataError, match=r"is a web page.*\n  hint: web servers do not list folders") as told:
            ziggurat.draft_config(f"{web.url}/{name}")
        assert told.value.hint.endswith(f"{web.url}/logs/FILE.csv")
    with pytest.raises(DataError, match=r"private\.csv: is a web page.*\n  hint: open the URL in a browser"):
        ziggurat.draft_config(f"{web.url}/private.csv")


def test_a_query_is_no_part_of_the_name(web: WebServer) -> None:
    web.files["/a.csv.gz"] = written(log(40), "a.csv.gz")
    (file,) = resolve_files([f"{web.url}/a.csv.gz?download=1&version=2"], Path(), SUFFIXES)
    assert (file.compression, file.format_suffix) == ("gzip", ".csv")
    assert "?download=1&version=2" in ziggurat.draft_config(f"{web.url}/a.csv.gz?download=1&version=2")
    assert {path for _, path, _ in web.seen} == {"/a.csv.gz?download=1&version=2"}


def test_reading_ahead_is_bounded(web: WebServer) -> None:
    size = 14 * BLOCK_BYTES + 12_345
    web.files["/a.bin"] = data = os.urandom(size)
    with find_remote(f"{web.url}/a.bin").open() as stream:
        read = 0
        while piece := stream.read(300_000):
            assert piece == data[read : read + len(piece)]
            read += len(piece)
            furthest = max(end for _, end in web.ranges())
            assert furthest < read + (AHEAD + 1) * BLOCK_BYTES
            assert len(stream._blocks) <= KEPT
        assert read == size
    starts = [start for start, _ in web.ranges()]
    assert len(starts) == len(set(starts))  # nothing twice


def test_reading_the_head_takes_a_small_request(web: WebServer) -> None:
    web.files["/a.bin"] = bytes(3 * BLOCK_BYTES)
    with find_remote(f"{web.url}/a.bin").open() as stream:
        stream.read(100)
        stream.seek(-8, io.SEEK_END)
        stream.read(8)
    assert web.ranges() == [(0, 2**18 - 1), (2 * BLOCK_BYTES, 3 * BLOCK_BYTES - 1)]


def test_blocks_cover_a_file_without_gaps() -> None:
    size = 3 * BLOCK_BYTES + 7
    edges = [bounds(number, size) for number in range(block_at(size - 1) + 1)]
    assert edges[0][0] == 0
    assert edges[-1][1] == size
    assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))
    for position in (0, 2**18 - 1, 2**18, 2**20, BLOCK_BYTES - 1, BLOCK_BYTES, size - 1):
        start, end = bounds(block_at(position), size)
        assert start <= position < end


def test_a_database_elsewhere_is_refused_by_name(web: WebServer) -> None:
    web.files["/shop.sqlite"] = b"SQLite format 3\0" + bytes(4096)
    with pytest.raises(DataError, match=r"shop.sqlite: a database is read from a disk"):
        ziggurat.draft_config(f"{web.url}/shop.sqlite")


def test_a_second_preparation_finds_the_first_and_a_changed_object_another(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(f"{s3}/log.csv", written(log(), "log.csv"))
    Path("exp.yaml").write_text(ziggurat.draft_config(f"{s3}/log.csv"))
    experiment = ziggurat.load_experiment("exp.yaml")
    first = ziggurat.prepare(experiment)
    assert ziggurat.prepare(experiment).folder == first.folder
    put(f"{s3}/log.csv", written(log(start=1), "log.csv"))
    assert ziggurat.prepare(experiment).folder != first.folder


def test_files_of_damaged_formats_elsewhere_are_named(web: WebServer) -> None:
    for suffix in ("parquet", "arrow", "orc", "csv.gz", "csv.zip"):
        data = written(log(), f"log.{suffix}")
        web.files[f"/log.{suffix}"] = data[: len(data) // 2]
        with pytest.raises(ZigguratError, match=f"log.{suffix}"):
            ziggurat.draft_config(f"{web.url}/log.{suffix}")


def test_a_remote_file_travels_between_processes() -> None:
    import pickle

    file = RemoteFile("s3://bucket/a.csv", 5, "x")
    assert pickle.loads(pickle.dumps(file)) == file


def test_a_run_trains_and_predicts_on_urls(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(f"{s3}/log.csv", written(log(), "log.csv"))
    put(f"{s3}/new.parquet", written(log(100, 7), "new.parquet"))
    Path("exp.yaml").write_text(ziggurat.draft_config(f"{s3}/log.csv"))
    moved = f"{s3}/moved"
    put(f"{moved}/log.csv", written(log(), "log.csv"))
    experiment = ziggurat.load_experiment("exp.yaml", ["training.epochs=1"], data_folder=moved)
    run = ziggurat.train(experiment, "run").run
    predicted = ziggurat.predict_files(run, f"{s3}/new.parquet", "out.csv")
    assert predicted.rows == 100
    assert pl.read_csv("out.csv")["probability"].is_between(0, 1).all()
    assert moved in (run.folder / "config.yaml").read_text()
