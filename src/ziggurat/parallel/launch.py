"""Starts the ranks of one host, and reports which of them failed and why.

torchrun does so across hosts. On a single host, this launcher needs no port, gives ranks time to save after Ctrl-C, and
prints the cause of a failure once instead of a traceback for each rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ziggurat.core.errors import EnvironmentMismatch, LostRank, ZigguratError
from ziggurat.core.outside.failures import PartFailed
from ziggurat.core.outside.python_process import python_command
from ziggurat.core.sealed import declared
from ziggurat.core.temporary import TemporaryFolder, temporary_folder
from ziggurat.core.untrusted import Damage, read_json_object
from ziggurat.parallel.environment import has_other_ranks
from ziggurat.parallel.forked_rank import ForkedRank, can_fork, fork_rank, imported_engine

STORE_VARIABLE = "ZIGGURAT_STORE"
"""The environment variable with the path of the file store through which the ranks of one host find each other."""

ERROR_VARIABLE = "ZIGGURAT_ERROR_FILE"
"""The environment variable with the path of the file into which a rank writes why it failed."""

LAUNCHER_VARIABLE = "ZIGGURAT_LAUNCHER"
"""The environment variable with the descriptor of a pipe whose other end stays open as long as the launcher lives."""

GRACE_S = 5.0
"""Seconds that ranks get to end by themselves after one has failed (others may wait for it), or after a second signal
to stop."""

_STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank ended.

    Attributes:
        rank: the rank.
        problem: the rank's own error, or a description of its exit status.
        hint: what the user can do.
        caused: whether this is the cause, not a consequence of another rank's failure.
        final: whether a restart would fail again.
    """

    rank: int
    problem: str
    hint: str
    caused: bool
    final: bool


@dataclass(frozen=True, slots=True)
class _Reported:
    """What a rank writes of its failure; see :class:`Failure`."""

    problem: str
    hint: str
    caused: bool
    final: bool


class RankFailed(ZigguratError):
    """A rank failed; the message is that rank's own."""


def launch(command: Sequence[str], ranks: int, restarts: int = 0, note: Any = None) -> int | None:
    """Runs several ranks until all have ended.

    Where possible the ranks are forks of this process, in which this function returns None, see
    :mod:`ziggurat.parallel.forked_rank`. Otherwise each rank executes ``command``.

    Args:
        command: the command that does in a new process what the caller does after None.
        ranks: the number of ranks.
        restarts: how often all ranks are restarted from the last checkpoint after one has crashed; there is no restart
            after an error that would occur again.
        note: called with a line for the user at each restart.

    Returns:
        The first rank's exit status; None in a rank, where the environment describes it as in any launched process.

    Raises:
        RankFailed: a rank failed; the message names it and the cause.
    """
    if not can_fork():
        return _launch(command, ranks, restarts, note, forks=False)
    with imported_engine(_threads(ranks)):
        return _launch(command, ranks, restarts, note, forks=True)


def _launch(command: Sequence[str], ranks: int, restarts: int, note: Any, *, forks: bool) -> int | None:
    restarts_left = restarts
    while True:
        with temporary_folder("ziggurat-ranks-") as folder:
            ended = _run(command, ranks, folder, forks)
        if ended is None:
            return None
        status, failure = ended
        if failure is None:
            return status
        if failure.final or restarts_left == 0:
            prefix = f"rank {failure.rank} of {ranks}: "
            raise RankFailed(prefix + failure.problem.removeprefix(prefix), failure.hint)
        restarts_left -= 1
        if note is not None:
            note(f"rank {failure.rank}: {failure.problem}; starting all ranks again ({restarts_left} restarts left)")


def stop_with_launcher() -> None:
    """Called in a rank: stops it as by SIGTERM, so that it saves, if the launcher dies."""
    pipe = os.environ.pop(LAUNCHER_VARIABLE, None)
    if pipe is None:
        return

    def wait() -> None:
        os.read(int(pipe), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="launcher", daemon=True).start()


def check_ranks(wanted: int | None) -> None:
    """Validates that ``--nproc`` agrees with the launcher that started this process, if any.

    Raises:
        EnvironmentMismatch: the launcher started another number of ranks on this host.
    """
    started = os.environ.get("LOCAL_WORLD_SIZE")
    if wanted is not None and has_other_ranks() and started is not None and int(started) != wanted:
        raise EnvironmentMismatch(
            f"--nproc {wanted}, but {started} ranks were started on this host",
            "leave --nproc out if torchrun starts the ranks",
        )


def leads() -> bool:
    """Returns whether this process is the only or the first rank, the one that prints."""
    return not has_other_ranks() or os.environ.get("RANK") == "0"


