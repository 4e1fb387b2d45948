"""Ranks meet before they form a process group, so that one that does not come can be named.

Ranks of ``ziggurat train --nproc`` meet at a file, those of torchrun, or started by hand, at an address.
"""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist

from ziggurat.core.errors import EnvironmentMismatch, shorten
from ziggurat.parallel.environment import check_world, number_of
from ziggurat.parallel.launch import STORE_VARIABLE

_LOOK_S = 0.05
_RESTART = "TORCHELASTIC_RESTART_COUNT"


def meet(backend: str, size: int, timeout: timedelta) -> None:
    """Join the other ranks in a process group.

    Args:
        backend: of the group.
        size: how many ranks there are to be, as the environment says.
        timeout: of the meeting, and then of each exchange.

    Raises:
        EnvironmentMismatch: the environment makes no sense, or not all have come in time; names those missing.
    """
    check_world()
    rank, path = number_of("RANK"), os.environ.get(STORE_VARIABLE)
    where = path or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store = _store_at_address(rank, size, timeout) if path is None else dist.FileStore(path, size)
        _call_the_roll(store, rank, size, timeout, where)
        dist.init_process_group(backend, rank=rank, world_size=size, store=store, timeout=timeout)
    except EnvironmentMismatch:
        raise
    except (RuntimeError, ValueError, KeyError) as error:
        raise EnvironmentMismatch(
            f"rank {rank} of {size}: the ranks did not meet at {where} ({shorten(str(error), 300)})",
            "is the port free on the first host, is that host reachable from here, have all ranks been started?",
        ) from error


def _store_at_address(rank: int, size: int, timeout: timedelta) -> dist.Store:
    """Kept by torchrun, or by rank 0 where ranks were started by hand.

    torchrun's store outlives a restart of the ranks, and with it the addresses of those that are gone; so each start
    has a place of its own there.
    """
    by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], number_of("MASTER_PORT")
    store = dist.TCPStore(address, port, None, rank == 0 and not by_torchrun, timeout, wait_for_workers=False)
    restart = os.environ.get(_RESTART)
    return dist.PrefixStore("ziggurat" if restart is None else f"ziggurat/{restart}/{size}", store)


def _call_the_roll(store: dist.Store, rank: int, size: int, timeout: timedelta, where: str) -> None:
    """Wait for all ranks; see that they agree on how many they are, and that each is there once."""
    roll, me = dist.PrefixStore("roll", store), json.dumps([size, socket.gethostname(), os.getpid()])
    if _RESTART in os.environ:
        roll.set(str(rank), me)
    elif (found := roll.compare_set(str(rank), "", me).decode()) != me:
        _, host, process = json.loads(found)
        raise EnvironmentMismatch(
            f"rank {rank} of {size} was started twice: it is process {process} on {host} already",
            "give each process a RANK of its own, each host a --node-rank of its own",
        )
    here: dict[int, int] = {}
    ends = time.monotonic() + timeout.total_seconds()
    lost = ""
    while len(here) < size and time.monotonic() < ends and not lost:
        try:
            here |= {each: _size_of(roll, each) for each in range(size) if each not in here and roll.check([str(each)])}
        except RuntimeError:
            lost = ", where the first host no longer answers"
        others = {each: said for each, said in here.items() if said != size}
        if others:
            each, said = others.popitem()
            raise EnvironmentMismatch(
                f"rank {rank} has WORLD_SIZE={size}, rank {each} has {said}", "start all ranks with the same WORLD_SIZE"
            )
        if len(here) < size:
            time.sleep(_LOOK_S)
    if missing := [each for each in range(size) if each not in here]:
        names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise EnvironmentMismatch(
            f"rank {rank} of {size}: rank {names} did not come to {where} within {timeout.total_seconds():g} s{lost}",
            "have all ranks been started, and does each reach that address? What a missing one says tells why; where "
            "it only starts late, raise parallel.timeout_s",
        )


def _size_of(roll: dist.Store, rank: int) -> int:
    return int(json.loads(roll.get(str(rank)))[0])
