"""Heartbeats: ranks report their progress periodically, so that an error can name the rank that was lost, and since
when.

A rank that loses another does not rely on old heartbeats: it listens long enough to hear every rank that is alive.
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
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import Damage, parse_json

_PERIOD_S = 2.0

LISTEN_S = 1.5 * _PERIOD_S
"""Seconds within which every rank that is alive sends another heartbeat."""

_LOST_CONNECTION = re.compile(
    r"connection (closed|reset|refused)|timed out|timeout|socket closed|broken pipe|read error|write error|pair closure"
    r"|nccl (communicator was aborted|error)|peer",
    re.IGNORECASE,
)
"""Error messages of gloo and NCCL when another rank does not answer."""


@contextlib.contextmanager
def report_lost_ranks(step: Callable[[], int], timeout_s: float) -> Generator[None]:
    """Sends heartbeats in this context, and turns the library's communication errors into one that names the lost rank.

    Args:
        step: returns this rank's step; called from a thread.
        timeout_s: the timeout of an exchange, for the message.

    Raises:
        LostRank: an exchange failed or timed out.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        yield
        return
    sender = _HeartbeatSender(step)
    try:
        yield
    except Exception as error:
        if not isinstance(error, RuntimeError | dist.DistError) or not _LOST_CONNECTION.search(str(error)):
            sender.fail(error)
            raise
        raise _lost_rank_error(error, sender, step(), timeout_s) from error
    finally:
        sender.stop()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last heartbeat of a rank.

    Attributes:
        at: the time by its own clock, in seconds since the epoch.
        step: its step.
        failed: the error that ended it; empty while it runs.
    """

    at: float
    step: int
    failed: str = ""

    def describe(self, rank: int, alive: bool, ours: int) -> str:
        """Describes the rank, for the error message of a rank whose own step is ``ours``."""
        if self.failed:
            return f"rank {rank} failed at step {self.step}: {self.failed}"
        if alive:
            return f"rank {rank} is alive, at step {self.step}"
        # Heartbeats are rare, but every step needs all ranks: it must have completed the step before ours.
        step, ago = max(self.step, ours - 1), max(0.0, time.time() - self.at)
        return f"rank {rank} sent its last heartbeat {ago:.0f} s ago, and reached step {step} or later"


class _HeartbeatSender:
    def __init__(self, step: Callable[[], int]) -> None:
        store = distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage] - it has no public accessor
        # A separate client: it has a short timeout of its own, and neither it nor the process group blocks the other.
        own = store.clone()  # pyright: ignore[reportAttributeAccessIssue] - missing from torch's stubs
        self._store = dist.PrefixStore("ziggurat/alive", own)
        self._store.set_timeout(timedelta(seconds=_PERIOD_S))
        self._rank, self._step = dist.get_rank(), step
        self._ended = threading.Event()
        self._send()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(_PERIOD_S)

    def fail(self, error: Exception) -> None:
        """Sends a last heartbeat with the error that ends this rank: other hosts may not see its output."""
        self.stop()
        self._send(shorten(f"{type(error).__name__}: {error}", 300))

    def last_heartbeats(self) -> dict[int, Heartbeat | None]:
        """Returns the last heartbeat of every other rank; None for a rank that never sent one.

        Raises:
            RuntimeError: the store of heartbeats is gone.
        """
        others = [rank for rank in range(dist.get_world_size()) if rank != self._rank]
        return {
            rank: _heartbeat(self._store.get(str(rank)), rank) if self._store.check([str(rank)]) else None
            for rank in others
        }

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self._send()

    def _send(self, failed: str = "") -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone with the rank that hosted it
            self._store.set(str(self._rank), json.dumps([time.time(), self._step(), failed]))


def _heartbeat(data: bytes, rank: int) -> Heartbeat | None:
    """Returns a rank's heartbeat; None if something else is stored in its place."""
    damage = Damage(LostRank, "")
    try:
        return Heartbeat(*declared(tuple[float, int, str], parse_json(data, f"rank {rank}", damage), "", damage))
    except LostRank:
        return None


def _lost_rank_error(error: BaseException, sender: _HeartbeatSender, step: int, timeout_s: float) -> LostRank:
    late = re.search("timed out|timeout", str(error), re.IGNORECASE) is not None
    what = f"waited {timeout_s:g} s for the other ranks" if late else "lost the connection to another rank"
    try:
        description = _describe_suspects(*_listen(sender), step)
    except RuntimeError:
        description = "the first host, which keeps the ranks' heartbeats, does not answer either"
    return LostRank(
        f"{what} at step {step}: {description}",
        "see the output of that rank, and whether its host runs, swaps or is cut off; if it is only slow, raise "
        "parallel.timeout_s. Run the command again to go on from the last checkpoint",
    )


def _listen(sender: _HeartbeatSender) -> tuple[dict[int, Heartbeat | None], set[int]]:
    """Listens to the other ranks; returns their last heartbeats, and the ranks that sent one in the meantime."""
    before = sender.last_heartbeats()
    heartbeats, alive = before, set[int]()
    ends = time.monotonic() + LISTEN_S
    while time.monotonic() < ends and len(alive) < len(before):
        time.sleep(0.1)
        heartbeats = sender.last_heartbeats()
        alive = {
            rank
            for rank, heartbeat in heartbeats.items()
            if heartbeat is not None and heartbeat != before[rank] and not heartbeat.failed
        }
        if any(heartbeat is not None and heartbeat.failed for heartbeat in heartbeats.values()):
            break
    return heartbeats, alive


def _describe_suspects(heartbeats: dict[int, Heartbeat | None], alive: set[int], ours: int) -> str:
    """Describes the ranks that failed; if none did, those that are silent; else those at the lowest step."""
    failed = [rank for rank, heartbeat in heartbeats.items() if heartbeat is not None and heartbeat.failed]
    silent = [rank for rank in heartbeats if rank not in alive]
    lowest = min((heartbeat.step for heartbeat in heartbeats.values() if heartbeat is not None), default=0)
    slow = [rank for rank, heartbeat in heartbeats.items() if heartbeat is not None and heartbeat.step == lowest]
    description = (
        f"rank {rank} never sent a heartbeat"
        if (heartbeat := heartbeats[rank]) is None
        else heartbeat.describe(rank, rank in alive, ours)
        for rank in failed or silent or slow
    )
    return "; ".join(description)
