"""Reads an ORC file once in another process before this one reads it, because damage can end the process that reads it.

The ORC library does not check everything that a file says about itself: of a damaged one it may ask for tens of
gigabytes, or end the process. So every file is read whole by a short-lived process first, once for each process and
version of the file. If that process ends otherwise than it should, the file is an error that names it. What the library
refuses with an error of its own is not an end: the reader gets the same error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.data.readers.columnar.file import FREE_BYTES, LEAST_CELL_BYTES, MOST_EXPANSION
from ziggurat.data.readers.orc import trial_process
from ziggurat.data.readers.orc.trial_process import OUT_OF_MEMORY
from ziggurat.data.readers.source_files import SourceFile

FREE_MEMORY_BYTES = 2**30
"""Memory that reading a file may take, in addition to :data:`MOST_EXPANSION` times its size."""
_FREE_SECONDS, _BYTES_PER_SECOND = 120, 2**20
_passed: set[tuple[str, int, int]] = set()


def check_reading(file: SourceFile) -> None:
    """Validates that reading ``file`` neither ends a process nor takes far more memory or time than its size explains.

    Raises:
        OSError: it does, or the file cannot be read.
        EnvironmentMismatch: no other process can be started.
    """
    version = (str(file.path), file.size_bytes, file.modified_ns)
    if version in _passed:
        return
    memory_bytes = min(FREE_MEMORY_BYTES + MOST_EXPANSION * file.size_bytes, _memory_bytes())
    arguments = {
        "path": str(file.stored) if file.remote is None else None,
        "size": file.size_bytes,
        "rows": max(FREE_BYTES, MOST_EXPANSION * file.size_bytes) // LEAST_CELL_BYTES,
        "memory_bytes": memory_bytes,
        "seconds": _FREE_SECONDS + file.size_bytes // _BYTES_PER_SECOND,
        "modules": [path for path in sys.path if path],
    }
    status, message = _try(file, arguments)
    if status == OUT_OF_MEMORY:
        raise OSError(f"reading it takes more than {memory_bytes:,} bytes of memory")
    if status == -signal.SIGXCPU:
        raise OSError(f"reading it takes more than {arguments['seconds']:,} seconds of processor time")
    if status < 0:
        raise OSError(f"the library that reads it crashes: {_signal_name(-status)}")
    if status:
        last = (message.strip().splitlines() or [f"exit status {status}"])[-1]
        raise EnvironmentMismatch(
            f"{file.path}: the process that tries ORC files before they are read failed ({last})",
            f"make {sys.executable or 'python'} able to import pyarrow, or write the file as Parquet",
        )
    _passed.add(version)


def _try(file: SourceFile, arguments: dict[str, Any]) -> tuple[int, str]:
    """Returns the exit status of the process that reads the file, the negative number of a signal, and its messages."""
    command = [sys.executable or "python3", "-I", str(Path(trial_process.__file__)), json.dumps(arguments)]
    if file.remote is None:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return done.returncode, done.stderr.decode("utf-8", "replace")
    with (
        file.open() as stored,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
    ):
        _send(stored, process)
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
        return process.returncode, ""


def _send(stored: pa.NativeFile, process: subprocess.Popen[bytes]) -> None:
    """Sends the parts of a file that the process asks for, until it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    for request in process.stdout:
        offset, size = map(int, request.split())
        stored.seek(offset)
        data = stored.read(size)
        try:
            process.stdin.write(data)
            process.stdin.flush()
        except BrokenPipeError:
            return


def _memory_bytes() -> int:
    """Returns the size of the memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