def report_failure(error: BaseException) -> bool:
    """Called in a rank: writes the error for our launcher to print. Returns False if no such launcher started it."""
    path = os.environ.get(ERROR_VARIABLE)
    if path is None:
        return False
    is_ours = isinstance(error, ZigguratError)
    values = {
        "problem": error.problem if is_ours else f"{type(error).__name__}: {error}",
        "hint": error.hint if is_ours else "",
        "caused": not isinstance(error, LostRank),
        "final": is_ours and not isinstance(error, LostRank | PartFailed),
    }
    Path(path).write_text(json.dumps(values), encoding="utf-8")
    return True


_Rank = subprocess.Popen[bytes] | ForkedRank


def _run(
    command: Sequence[str], ranks: int, temporary: TemporaryFolder, forks: bool
) -> tuple[int, Failure | None] | None:
    """Runs the ranks once. Returns exit status and failure; None in a rank that is a fork."""
    processes: list[_Rank] = []
    signals: list[int] = []
    unfinished: list[int] = []
    folder, launcher = temporary.path, os.getpid()

    def relay(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, relay) for number in _STOPS}
    read_end, write_end = os.pipe()
    try:
        for rank in range(ranks):
            environment = {**_environment(rank, ranks, folder), LAUNCHER_VARIABLE: str(read_end)}
            # In its own session a rank receives Ctrl-C only once, relayed by this process. With the folder's descriptor
            # it keeps the folder if this process is killed.
            if forks:
                process = fork_rank(environment, before, close=[write_end])
                if process is None:
                    return None
            else:
                kept = [read_end, temporary.descriptor]
                everything = {**os.environ, **environment}
                process = subprocess.Popen(list(command), env=everything, start_new_session=True, pass_fds=kept)
            processes.append(process)
        _wait(processes, signals)
    finally:
        if os.getpid() == launcher:
            unfinished = _end(processes)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(read_end)
            os.close(write_end)
    codes = [process.wait() for process in processes]
    failure = _root_cause(
        {rank: code for rank, code in enumerate(codes) if not _stopped(code, signals) and rank not in unfinished},
        folder,
    )
    if len(signals) > 1 or failure is None or (signals and not failure.caused):
        return (128 + signals[0] if signals and any(codes) else max(codes)), None
    return codes[0], failure


def _end(processes: Sequence[_Rank]) -> list[int]:
    """Ends the ranks that still run, and returns them."""
    unfinished = [rank for rank, process in enumerate(processes) if process.poll() is None]
    for rank in unfinished:
        processes[rank].kill()
        processes[rank].wait()
    return unfinished


def _stopped(code: int, signals: Sequence[int]) -> bool:
    """Returns whether an exit code means that the rank finished or was stopped by a signal, relayed by us or not."""
    return code in {0, *(128 + number for number in _STOPS), *(-number for number in signals)}


def _wait(processes: Sequence[_Rank], signals: Sequence[int]) -> None:
    """Waits until all ranks have ended, or until the grace period after a failure or a second signal is over."""
    deadline = None
    while None in (codes := [process.poll() for process in processes]):
        failed = any(code is not None and not _stopped(code, signals) for code in codes)
        if (failed or len(signals) > 1) and deadline is None:
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _threads(ranks: int) -> str:
    """Returns OMP_NUM_THREADS of a rank: as the user has set it, or a share of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return os.environ.get("OMP_NUM_THREADS", str(max(1, cores // ranks)))


def _environment(rank: int, ranks: int, folder: Path) -> Mapping[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": _threads(ranks),
        STORE_VARIABLE: str(folder / "store"),
        ERROR_VARIABLE: str(folder / f"rank-{rank}.json"),
    }


def _root_cause(codes: Mapping[int, int], folder: Path) -> Failure | None:
    """Returns the failure that caused the others: an error that a rank reported, or a signal that killed it."""
    failures = [_failure(rank, code, folder) for rank, code in codes.items()]
    return next((each for each in failures if each.caused), failures[0] if failures else None)


def _failure(rank: int, code: int, folder: Path) -> Failure:
    path = folder / f"rank-{rank}.json"
    damage = Damage(LostRank, "")
    with contextlib.suppress(OSError, LostRank):  # it was ended before it had written, or while it wrote
        found = declared(_Reported, read_json_object(path, damage), path, damage)
        return Failure(rank, found.problem, found.hint, found.caused, found.final)
    if code >= 0:
        return Failure(rank, f"ended with exit status {code}", "see its output above", caused=True, final=True)
    name = signal.Signals(-code).name
    hint = "look at the kernel's log; a smaller batch, more ranks or fewer of them on this host need less memory"
    if -code == signal.SIGKILL:
        return Failure(rank, f"was killed ({name}): most often the machine ran out of memory", hint, True, False)
    return Failure(rank, f"was ended by {name}", "run the command again to go on", True, False)


def command_of(arguments: Sequence[str]) -> list[str]:
    """Returns the command line that runs this ``ziggurat`` with other arguments."""
    return python_command("ziggurat", *arguments)
