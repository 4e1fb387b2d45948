"""Compiles and loads C sources such as ``native.c``, with this machine's C compiler, at their first use.

A library is stored in the user's cache directory under a digest of its source and of the compiler command, so that
checkouts, wheels and ranks share it. On a machine without a compiler or without io_uring, threads are used instead and
a message to the user says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ziggurat.core.files import user_cache
from ziggurat.core.temporary import temporary_folder

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-O2", "-shared", "-fPIC", "-std=c11", "-D_GNU_SOURCE")
TIMEOUT_S = 60.0


class NativeUnavailable(Exception):
    """The native library cannot be used; the message gives the reason."""


@cache
def library() -> ctypes.CDLL:
    """Returns the loaded native library, compiling it if necessary.

    Raises:
        NativeUnavailable: the library cannot be compiled or loaded. The next call tries again.
    """
    loaded = compiled(SOURCE)
    int64, pointer = ctypes.c_int64, ctypes.c_void_p
    loaded.zr_open.restype, loaded.zr_open.argtypes = pointer, (ctypes.c_uint, ctypes.POINTER(ctypes.c_int))
    loaded.zr_close.restype, loaded.zr_close.argtypes = None, (pointer,)
    loaded.zr_transfer.restype = ctypes.c_int
    loaded.zr_transfer.argtypes = (pointer, ctypes.c_int, int64, pointer, pointer, pointer, pointer, pointer)
    loaded.zr_read_rows.restype = ctypes.c_int
    loaded.zr_read_rows.argtypes = (pointer, int64, pointer, int64, pointer, pointer)
    return loaded


def compiled(source: Path, flags: Sequence[str] = FLAGS) -> ctypes.CDLL:
    """Returns the loaded library of a C source, compiling it if necessary.

    Raises:
        NativeUnavailable: it cannot be compiled or loaded.
    """
    try:
        return ctypes.CDLL(str(_compile(source, flags)))
    except OSError:  # the file is damaged, or was compiled on another system that shares this cache
        try:
            return ctypes.CDLL(str(_compile(source, flags, force=True)))
        except OSError as error:
            raise NativeUnavailable(f"the compiled {source.name} cannot be loaded: {error}") from error


def _compile(path: Path, flags: Sequence[str], *, force: bool = False) -> Path:
    """Returns the path of the compiled library; compiles it if it does not exist or if ``force`` is set."""
    compiler = _compiler()
    source = path.read_bytes()
    build = " ".join((*compiler, *flags, platform.system(), platform.machine()))
    cache_folder = user_cache("native")
    target = cache_folder / f"{hashlib.sha256(source + build.encode()).hexdigest()[:24]}.so"
    if target.is_file() and not force:
        return target
    with contextlib.ExitStack() as stack:
        try:
            cache_folder.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(temporary_folder(".compiling-", cache_folder)).path
        except OSError as error:
            raise NativeUnavailable(f"{cache_folder}: cannot be written: {error.strerror}") from error
        built = folder / target.name
        command = [*compiler, *flags, "-o", str(built), str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NativeUnavailable(f"{shlex.join(compiler)} cannot be run: {error}") from error
        if done.returncode:
            message = (done.stderr.strip().splitlines() or ["no message"])[0]
            raise NativeUnavailable(f"{shlex.join(compiler)} does not compile {path.name}: {message}")
        built.replace(target)  # atomic: safe if several processes compile it at the same time
    return target


def _compiler() -> list[str]:
    """Returns the compiler in ``CC``, or else the first installed one of Python's own and cc, gcc and clang."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        return named
    own = shlex.split(sysconfig.get_config_var("CC") or "")[:1]
    for name in (*own, "cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise NativeUnavailable("no C compiler is installed (cc, gcc or clang)")
