"""An ORC file that ends the process that reads it: another process reads it first, and its end is a named error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pytest
from reader_kit import INTEGER, read, schema

import ziggurat
from ziggurat.core.errors import DataError, EnvironmentMismatch
from ziggurat.data.readers.orc import trial, trial_process
from ziggurat.data.readers.orc.reader import OrcSource
from ziggurat.data.readers.orc.trial import check_reading
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.source_files import SourceFile, resolve_files

LENGTHS = bytes([0, 7, 0, 8, 0, 9])
"""Runs of three 7s, three 8s and three 9s, as ORC writes the lengths of values."""


def write_log(path: Path, rows: int = 18) -> None:
    values = [b"x" * (7 + row // 3 % 6) for row in range(rows)]
    table = pa.table({"b": pa.array(values, pa.binary()), "n": pa.array([row % 2 for row in range(rows)])})
    pyarrow.orc.write_table(table, path, compression="uncompressed")


def lengths_of(path: Path, length: int) -> None:
    """Makes the first nine values this long, by what the file says."""
    whole = path.read_bytes()
    assert whole.count(LENGTHS) == 1
    path.write_bytes(whole.replace(LENGTHS, bytes([0x26]) + length.to_bytes(5, "big")))


def log_file(folder: Path) -> SourceFile:
    (file,) = resolve_files(["log.orc"], folder, (".orc",))
    return file


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of the one that reads the file."""
    path = tmp_path / "program.py"
    monkeypatch.setattr(trial_process, "__file__", str(path))
    return path


@pytest.mark.parametrize("length", [2**31, 2**36, 2**40 - 1])
def test_lengths_beyond_the_file_are_a_named_error(tmp_path: Path, length: int) -> None:
    write_log(tmp_path / "log.orc")
    lengths_of(tmp_path / "log.orc", length)
    message = r"log\.orc: truncated, corrupt or no ORC file \(.*\)\n  hint: copy or write the file again"
    with pytest.raises(DataError, match=message):
        ziggurat.draft_config([tmp_path / "log.orc"], "n")
    with pytest.raises(DataError, match=message):
        open_source(OrcSource(files=["log.orc"]), tmp_path, schema(n=INTEGER))


def test_a_file_is_tried_once_for_each_version(tmp_path: Path, program: Path) -> None:
    write_log(tmp_path / "log.orc")
    program.write_text("")
    check_reading(log_file(tmp_path))
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    check_reading(log_file(tmp_path))
    write_log(tmp_path / "log.orc", 24)
    with pytest.raises(OSError, match="the library that reads it crashes: SIGSEGV"):
        check_reading(log_file(tmp_path))
    with pytest.raises(DataError, match=r"log\.orc: truncated, corrupt or no ORC file \(the library .*: SIGSEGV\)"):
        open_source(OrcSource(files=["log.orc"]), tmp_path, schema(n=INTEGER))


def test_too_much_time_is_a_named_error(tmp_path: Path, program: Path) -> None:
    write_log(tmp_path / "log.orc")
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)")
    with pytest.raises(OSError, match="reading it takes more than 120 seconds of processor time"):
        check_reading(log_file(tmp_path))


def test_too_much_memory_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "log.orc", 200_000)
    monkeypatch.setattr(trial, "FREE_MEMORY_BYTES", 0)
    monkeypatch.setattr(trial, "MOST_EXPANSION", 0)
    with pytest.raises(OSError, match="reading it takes more than 0 bytes of memory"):
        check_reading(log_file(tmp_path))
    monkeypatch.setattr(trial, "FREE_MEMORY_BYTES", 2**27)
    check_reading(log_file(tmp_path))


def test_a_process_that_cannot_start_is_no_damage(tmp_path: Path, program: Path) -> None:
    write_log(tmp_path / "log.orc")
    program.write_text("raise ImportError('no pyarrow here')")
    with pytest.raises(EnvironmentMismatch, match=r"log\.orc: the process .* failed \(ImportError: no pyarrow here\)"):
        check_reading(log_file(tmp_path))


def test_what_the_library_refuses_is_left_to_the_reader(tmp_path: Path) -> None:
    write_log(tmp_path / "log.orc")
    lengths_of(tmp_path / "log.orc", 1_000)
    check_reading(log_file(tmp_path))
    assert len(read(open_source(OrcSource(files=["log.orc"]), tmp_path, schema(n=INTEGER))).rows) == 18
    with pytest.raises(DataError, match="no ORC file"):
        ziggurat.draft_config([tmp_path / "log.orc"], "n")


def test_a_process_reads_a_file_that_is_sent_to_it(tmp_path: Path) -> None:
    write_log(tmp_path / "log.orc", 3_000)
    whole = (tmp_path / "log.orc").read_bytes()
    arguments = {"path": None, "size": len(whole), "rows": 10**6, "memory_bytes": 2**30, "seconds": 60}
    for content in (whole, b"no ORC" * 99):
        command = [sys.executable, trial_process.__file__, json.dumps({**arguments, "modules": sys.path})]
        asked = 0
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for request in process.stdout:
                offset, size = map(int, request.split())
                assert 0 < size <= len(whole) - offset
                asked += size
                process.stdin.write(content[offset : offset + size].ljust(size, b"\0"))
                process.stdin.flush()
        assert process.returncode == 0, content[:6]
        assert asked
