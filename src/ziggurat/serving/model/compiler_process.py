"""A process that compiles the dense part of an export while a server answers by its graph."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.model.compiled_code import CompiledCode, Verdict
from ziggurat.serving.server_process import start_process

_NICENESS = 10


@contextlib.contextmanager
def compiling(export: Path, threads: int, told: Callable[[Verdict], None]) -> Generator[None]:
    """Compiles while the body runs, unless this machine has a verdict of the same graph; ends with the body.

    Args:
        export: the folder of the export.
        threads: threads of the model.
        told: called with the verdict, in a thread, once it is there.

    Raises:
        DataError: the folder holds no export, or a damaged one.
    """
    found = CompiledCode(export, Manifest.read(export), threads).verdict
    if found is not None and found.is_settled:
        yield
        return
    process, pipe = start_process("compiler", _compile, export, threads)

    def tell() -> None:
        with contextlib.suppress(EOFError, OSError):
            told(pipe.recv())

    threading.Thread(target=tell, name="compiler", daemon=True).start()
    try:
        yield
    finally:
        if process.is_alive():
            process.terminate()
        process.join()


def _compile(export: Path, threads: int, pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    os.nice(_NICENESS)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    pipe.send(CompiledCode(export, Manifest.read(export), threads).compile())
