"""Starts Python modules as forks of a process that has imported the engine, for the smoke run.

Quick runs start some fifty processes that train for less than a second. Importing the engine takes each of them several
seconds. So :func:`start_modules_by_forks` replaces :class:`subprocess.Popen` in the process of a quick run: a command
of the form ``python -m MODULE ...`` then becomes a fork. It has its own arguments, folder, environment, descriptors,
process id and signals, as any command. All other commands are started as usual. The server of :mod:`multiprocessing`
that forks processes is such a fork too.

The forks are made by processes of their own, which are forked before anything else runs: they have neither threads nor
locks that are held.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any, NoReturn

_UNDERSTOOD = {"stdin", "stdout", "stderr", "cwd", "env", "text", "encoding", "errors", "bufsize", "start_new_session"}
"""The options of :class:`subprocess.Popen` that a fork supports."""
_MOST_BYTES = 128 * 1024
_NUMBER = struct.Struct("i")
_IN_GROUP = 'exec "$@"'
"""The end of a script of sh that prepares the process and then becomes the command in its arguments."""


def start_modules_by_forks() -> None:
    """Makes :class:`subprocess.Popen` and the context ``forkserver`` start processes as forks from now on.

    To be called in a process without other threads that has imported the engine.
    """
    gc.freeze()  # a collection in a fork would copy the pages of all objects
    _fork_the_server()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _serve(theirs)
    theirs.close()

    class ForkedModule(subprocess.Popen[Any]):
        """A process; if it runs a Python module, a fork."""

        def __init__(self, args: Any, **options: Any) -> None:
            self._ended: int | None = None
            """The descriptor from which the exit status of a fork is read."""
            self._options = options
            super().__init__(args, **options)

        def _execute_child(self, args: Any, *rest: Any) -> None:
            """Starts the process; overrides the method of Python 3.11, whose arguments are places."""
            module = _module_of(args)
            if module is None or not self._options.keys() <= _UNDERSTOOD:
                super()._execute_child(args, *rest)  # pyright: ignore[reportAttributeAccessIssue]
                return
            stdin, to_stdin, from_stdout, stdout, from_stderr, stderr = rest[9:15]  # -1: that of this process
            descriptors = [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))]
            self._ended, told = os.pipe()
            environment = self._options.get("env")
            request = {
                "script": module[0],
                "command": module[1],
                "cwd": str(self._options.get("cwd") or Path.cwd()),
                "environment": dict(os.environ if environment is None else environment),
                "session": bool(self._options.get("start_new_session")),
                "cores": sorted(os.sched_getaffinity(0)),
            }
            socket.send_fds(ours, [json.dumps(request).encode()], [*descriptors, told])
            pipes = ((stdin, to_stdin), (stdout, from_stdout), (stderr, from_stderr))
            for end in {told, *(end for end, other in pipes if other != -1)}:
                os.close(end)
            self._closed_child_pipe_fds = self._child_created = True
            (self.pid,) = _NUMBER.unpack(os.read(self._ended, _NUMBER.size))

        def _internal_poll(self, *places: Any, **names: Any) -> int | None:
            if self._ended is None:
                return super()._internal_poll(*places, **names)  # pyright: ignore[reportAttributeAccessIssue]
            return self._status(0)

        def _wait(self, timeout: float | None) -> int:
            if self._ended is None:
                return super()._wait(timeout)  # pyright: ignore[reportAttributeAccessIssue]
            status = self._status(timeout)
            if status is None:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            return status

        def _status(self, timeout: float | None) -> int | None:
            """Returns the exit status when the process has ended, or None after ``timeout`` seconds."""
            assert self._ended is not None
            if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
                with self._waitpid_lock:  # pyright: ignore[reportAttributeAccessIssue]
                    if self.returncode is None:
                        told = os.read(self._ended, _NUMBER.size)
                        self.returncode = _NUMBER.unpack(told)[0] if told else -signal.SIGKILL
            return self.returncode

    subprocess.Popen = ForkedModule


def _fork_the_server() -> None:
    """Starts the server of :mod:`multiprocessing` that forks processes, itself as a fork."""

    def forked(path: Any, args: Sequence[Any], passed: Any) -> int:
        del path
        pid = os.fork()
        if pid == 0:
            try:
                _close_other_ends(passed)
                exec(args[-1])  # the code of the server, which Python would run in a new process
            except SystemExit:  # so the server ends; the frames below are those of the process it was forked from
                os._exit(0)
            except Exception:  # noqa: BLE001 (whatever it is, this process ends here)
                traceback.print_exc()
            os._exit(1)
        return pid

    usual = util.spawnv_passfds
    util.spawnv_passfds = forked
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = usual


def _forget_the_server() -> None:
    """Has this fork start a server of its own if it needs one: that of its parent is no child of it."""
    server: Any = forkserver._forkserver  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None


def _close_other_ends(kept: Sequence[int]) -> None:
    """Closes the other ends of the pipes in ``kept``, by which a process would otherwise keep itself alive."""
    opened = {int(each.name): each for each in Path("/proc/self/fd").iterdir()}
    pipes = {opened[each].readlink() for each in kept}
    for number in opened.keys() - {*kept}:
        with contextlib.suppress(OSError):  # the one of the listing itself is closed already
            if opened[number].readlink() in pipes:
                os.close(number)


def _module_of(args: Any) -> tuple[str, list[str]] | None:
    """Returns the script of sh to run before, and the module with its arguments; None if this starts no module."""
    if not isinstance(args, (list, tuple)):
        return None
    command, script = [str(each) for each in args], ""
    if command[:2] == ["sh", "-c"] and command[2].endswith(_IN_GROUP):
        command, script = command[4:], command[2].removesuffix(_IN_GROUP)
    return (script, command[2:]) if command[:2] == [sys.executable, "-m"] and len(command) > 2 else None


def _serve(requests: socket.socket) -> NoReturn:
    """Forks at each request, tells the process's id and later its exit status, until nobody can ask any more."""
    read, write = os.pipe()
    for end in (read, write):
        os.set_blocking(end, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    started: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, read], [], [])
        if read in ready:
            os.read(read, 4096)
            while started and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                told = started.pop(ended[0])
                with contextlib.suppress(BrokenPipeError):
                    os.write(told, _NUMBER.pack(os.waitstatus_to_exitcode(ended[1])))
                os.close(told)
        if requests not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 4)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for end in (read, write, requests.detach(), *started.values(), descriptors.pop()):
                os.close(end)
            _become(json.loads(message), descriptors)
        *given, told = descriptors
        for end in given:
            os.close(end)
        started[pid] = told
        os.write(told, _NUMBER.pack(pid))


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Runs the module, and ends this process as Python would."""
    status = 1
    try:
        _forget_the_server()
        if request["session"]:
            os.setsid()
        os.sched_setaffinity(0, request["cores"])
        for number, end in enumerate(descriptors):
            os.dup2(end, number)
            os.close(end)
        for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            buffering = 1 if mode == "w" else -1
            setattr(sys, name, open(number, mode, buffering, encoding="utf-8", closefd=False))  # noqa: SIM115
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        if request["script"]:
            script = request["script"].replace("$$", str(os.getpid()))
            subprocess.run(["sh", "-c", f"{script}:"], check=True)
        _run(request["command"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - printed, as Python does
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] - waits for threads, as Python does
            atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run(command: Sequence[str]) -> None:
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))
    module, *arguments = command
    sys.argv = [module, *arguments]
    sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]  # noqa: PTH109
    sys.modules.pop(module, None)  # so that it is executed as if nothing had imported it
    runpy.run_module(module, run_name="__main__", alter_sys=True)
