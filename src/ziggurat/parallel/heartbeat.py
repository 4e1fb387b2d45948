"""Each rank leaves word of itself now and then, so that when one is missed the others can say which, and since when.

A rank that misses another does not believe old words: it listens for as long as every rank that lives must be heard.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ziggurat.core.errors import LostRank, shorten

_PERIOD_S = 2.0

LISTEN_S = 1.5 * _PERIOD_S
"""Seconds after which a rank that lives has left word again."""

_OF_OTHERS = re.compile(
    r"connection (closed|reset|refused)|timed out|timeout|socket closed|broken pipe|read error|write error|pair closure"
    r"|nccl (communicator was aborted|error)|peer",
    re.IGNORECASE,
)
"""What gloo and NCCL say when another rank does not answer."""


@contextlib.contextmanager
def watched(step: Callable[[], int], timeout_s: float) -> Generator[None]:
    """Within, a rank that misses another says which, instead of the library's message.

    Args:
        step: where this rank stands; asked from a thread.
        timeout_s: after which an exchange gives up, for the message.

    Raises:
        LostRank: an exchange broke or took too long.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        yield
        return
    beat = _Beat(step)
    try:
        yield
    except Exception as error:
        if not isinstance(error, RuntimeError | dist.DistError) or not _OF_OTHERS.search(str(error)):
            beat.fail(error)
            raise
        raise _explained(error, beat, step(), timeout_s) from error
    finally:
        beat.stop()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a rank last said of itself.

    Attributes:
        at: when, in seconds since the epoch by its own clock.
        step: where it stood.
        failed: the error that ended it; empty while it goes on.
    """

    at: float
    step: int
    failed: str = ""

    def told_of(self, rank: int, lives: bool, ours: int) -> str:
        """For the message of a rank whose own step is ``ours``."""
        if self.failed:
            return f"rank {rank} failed at step {self.step}: {self.failed}"
        if lives:
            return f"rank {rank} lives, at step {self.step}"
        # Words are rare, but every step needs all ranks: without it we would not have come here.
        step, ago = max(self.step, ours - 1), max(0.0, time.time() - self.at)
        return f"rank {rank} was last heard of {ago:.0f} s ago, and came to step {step} at least"


class _Beat:
    def __init__(self, step: Callable[[], int]) -> None:
        store = distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage] - no public way to it
        # A client of its own: its short timeout is not that of the process group, nor does one wait for the other.
        own = store.clone()  # pyright: ignore[reportAttributeAccessIssue] - missing from torch's stubs
        self._store = dist.PrefixStore("ziggurat/alive", own)
        self._store.set_timeout(timedelta(seconds=_PERIOD_S))
        self._rank, self._step = dist.get_rank(), step
        self._ended = threading.Event()
        self._say()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(_PERIOD_S)

    def fail(self, error: Exception) -> None:
        """Leave word that this rank ends, and why: others may be on hosts that its own output does not reach."""
        self.stop()
        self._say(shorten(f"{type(error).__name__}: {error}", 300))

    def words(self) -> dict[int, Heartbeat | None]:
        """What every other rank last said; None of one that never did.

        Raises:
            RuntimeError: what keeps the words is gone.
        """
        others = [rank for rank in range(dist.get_world_size()) if rank != self._rank]
        return {
            rank: Heartbeat(*json.loads(self._store.get(str(rank)))) if self._store.check([str(rank)]) else None
            for rank in others
        }

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self._say()

    def _say(self, failed: str = "") -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone with the rank that kept it
            self._store.set(str(self._rank), json.dumps([time.time(), self._step(), failed]))


def _explained(error: BaseException, beat: _Beat, step: int, timeout_s: float) -> LostRank:
    late = re.search("timed out|timeout", str(error), re.IGNORECASE) is not None
    what = f"waited {timeout_s:g} s for the other ranks" if late else "lost the connection to another rank"
    try:
        told = _named(*_listened(beat), step)
    except RuntimeError:
        told = "nor does the first host answer, where ranks leave word of themselves"
    return LostRank(
        f"{what} at step {step}: {told}",
        "see what that rank says, whether its host runs, swaps or is cut off; where it is only slow, raise "
        "parallel.timeout_s. Run the command again to go on from the last checkpoint",
    )


def _listened(beat: _Beat) -> tuple[dict[int, Heartbeat | None], set[int]]:
    """The last words of the others, and which of them have said something since we began to listen."""
    before = beat.words()
    words, alive = before, set[int]()
    ends = time.monotonic() + LISTEN_S
    while time.monotonic() < ends and len(alive) < len(before):
        time.sleep(0.1)
        words = beat.words()
        alive = {rank for rank, word in words.items() if word is not None and word != before[rank] and not word.failed}
        if any(word is not None and word.failed for word in words.values()):
            break
    return words, alive


def _named(words: dict[int, Heartbeat | None], alive: set[int], ours: int) -> str:
    """Those that failed; else those that are silent; else those that are furthest behind."""
    failed = [rank for rank, word in words.items() if word is not None and word.failed]
    silent = [rank for rank in words if rank not in alive]
    behind = min((word.step for word in words.values() if word is not None), default=0)
    slow = [rank for rank, word in words.items() if word is not None and word.step == behind]
    told = (
        f"rank {rank} was never heard of" if (word := words[rank]) is None else word.told_of(rank, rank in alive, ours)
        for rank in failed or silent or slow
    )
    return "; ".join(told)
