"""Rendezvous of the ranks before they form a process group, so that an error can name the ranks that are missing.

Ranks of ``ziggurat train --nproc`` meet at a file; those started by torchrun or by hand meet at an address.
"""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist

from ziggurat.core.errors import EnvironmentMismatch, shorten
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import Damage, parse_json
from ziggurat.parallel.environment import check_world, environment_integer
from ziggurat.parallel.launch import STORE_VARIABLE

_POLL_S = 0.05
_RESTART = "TORCHELASTIC_RESTART_COUNT"


def join_process_group(backend: str, size: int, timeout: timedelta) -> None:
    """Waits for the other ranks and initialises the process group with them.

    Args:
        backend: the backend of the process group.
        size: the expected number of ranks, as the environment says.
        timeout: the timeout of the rendezvous, and then of each exchange.

    Raises:
        EnvironmentMismatch: the environment is inconsistent, or ranks are missing at the timeout; they are named.
    """
    check_world()
    rank, path = environment_integer("RANK"), os.environ.get(STORE_VARIABLE)
    where = path or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store = _store_at_address(rank, size, timeout) if path is None else dist.FileStore(path, size)
        _check_in(store, rank, size, timeout, where)
        dist.init_process_group(backend, rank=rank, world_size=size, store=store, timeout=timeout)
    except EnvironmentMismatch:
        raise
    except (RuntimeError, ValueError, KeyError) as error:
        raise EnvironmentMismatch(
            f"rank {rank} of {size}: the ranks did not meet at {where} ({shorten(str(error), 300)})",
            "check that the port is free on the first host, that this host can reach it and all ranks have started",
        ) from error


def _store_at_address(rank: int, size: int, timeout: timedelta) -> dist.Store:
    """Returns the TCP store at MASTER_ADDR, hosted by torchrun, or by rank 0 if ranks were started by hand.

    torchrun's store outlives a restart of the ranks, and still holds the addresses of the old ones; so each start uses
    a prefix of its own.
    """
    by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], environment_integer("MASTER_PORT")
    store = dist.TCPStore(address, port, None, rank == 0 and not by_torchrun, timeout, wait_for_workers=False)
    restart = os.environ.get(_RESTART)
    return dist.PrefixStore("ziggurat" if restart is None else f"ziggurat/{restart}/{size}", store)


def _check_in(store: dist.Store, rank: int, size: int, timeout: timedelta, where: str) -> None:
    """Waits for all ranks; validates that they agree on their number and that each rank was started once."""
    registry, own_entry = dist.PrefixStore("roll", store), json.dumps([size, socket.gethostname(), os.getpid()])
    if _RESTART in os.environ:
        registry.set(str(rank), own_entry)
    elif (found := registry.compare_set(str(rank), "", own_entry).decode()) != own_entry:
        _, host, process = _entry(found.encode(), rank, where)
        raise EnvironmentMismatch(
            f"rank {rank} of {size} was started twice: it is process {process} on {host} already",
            "give each process a RANK of its own, each host a --node-rank of its own",
        )
    present: dict[int, int] = {}
    ends = time.monotonic() + timeout.total_seconds()
    lost = ""
    while len(present) < size and time.monotonic() < ends and not lost:
        try:
            present |= {
                each: _entry(registry.get(str(each)), each, where)[0]
                for each in range(size)
                if each not in present and registry.check([str(each)])
            }
        except RuntimeError:
            lost = ", where the first host no longer answers"
        others = {each: their_size for each, their_size in present.items() if their_size != size}
        if others:
            each, their_size = others.popitem()
            raise EnvironmentMismatch(
                f"rank {rank} has WORLD_SIZE={size}, rank {each} has {their_size}",
                "start all ranks with the same WORLD_SIZE",
            )
        if len(present) < size:
            time.sleep(_POLL_S)
    if missing := [each for each in range(size) if each not in present]:
        names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise EnvironmentMismatch(
            f"rank {rank} of {size}: rank {names} did not come to {where} within {timeout.total_seconds():g} s{lost}",
            "check that all ranks were started and can reach that address, and see the output of the missing ones; if "
            "they only start late, raise parallel.timeout_s",
        )


def _entry(data: bytes, rank: int, where: str) -> tuple[int, str, int]:
    """Returns what a rank has said about itself: the number of ranks that it expects, its host and its process.

    Raises:
        EnvironmentMismatch: something else is stored there, by another program.
    """
    place = f"what rank {rank} has stored at {where}"
    damage = Damage(EnvironmentMismatch, "use another MASTER_PORT, and check what else uses this one")
    return declared(tuple[int, str, int], parse_json(data, place, damage), place, damage)
