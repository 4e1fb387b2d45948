"""Exports that are fetched from a real S3 server: the copy is whole, made once, and what is damaged is named."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import s3fs

from tests.s3_kit import Proxy
from tests.serving.http_kit import exported
from ziggurat.core.errors import DataError
from ziggurat.serving.cluster.fetched_export import fetched_export
from ziggurat.serving.http.served_model import ServedModel


@pytest.fixture
def place(s3: str) -> str:
    """The URL of an export."""
    files = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    files.put(str(exported().folder), s3, recursive=True)
    return s3


def test_a_fetched_export_predicts_the_same_bits(place: str, tmp_path: Path) -> None:
    folder = fetched_export(place, tmp_path)
    assert folder.parent == tmp_path
    found, expected = ServedModel.open(folder), exported()
    assert found.version == expected.model.version
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == sorted(
        path.relative_to(expected.folder) for path in expected.folder.rglob("*")
    )
    for path in expected.folder.rglob("*"):
        if path.is_file():
            assert (folder / path.relative_to(expected.folder)).read_bytes() == path.read_bytes()


def test_processes_of_a_host_fetch_it_once(place: str, proxy: Proxy, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetched_export(place, tmp_path))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(found)) == 1
    before = {path: path.stat().st_mtime_ns for path in found[0].rglob("*")}
    assert fetched_export(place, tmp_path) == found[0]
    assert {path: path.stat().st_mtime_ns for path in found[0].rglob("*")} == before


def test_damage_is_named_and_nothing_stays(place: str, tmp_path: Path) -> None:
    files = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    file = f"{place}/dense.safetensors"
    data: Any = files.cat_file(file)
    files.pipe_file(file, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DataError, match=r"dense\.safetensors"):
        fetched_export(place, tmp_path)
    files.pipe_file(file, data[:-1])
    with pytest.raises(DataError, match=r"dense\.safetensors: is damaged: it has"):
        fetched_export(place, tmp_path)
    files.rm(file)
    with pytest.raises(DataError, match=r"dense\.safetensors: is missing"):
        fetched_export(place, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    with pytest.raises(DataError, match=r"no export \(export\.json is missing\)"):
        fetched_export(f"{place}/nothing", tmp_path)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert fetched_export(str(tmp_path)) == tmp_path
    assert fetched_export(f"file://{tmp_path}") == tmp_path
