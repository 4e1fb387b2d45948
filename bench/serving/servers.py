"""Servers in processes of their own, on cores of their own."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench.contestant import ROOT
from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.model.compiled_code import CompiledCode

START_S = 120.0
_STOP_S = 40.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs.

    Attributes:
        process: its process.
        log: what it wrote to standard error.
    """

    process: subprocess.Popen[bytes]
    log: Path

    def errors(self) -> str:
        """Returns what it wrote to standard error."""
        return self.log.read_text(errors="replace")


def cores() -> tuple[int, int]:
    """Returns the core of the server and that of the client, which are the same where there is only one."""
    own = sorted(os.sched_getaffinity(0))
    return own[0], own[-1]


@contextlib.contextmanager
def on_core(core: int) -> Generator[None]:
    """Runs this thread, and all processes that it starts meanwhile, on a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """Returns a port of this machine that nothing listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@contextlib.contextmanager
def serving(
    command: Sequence[str], port: int, core: int, answers: Callable[[http.client.HTTPConnection], bool]
) -> Generator[Server]:
    """Runs a server, and waits until it answers.

    Args:
        command: starts it.
        port: where it listens.
        core: the core that it runs on, with all its processes.
        answers: whether it answers over a connection.

    Raises:
        RuntimeError: it ended, or did not answer in time; with what it wrote.
    """
    log = tempfile.NamedTemporaryFile(prefix="serving-")  # noqa: SIM115 - closed below
    with on_core(core):
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        _wait(process, Path(log.name), port, answers, command)
        yield Server(process, Path(log.name))
    finally:
        log.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(
    process: subprocess.Popen[bytes],
    log: Path,
    port: int,
    answers: Callable[[http.client.HTTPConnection], bool],
    command: Sequence[str],
) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            errors = log.read_text(errors="replace")
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors[-2000:]}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            if answers(connection):
                return
        time.sleep(0.1)
    raise RuntimeError(f"{' '.join(command)} did not answer within {START_S:g} s")


def posts(
    path: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
) -> Callable[[http.client.HTTPConnection], bool]:
    """Returns whether a request is answered with 200."""

    def answers(connection: http.client.HTTPConnection) -> bool:
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        return connection.getresponse().status == 200

    return answers


def ziggurat_command(export: Path, port: int, *more: str, exact: bool = False) -> list[str]:
    """Returns the command that serves an export.

    Args:
        export: the export.
        port: where.
        more: further options.
        exact: whether answers have the bits of ``predict``; else compiled code is used if :func:`compile_dense` has
            made it, here or in an earlier benchmark of the same model, and the last bits may differ.
    """
    compiled = "--no-compile" if exact else compile_option(export)
    serve = ["serve", str(export), "--port", str(port), "--no-log", compiled, *more]
    return [sys.executable, "-m", "ziggurat", *serve]


def compile_dense(export: Path) -> str:
    """Compiles the dense part of an export for this machine, as a server does beside serving; returns a note on it."""
    verdict = _code(export).compile()
    times = ", ".join(
        f"{after:.0f} of {before:.0f} µs" for before, after in zip(verdict.graph_us, verdict.code_us, strict=True)
    )
    return f"dense part: {'compiled' if verdict.is_used else 'graph'}, {verdict.reason} ({times} for 1 and 100 rows)"


def compile_option(export: Path) -> str:
    """Returns the option of ``ziggurat serve``: a benchmark's server uses code that is there, and compiles none."""
    return "--no-compile" if _code(export).verdict is None else "--compile"


def _code(export: Path) -> CompiledCode:
    return CompiledCode(export, Manifest.read(export), 1)
