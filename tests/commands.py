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
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

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
    """

    def __init__(
        self,
        *arguments: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._output = [tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") for _ in range(2)]  # noqa: SIM115
        names = [each.name for each in self._output]
        given = dict(os.environ if environment is None else environment)
        self._process = context.Process(target=_run, args=(arguments, folder or Path.cwd(), given, names))
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


def ziggurat(
    *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Runs a command to its end. Returns exit status, stdout and stderr."""
    command = Command(*arguments, folder=folder, environment=environment)
    out, err = command.communicate()
    assert command.returncode is not None
    return command.returncode, out, err


def _run(arguments: tuple[str, ...], folder: Path, environment: dict[str, str], output: list[str]) -> None:
    for descriptor, path in zip((1, 2), output, strict=True):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, "wb", closefd=False, buffering=0), "utf-8", write_through=True)  # noqa: SIM115
        for number in (1, 2)
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ziggurat", *arguments]
    try:
        runpy.run_module("ziggurat", run_name="__main__")
    finally:
        atexit._run_exitfuncs()
