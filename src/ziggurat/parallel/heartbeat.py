"""Each rank leaves word of itself now and then, so that when one is missed the others can say which, and since when."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Generator
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ziggurat.core.errors import LostRank

_PERIOD_S = 2.0
_SILENT_S = 3 * _PERIOD_S

_OF_OTHERS = re.compile(
    r"connection (closed|reset|refused)|timed out|socket (timeout|closed)|broken pipe|read error|write error"
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
    except (RuntimeError, dist.DistError) as error:
        if not _OF_OTHERS.search(str(error)):
            raise
        raise _explained(error, beat, step(), timeout_s) from error
    finally:
        beat.stop()


class _Beat:
    def __init__(self, step: Callable[[], int]) -> None:
        store = distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage] - no public way to it
        self._store = dist.PrefixStore("ziggurat/alive", store)
        self._rank, self._step = dist.get_rank(), step
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(_PERIOD_S)

    def others(self) -> dict[int, tuple[float, int]]:
        """Rank -> seconds since it was heard of, and its step then; a rank that was never heard of is left out."""
        found: dict[int, tuple[float, int]] = {}
        for rank in range(dist.get_world_size()):
            if rank != self._rank and self._store.check([str(rank)]):
                told, step = json.loads(self._store.get(str(rank)))
                found[rank] = (max(0.0, time.time() - told), step)
        return found

    def _run(self) -> None:
        self._store.set_timeout(timedelta(seconds=_PERIOD_S))
        while not self._ended.is_set():
            with contextlib.suppress(RuntimeError):  # the store is gone with the rank that kept it
                self._store.set(str(self._rank), json.dumps([time.time(), self._step()]))
            self._ended.wait(_PERIOD_S)


def _explained(error: BaseException, beat: _Beat, step: int, timeout_s: float) -> LostRank:
    try:
        heard = beat.others()
    except RuntimeError:
        heard = {}
    late = "timed out" in str(error).lower()
    what = f"waited {timeout_s:g} s for the other ranks" if late else "lost the connection to another rank"
    silent = {rank: seen for rank, seen in heard.items() if seen[0] > _SILENT_S}
    named = silent or {rank: seen for rank, seen in heard.items() if seen[1] == min(at for _, at in heard.values())}
    told = "; ".join(
        f"rank {rank} was last heard of {seconds:.0f} s ago, at step {at}" for rank, (seconds, at) in named.items()
    )
    return LostRank(
        f"{what} at step {step}" + (f": {told}" if told else ""),
        "see what that rank says, whether its host runs, swaps or is cut off; where it is only slow, raise "
        "parallel.timeout_s. Run the command again to go on from the last checkpoint",
    )
