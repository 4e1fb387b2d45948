"""Files and folders are whole under their name or not there, also on a full disk and without permission."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.small_disk import small_disk
from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, atomic_folder


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    for text in ("one", "two"):
        with atomic_file(path) as temporary:
            temporary.write_text(text)
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for name in ("one", "two"):
        with atomic_folder(path) as temporary:
            (temporary / name).write_text(name)
    assert [file.name for file in path.iterdir()] == ["two"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with atomic_folder(path) as temporary:
        (temporary / "old").write_text("old")
    with pytest.raises(KeyError), atomic_folder(path) as temporary:
        (temporary / "half").write_text("half")
        raise KeyError
    assert [file.name for file in path.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_explained_and_leaves_the_old_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        fill(disk)


def fill(disk: Path) -> None:
    path = disk / "file"
    path.write_text("old")
    with (
        pytest.raises(DataError, match=r"no space left on the device[\s\S]*free some space"),
        atomic_file(path) as temporary,
    ):
        temporary.write_bytes(b"x" * 2**21)
    assert path.read_text() == "old"
    assert list(disk.iterdir()) == [path]


def test_a_missing_permission_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no permission to write"), atomic_file(tmp_path / "file"):
        raise PermissionError(errno.EACCES, "denied", str(tmp_path / "file"))
