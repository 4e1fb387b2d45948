"""Starts the ranks of one host, and says of which of them what went wrong.

torchrun does so across hosts. On one, this asks for no port, lets ranks take their time to save after Ctrl-C, and
prints the cause of a failure once instead of a traceback for each rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ziggurat.core.errors import EnvironmentMismatch, LostRank, ZigguratError
from ziggurat.parallel.environment import is_one_of_several

STORE_VARIABLE = "ZIGGURAT_STORE"
"""Names the file at which ranks of one host meet."""

ERROR_VARIABLE = "ZIGGURAT_ERROR_FILE"
"""Names the file into which a rank writes why it failed."""

LAUNCHER_VARIABLE = "ZIGGURAT_LAUNCHER"
"""Names the descriptor of a pipe whose other end the launcher holds for as long as it lives."""

GRACE_S = 5.0
"""Seconds that ranks get to end by themselves once one has failed, which others may wait for, or once they were told to
stop twice."""

_STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank ended.

    Attributes:
        rank: which.
        problem, hint: what it said, or what its exit status says.
        caused: whether that is the cause, not what came of another rank's failure.
        final: whether starting again would fail again.
    """

    rank: int
    problem: str
    hint: str
    caused: bool
    final: bool


class RankFailed(ZigguratError):
    """A rank failed; the message is its own."""


def launch(command: Sequence[str], ranks: int, restarts: int = 0, note: Any = None) -> int:
    """Run ``command`` once a rank, until all have ended.

    Args:
        command: what each rank executes.
        ranks: how many.
        restarts: how often all of them are started again after a crash of one, to go on from the last checkpoint; an
            error that would come again is not tried again.
        note: called with a line for the user when that happens.

    Returns:
        The first rank's exit status.

    Raises:
        RankFailed: the first cause, naming the rank.
    """
    left = restarts
    while True:
        with tempfile.TemporaryDirectory(prefix="ziggurat-") as folder:
            status, failure = _run(command, ranks, Path(folder))
        if failure is None:
            return status
        if failure.final or left == 0:
            who = f"rank {failure.rank} of {ranks}: "
            raise RankFailed(who + failure.problem.removeprefix(who), failure.hint)
        left -= 1
        if note is not None:
            note(f"rank {failure.rank}: {failure.problem}; starting all ranks again ({left} restarts left)")


def follow_launcher() -> None:
    """From a rank: stop as after SIGTERM, saving what is done, should the launcher end without a word."""
    pipe = os.environ.pop(LAUNCHER_VARIABLE, None)
    if pipe is None:
        return

    def wait() -> None:
        os.read(int(pipe), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="launcher", daemon=True).start()


def check_ranks(wanted: int | None) -> None:
    """That ``--nproc`` does not contradict what has started this process, if anything has.

    Raises:
        EnvironmentMismatch: it does.
    """
    started = os.environ.get("LOCAL_WORLD_SIZE")
    if wanted is not None and is_one_of_several() and started is not None and int(started) != wanted:
        raise EnvironmentMismatch(
            f"--nproc {wanted}, but {started} ranks were started on this host",
            "leave --nproc out where torchrun starts the ranks",
        )


def leads() -> bool:
    """Whether this process is alone, or the first rank: the one that speaks."""
    return not is_one_of_several() or os.environ.get("RANK") == "0"


def report_failure(error: BaseException) -> bool:
    """From a rank: leave the error for the launcher to print. False where no launcher of ours waits for it."""
    path = os.environ.get(ERROR_VARIABLE)
    if path is None:
        return False
    known = isinstance(error, ZigguratError)
    values = {
        "problem": error.problem if known else f"{type(error).__name__}: {error}",
        "hint": error.hint if known else "",
        "caused": not isinstance(error, LostRank),
        "final": known and not isinstance(error, LostRank),
    }
    Path(path).write_text(json.dumps(values), encoding="utf-8")
    return True


def _run(command: Sequence[str], ranks: int, folder: Path) -> tuple[int, Failure | None]:
    processes: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def relay(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, relay) for number in _STOPS}
    theirs, ours = os.pipe()
    try:
        for rank in range(ranks):
            environment = {**os.environ, **_environment(rank, ranks, folder), LAUNCHER_VARIABLE: str(theirs)}
            # In a session of its own a rank gets Ctrl-C from us alone, once.
            processes.append(
                subprocess.Popen(list(command), env=environment, start_new_session=True, pass_fds=[theirs])
            )
        _wait(processes, asked)
    finally:
        stuck = [rank for rank, process in enumerate(processes) if process.poll() is None]
        for rank in stuck:
            processes[rank].kill()
            processes[rank].wait()
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(theirs)
        os.close(ours)
    codes = [process.returncode for process in processes]
    failure = _cause(
        {rank: code for rank, code in enumerate(codes) if not _stopped(code, asked) and rank not in stuck}, folder
    )
    if len(asked) > 1 or failure is None or (asked and not failure.caused):
        return (128 + asked[0] if asked and any(codes) else max(codes)), None
    return codes[0], failure


def _stopped(code: int, asked: Sequence[int]) -> bool:
    """Whether a rank that ended so had come to its end, or was asked to stop: by us, or by somebody else."""
    return code in {0, *(128 + number for number in _STOPS), *(-number for number in asked)}


def _wait(processes: Sequence[subprocess.Popen[bytes]], asked: Sequence[int]) -> None:
    """Until all have ended, or some time after one has failed."""
    deadline = None
    while None in (codes := [process.poll() for process in processes]):
        failed = any(code is not None and not _stopped(code, asked) for code in codes)
        if (failed or len(asked) > 1) and deadline is None:
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _environment(rank: int, ranks: int, folder: Path) -> Mapping[str, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // ranks))),
        STORE_VARIABLE: str(folder / "store"),
        ERROR_VARIABLE: str(folder / f"rank-{rank}.json"),
    }


def _cause(codes: Mapping[int, int], folder: Path) -> Failure | None:
    """The failure that the others come from: one that a rank owned up to, or a signal that it did not survive."""
    failures = [_failure(rank, code, folder) for rank, code in codes.items()]
    return next((each for each in failures if each.caused), failures[0] if failures else None)


def _failure(rank: int, code: int, folder: Path) -> Failure:
    path = folder / f"rank-{rank}.json"
    with contextlib.suppress(OSError, ValueError):
        return Failure(rank, **json.loads(path.read_text(encoding="utf-8")))
    if code >= 0:
        return Failure(rank, f"ended with exit status {code}", "its output above says why", caused=True, final=True)
    name = signal.Signals(-code).name
    hint = "look at the kernel's log; a smaller batch, more ranks or fewer of them on this host need less memory"
    if -code == signal.SIGKILL:
        return Failure(rank, f"was killed ({name}): most often the machine ran out of memory", hint, True, False)
    return Failure(rank, f"was ended by {name}", "run the command again to go on", True, False)


def command_of(arguments: Sequence[str]) -> list[str]:
    """This very ``ziggurat`` with other arguments."""
    return [sys.executable, "-m", "ziggurat", *arguments]
