"""Under its name a file or folder is complete or absent, also on a full disk and without permission."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.small_disk import small_disk
from ziggurat.core import files
from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.core.files import FolderInUse, atomic_file, atomic_folder, locked_folder, put_back, remove, sweep


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


def test_a_missing_permission_names_the_users_path_and_who_may_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    temporary = tmp_path / f".file.{os.getpid()}.part"
    with pytest.raises(DataError) as caught, atomic_file(path):
        raise PermissionError(errno.EACCES, "denied", str(temporary / "within"))
    owner = tmp_path.owner()
    assert caught.value.problem == (
        f"{path}: no permission to write: the folder {tmp_path} belongs to {owner} (drwx------), you are {owner}"
    )
    assert caught.value.hint == f"choose another place for it, or allow it: chmod u+w {tmp_path}"


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_folder_that_was_moved_aside_by_a_dead_process_is_put_back(tmp_path: Path) -> None:
    """SIGKILL between the two renames of a replacement leaves such folders."""
    pid = dead_process()
    (tmp_path / f".one.{pid}.old").mkdir()
    (tmp_path / f".one.{pid}.old" / "kept").write_text("kept")
    (tmp_path / f".one.{pid}.part").mkdir()
    put_back(tmp_path)
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (tmp_path / "one" / "kept").read_text() == "kept"


def test_writing_a_folder_again_clears_what_died_after_the_second_rename(tmp_path: Path) -> None:
    pid = dead_process()
    (tmp_path / f".one.{pid}.old").mkdir()
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "new").write_text("new")
    with pytest.raises(KeyError), atomic_folder(tmp_path / "one"):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (tmp_path / "one" / "new").read_text() == "new"


def test_only_what_dead_processes_left_half_written_is_swept(tmp_path: Path) -> None:
    others = [f".file.{os.getppid()}.part", ".hidden.part", "file.part", ".file.12x.part"]
    for name in (*others, f".file.{dead_process()}.part", f".a.b.{os.getpid()}.part"):
        (tmp_path / name).write_text("half")
    sweep(tmp_path, "other")
    assert len(list(tmp_path.iterdir())) == 6
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


REPLACE_FOREVER = """
import sys
from pathlib import Path
from ziggurat.core.files import atomic_folder
for turn in range(1_000_000):
    with atomic_folder(Path(sys.argv[1])) as temporary:
        for name in "abc":
            (temporary / name).write_text(str(turn))
    print(turn, flush=True)
"""


def test_a_folder_outlives_the_death_of_its_writer_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for kill in range(8):
        command = [sys.executable, "-c", REPLACE_FOREVER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "0\n"
            time.sleep(0.003 * kill)
            process.send_signal(signal.SIGKILL)
        put_back(tmp_path)
        contents = {file.name: file.read_text() for file in path.iterdir()}
        assert (contents.keys(), len(set(contents.values()))) == ({"a", "b", "c"}, 1)
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_writing_a_file_over_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, Path()):
        with pytest.raises(DataError, match="is a folder, not a file"), atomic_file(path):
            pass


def test_an_unwritable_path_is_named_without_the_temporary() -> None:
    message = r"^/proc/x\.csv: cannot be written: No such file or directory\n"
    with pytest.raises(DataError, match=message), atomic_file(Path("/proc/x.csv")) as temporary:
        temporary.write_text("half")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder with a file that nothing may change, outside of the one that is worked in."""
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "file").write_text("kept")
    (tmp_path / "here").mkdir()
    return folder


def test_links_are_removed_and_not_followed(tmp_path: Path, secret: Path) -> None:
    here, dead = tmp_path / "here", 999_999_999
    for name, target in (
        (f".a.{dead}.part", secret),
        (f".b.{dead}.part", secret / "file"),
        (f".c.{dead}.old", secret),
        ("c", secret),
        (f".d.{dead}.old", secret),
        (f".e.{10**40}.part", secret),
    ):
        (here / name).symlink_to(target)
    put_back(here)
    sweep(here)
    assert sorted(path.name for path in here.iterdir()) == [f".d.{dead}.old", f".e.{10**40}.part", "c"]
    remove(here / "c")
    with atomic_file(here / f"d{'x' * 9}") as temporary:
        temporary.write_text("new")
    for target in (secret, secret / "file"):
        (here / "link").symlink_to(target)
        with atomic_folder(here / "link") as folder:
            (folder / "new").write_text("new")
        assert [path.name for path in (here / "link").iterdir()] == ["new"]
        remove(here / "link")
    assert (secret / "file").read_text() == "kept"
    assert [path.name for path in secret.iterdir()] == ["file"]


def test_a_temporary_that_is_a_link_is_replaced(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "here" / f".file.{os.getpid()}.part").symlink_to(secret / "file")
    with atomic_file(tmp_path / "here" / "file") as temporary:
        temporary.write_text("new")
    assert (secret / "file").read_text() == "kept"


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder"])
def test_a_lock_that_is_no_plain_file_is_refused(tmp_path: Path, secret: Path, kind: str) -> None:
    lock = tmp_path / "here" / "lock"
    match kind:
        case "pipe":
            os.mkfifo(lock)
        case "folder":
            lock.mkdir()
        case _:
            lock.symlink_to(secret / ("file" if kind == "link" else "new"))
    with (
        pytest.raises(RunFolderError, match=r"here/lock: is (a symbolic link|no plain file)"),
        locked_folder(tmp_path / "here", "training"),
    ):
        pass
    assert (secret / "file").read_text() == "kept"
    assert [path.name for path in secret.iterdir()] == ["file"]


def test_the_holder_of_a_lock_is_named_if_it_is_plain_text(tmp_path: Path) -> None:
    with locked_folder(tmp_path, "training"):
        for content, expected in (
            (b"pid 7", r"folder \(pid 7\)\n"),
            (b"\xff\x1b[31m", r"folder\n"),
            (b"", r"folder\n"),
        ):
            (tmp_path / "lock").write_bytes(content)
            with (
                pytest.raises(FolderInUse, match=f"is training in this {expected}"),
                locked_folder(tmp_path, "training"),
            ):
                pass


@pytest.mark.parametrize("count", [3, 100])
def test_a_folder_is_flushed_as_a_whole(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    for number in range(count):
        with files.new_file(tmp_path / "below" / f"{number}.json") as path:
            path.write_text("{}")
    flushed: list[str] = []

    def noted(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(files.os, "fsync", noted)
    files.sync_folder(tmp_path)
    expected = 2 + count if count < 64 else 1  # each file and folder; or the file system, and the folder
    assert len(flushed) == expected
    assert flushed[-1] == str(tmp_path)


def test_a_new_file_that_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(DataError, match="a"), files.new_file(tmp_path / "a"):
        pass
    assert (tmp_path / "a").read_text() == "old"


def test_the_folder_of_a_file_is_made_and_left_empty(tmp_path: Path) -> None:
    files.make_folder_of(tmp_path / "a" / "b" / "plan.json")
    files.make_folder_of(tmp_path / "a" / "b" / "plan.json")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    with pytest.raises(DataError, match="is a folder, not a file"):
        files.make_folder_of(tmp_path / "a" / "b")
