"""Runs ``ziggurat`` commands in processes of their own, for tests.

A command is a fork of a process that has imported the engine before, which takes most of a command's time. It has its
own arguments, folder, environment, output and signals as any command. Tests of what starting Python involves (imports,
exit, other launchers) start it themselves.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

PRELOADED = ["torchrec", "pandas", "ziggurat.training.loop", "ziggurat.training.api", "ziggurat.cli.main"]
"""What the process that forks has imported; tests that fork by themselves name the same, as there is one process."""

SECONDS = 240


class Command:
    """A running ``ziggurat`` command, with the methods of :class:`subprocess.Popen` that tests use.

    Args:
        arguments: what follows ``ziggurat`` on the command line.
        folder: the working folder.
        environment: all its environment variables; default: this process's.
        module: the Python module that is executed.
        errors: a file that gets its stderr, which :meth:`said` then does not have.
    """

    def __init__(
        self,
        *arguments: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        module: str = "ziggurat",
        errors: Path | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.arguments = arguments
        self._output: list[Any] = [_temporary(), _temporary()]
        names = [self._output[0].name, self._output[1].name if errors is None else str(errors)]
        given = dict(os.environ if environment is None else environment)
        self._process = context.Process(target=_run, args=(module, arguments, folder or Path.cwd(), given, names))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            self._process.kill()

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = SECONDS) -> int:
        """Waits for its end, and returns its exit status."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout)
        return self.returncode

    def said(self) -> tuple[str, str]:
        """Returns what it has written to stdout and to stderr so far."""
        return self._output[0].read(), self._output[1].read()

    def communicate(self, timeout: float = SECONDS) -> tuple[str, str]:
        """Waits for its end; if that does not come, ends it with its children. Returns all of stdout and of stderr."""
        self._process.join(timeout)
        if self.poll() is None:
            for child in psutil.Process(self.pid).children(recursive=True):
                child.kill()
            self._process.kill()
            self._process.join()
            raise AssertionError(f"still running after {timeout} s: {self.said()}")
        for file in self._output:
            file.seek(0)
        said = self.said()
        for file in self._output:
            file.close()
        return said


def _temporary() -> Any:
    return tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace")


def ziggurat(
    *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Runs a command to its end. Returns exit status, stdout and stderr."""
    command = Command(*arguments, folder=folder, environment=environment)
    out, err = command.communicate()
    assert command.returncode is not None
    return command.returncode, out, err


def _run(module: str, arguments: tuple[str, ...], folder: Path, environment: dict[str, str], output: list[str]) -> None:
    for descriptor, path in zip((1, 2), output, strict=True):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, "wb", closefd=False, buffering=0), "utf-8", write_through=True)  # noqa: SIM115
        for number in (1, 2)
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):  # torch has been imported, and would read it no more
        import torch

        torch.set_num_threads(int(threads))
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # so that it is executed as if nothing had imported it
    try:
        runpy.run_module(module, run_name="__main__")
    finally:
        atexit._run_exitfuncs()
