"""Runs the command line in a process with bounds, and watches what it does to a folder that it has no business in."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import resource
import signal
import stat
import struct
import sys
import termios
import time
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from bench import small_memory

MEMORY_BYTES = 1536 * 2**20
"""Memory of a command's own, besides the libraries that it shares with the process it is forked from."""
CPU_S = 60
"""Processor time of a command."""
TIME_S = 600.0
"""Time in which a command has to end, also on a machine with much else to do."""
PIPE_BYTES = 4096
_IN_ACCESS, _IN_NONBLOCK, _IN_CLOEXEC, _IN_ISDIR = 0x1, os.O_NONBLOCK, os.O_CLOEXEC, 0x40000000
_EVENT = struct.Struct("iIII")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Attributes:
        status: its exit status; negative: the signal that killed it.
        output: what it printed.
        seconds: how long it took.
        memory: bytes of memory at most; 0 if that is unknown.
        late: whether it was killed at :data:`CPU_S` or :data:`TIME_S`.
    """

    status: int
    output: str
    seconds: float
    memory: int
    late: bool

    @property
    def has_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.output

    @property
    def is_out_of_memory(self) -> bool:
        """Whether it exceeded its memory: the kernel kills it then, and nobody else sends this signal in time."""
        return self.memory >= MEMORY_BYTES or (self.status == -signal.SIGKILL and not self.late)


class Commands:
    """Runs commands one after another, each in a process of its own, forked from a server with the libraries loaded."""

    def __init__(self) -> None:
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload([__name__, "ziggurat.cli.main", "ziggurat.training.api"])

    def run(self, arguments: Sequence[str], folder: Path, log: Path) -> Ended:
        """Runs ``ziggurat ARGUMENTS`` in ``folder``, with its output in the file ``log``."""
        with contextlib.ExitStack() as stack:
            group = None
            if small_memory.unavailable() is None:
                group = stack.enter_context(small_memory.limited(MEMORY_BYTES, "hostile"))
            process = self._context.Process(target=_command, args=(tuple(arguments), folder, log, group), daemon=True)
            started = time.monotonic()
            process.start()
            process.join(TIME_S)
            late = process.exitcode in {None, -signal.SIGXCPU}
            if process.exitcode is None:
                _kill(process)
            seconds = time.monotonic() - started
            memory = int((group / "memory.max_usage_in_bytes").read_text()) if group else 0
            assert process.exitcode is not None
        return Ended(process.exitcode, log.read_text(errors="replace"), seconds, memory, late)


def _kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


def _command(arguments: tuple[str, ...], folder: Path, log: Path, group: Path | None) -> NoReturn:
    """Runs the command in this process, which was forked for it."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 10))
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    sys.argv = ["ziggurat", *arguments]
    status = 70
    try:
        from ziggurat.cli.main import main

        main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - what Python would print
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclass(slots=True)
class Seen:
    """What commands did that they must not.

    Attributes:
        changed: paths outside the folder that were written, created or deleted.
        read: paths outside the folder whose content was read.
        pipes: pipes that were read from or written to.
    """

    changed: list[str]
    read: list[str]
    pipes: list[str]


@contextlib.contextmanager
def watched(outside: Path, inside: Path) -> Generator[Seen]:
    """Watches a folder that is outside, and every pipe in both; the result is complete at the end of the context.

    Each pipe has something in it, so that whoever reads it does not wait but is found out.
    """
    seen = Seen([], [], [])
    before, accesses = _tree(outside), _Accesses(outside)
    pipes = {path: _filled(path) for folder in (outside, inside) for path in _pipes(folder)}
    try:
        yield seen
        seen.read += accesses.taken()
        after = _tree(outside)
        seen.changed += sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        seen.pipes += [str(path) for path, descriptor in pipes.items() if _waiting(descriptor) != PIPE_BYTES]
    finally:
        accesses.close()
        for descriptor in pipes.values():
            os.close(descriptor)


def _tree(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Returns path -> mode, time of the last change, and content or target; links are not followed."""
    found: dict[str, tuple[int, int, str]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = ""
        if stat.S_ISLNK(status.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        modified = 0 if stat.S_ISFIFO(status.st_mode) else status.st_mtime_ns  # filling a pipe changes its time
        found[str(path.relative_to(folder))] = (status.st_mode, modified, content)
    return found


def _pipes(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if stat.S_ISFIFO(path.lstat().st_mode)]


def _filled(pipe: Path) -> int:
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(descriptor, b"{" * PIPE_BYTES)
    return descriptor


def _waiting(pipe: int) -> int:
    """Returns the number of bytes in a pipe."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


class _Accesses:
    """Notes which files below a folder are read, by Linux's inotify."""

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        self._folders: dict[int, Path] = {}
        for each in (folder, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())):
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(each), _IN_ACCESS)
            assert number >= 0, os.strerror(ctypes.get_errno())
            self._folders[number] = each

    def taken(self) -> list[str]:
        """Returns the files that were read since this object was made; listing a folder does not count."""
        found: dict[str, None] = {}
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._descriptor, 2**16):
                place = 0
                while place < len(data):
                    number, mask, _, size = _EVENT.unpack_from(data, place)
                    name = data[place + _EVENT.size : place + _EVENT.size + size].rstrip(b"\0")
                    place += _EVENT.size + size
                    if not mask & _IN_ISDIR:
                        found[str(self._folders[number] / os.fsdecode(name))] = None
        return list(found)

    def close(self) -> None:
        os.close(self._descriptor)
