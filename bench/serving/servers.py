"""Servers in processes of their own, on cores of their own."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from bench.contestant import ROOT

START_S = 120.0
_STOP_S = 40.0


def cores() -> tuple[int, int]:
    """Returns the core of the server and that of the client, which are the same where there is only one."""
    own = sorted(os.sched_getaffinity(0))
    return own[0], own[-1]


def free_port() -> int:
    """Returns a port of this machine that nothing listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@contextlib.contextmanager
def serving(
    command: Sequence[str], port: int, core: int, answers: Callable[[http.client.HTTPConnection], bool]
) -> Generator[subprocess.Popen[bytes]]:
    """Runs a server, and waits until it answers.

    Args:
        command: starts it.
        port: where it listens.
        core: the core that it runs on, with all its processes.
        answers: whether it answers over a connection.

    Raises:
        RuntimeError: it ended, or did not answer in time; with what it wrote.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        _wait(process, port, answers, command)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _wait(
    process: subprocess.Popen[bytes],
    port: int,
    answers: Callable[[http.client.HTTPConnection], bool],
    command: Sequence[str],
) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            _, errors = process.communicate()
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors.decode()[-2000:]}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            if answers(connection):
                return
        time.sleep(0.1)
    raise RuntimeError(f"{' '.join(command)} did not answer within {START_S:g} s")


def posts(path: str, body: bytes) -> Callable[[http.client.HTTPConnection], bool]:
    """Returns whether a request is answered with 200."""

    def answers(connection: http.client.HTTPConnection) -> bool:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200

    return answers


def ziggurat_command(export: Path, port: int, *more: str) -> list[str]:
    """Returns the command that serves an export."""
    serve = ["serve", str(export), "--port", str(port), "--no-log", *more]
    return [sys.executable, "-m", "ziggurat", *serve]
