"""Temporary files and folders of processes that are killed, and of those that live on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ziggurat.core.errors import DataError
from ziggurat.core.temporary import PendingFile, pending_file, temporary_folder, unnamed_file

OWNER = """
import subprocess, sys, time
from pathlib import Path
from ziggurat.core.temporary import pending_file, temporary_folder
where = Path(sys.argv[1])
with (
    temporary_folder("ours-", where) as folder,
    temporary_folder("shared-", where) as shared,
    pending_file(where / "out.csv") as out,
):
    (folder.path / "file").write_text("x")
    out.path.write_text("half")
    child = subprocess.Popen(["sleep", "600"], pass_fds=[shared.descriptor], stdout=subprocess.DEVNULL)
    print(folder.path.name, shared.path.name, child.pid, flush=True)
    time.sleep(600)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_next_start_sweeps_what_a_kill_has_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "ours-link").symlink_to(tmp_path / "others")
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    theirs, shared, child = process.stdout.readline().split()
    with temporary_folder("ours-", tmp_path) as own:
        assert names(tmp_path) == sorted([own.path.name, "ours-link", theirs, "others", shared]), "the owner lives"
    process.kill()
    process.wait()
    process.stdout.close()
    assert names(tmp_path) == sorted(["ours-link", theirs, "others", shared]), "a file without a name leaves nothing"
    with temporary_folder("ours-", tmp_path) as own, temporary_folder("ours-", tmp_path) as second:
        assert names(tmp_path) == sorted([own.path.name, "ours-link", "others", second.path.name, shared])
    with temporary_folder("shared-", tmp_path):
        assert shared in names(tmp_path), "a child that inherited its descriptor lives"
    os.kill(int(child), signal.SIGKILL)
    while shared in names(tmp_path):  # until the kernel has ended the child
        with temporary_folder("shared-", tmp_path):
            pass
    assert names(tmp_path) == ["others", "ours-link"]


@pytest.mark.parametrize("named", [False, True])
def test_a_file_appears_when_it_is_put_in_place(tmp_path: Path, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if named:  # a file system without unnamed files
        monkeypatch.delattr(os, "O_TMPFILE")
    target = tmp_path / "new" / "out.csv"
    with pending_file(target) as pending:
        pending.path.write_text("given up")
        assert names(target.parent) == ([f".out.csv.{os.getpid()}.part"] if named else [])
    assert names(target.parent) == []
    for text in ("first", "second"):
        with unnamed_file(target) as path:
            path.write_text(text)
            assert not target.exists() or target.read_text() == "first"
        assert target.read_text() == text
    assert names(target.parent) == ["out.csv"]
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask


def test_an_error_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("earlier")
    with pytest.raises(KeyError), unnamed_file(target) as path:
        path.write_text("half")
        raise KeyError
    assert (target.read_text(), names(tmp_path)) == ("earlier", ["out.csv"])
    with pytest.raises(DataError, match=r"is a folder, not a file"), unnamed_file(tmp_path):
        pass


def test_a_sandbox_without_links_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", forbidden)
    pending = PendingFile(tmp_path / "out.csv")
    pending.path.write_text("whole")
    pending.put_in_place()
    pending.close()
    assert (names(tmp_path), (tmp_path / "out.csv").read_text()) == (["out.csv"], "whole")
