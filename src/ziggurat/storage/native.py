"""The compiled part of this room: ``native.c``, made by this machine's C compiler when it is first asked for.

It lies in the user's cache, by the digest of its source, so that a checkout, a wheel and several ranks share one. A
machine without a compiler, or without io_uring, does without, and is told so.
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
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-O2", "-shared", "-fPIC", "-std=c11", "-D_GNU_SOURCE")
TIMEOUT_S = 60.0


class NativeUnavailable(Exception):
    """Why there is no compiled part."""


@cache
def library() -> ctypes.CDLL:
    """The compiled part.

    Raises:
        NativeUnavailable: says why; asked for again, it tries again.
    """
    try:
        loaded = ctypes.CDLL(str(_built()))
    except OSError:  # damaged, or of another system that shares this cache
        try:
            loaded = ctypes.CDLL(str(_built(anew=True)))
        except OSError as error:
            raise NativeUnavailable(f"native.c, compiled, cannot be loaded: {error}") from error
    number, place = ctypes.c_int64, ctypes.c_void_p
    loaded.zr_open.restype, loaded.zr_open.argtypes = place, (ctypes.c_uint, ctypes.POINTER(ctypes.c_int))
    loaded.zr_close.restype, loaded.zr_close.argtypes = None, (place,)
    loaded.zr_transfer.restype = ctypes.c_int
    loaded.zr_transfer.argtypes = (place, ctypes.c_int, number, place, place, place, place, place)
    return loaded


def _built(*, anew: bool = False) -> Path:
    """The compiled file, made unless it is there, or in any case."""
    compiler = _compiler()
    source = SOURCE.read_bytes()
    about = " ".join((*compiler, *FLAGS, platform.system(), platform.machine()))
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ziggurat" / "native"
    target = cached / f"{hashlib.sha256(source + about.encode()).hexdigest()[:24]}.so"
    if target.is_file() and not anew:
        return target
    with contextlib.ExitStack() as stack:
        try:
            cached.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".making-", dir=cached))
        except OSError as error:
            raise NativeUnavailable(f"{cached}: cannot be written: {error.strerror}") from error
        made = Path(folder) / target.name
        command = [*compiler, *FLAGS, "-o", str(made), str(SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NativeUnavailable(f"{shlex.join(compiler)} cannot be run: {error}") from error
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing said"])[0]
            raise NativeUnavailable(f"{shlex.join(compiler)} does not compile native.c: {said}")
        made.replace(target)  # whole or not there, whoever else makes it
    return target


def _compiler() -> list[str]:
    """The one that ``CC`` names, else the first that is there of Python's own and those of common names."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        return named
    own = shlex.split(sysconfig.get_config_var("CC") or "")[:1]
    for name in (*own, "cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise NativeUnavailable("no C compiler is installed (cc, gcc or clang)")
