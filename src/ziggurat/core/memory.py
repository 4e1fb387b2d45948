"""Turns failed allocations, and threads that cannot be started, into errors that say so."""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Generator, Iterator

import torch

from ziggurat.core.control_group import thread_limits
from ziggurat.core.errors import EnvironmentMismatch, OutOfMemory

_REQUESTED = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
GIB = 2**30


@contextlib.contextmanager
def explained_out_of_memory(hint: str) -> Generator[None]:
    """Turns a failed allocation of Python, numpy or torch in the ``with`` block into one kind of error.

    Args:
        hint: what the user can do about it.

    Raises:
        OutOfMemory: in place of the library's error; the message says how much was requested, if known.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        requested = _REQUESTED.search(str(error))
        if requested is None and not isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise
        details = f": {int(requested[1]) / GIB:,.2f} GiB more were asked for" if requested else f" ({error})"
        raise OutOfMemory(f"ran out of memory{details if str(error) else ''}", hint) from error


@contextlib.contextmanager
def explained_thread_limit() -> Generator[None]:
    """Turns Python's error about a thread that cannot be started in the ``with`` block into one of ours.

    Raises:
        EnvironmentMismatch: in place of it.
    """
    try:
        yield
    except RuntimeError as error:
        explained = thread_limit_error(error)
        if explained is None:
            raise
        raise explained from error


def thread_limit_error(error: BaseException) -> EnvironmentMismatch | None:
    """Returns the error for the user if ``error`` comes of a thread that could not be started, else None.

    What was half set up then often fails again when it is taken down, so the errors before it count, too.
    """
    if not any(isinstance(each, RuntimeError) and str(each) == _NO_THREAD for each in _with_causes(error)):
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [f"`ulimit -u` {'unlimited' if soft == resource.RLIM_INFINITY else soft}"]
    limits += [f"a control group {used} of {limit}" for limit, used in thread_limits()]
    return EnvironmentMismatch(
        f"the system started no further thread for this process (limits: {', '.join(limits)})",
        "raise the limit of processes and threads (`ulimit -u`, or pids.max of the container), free memory, or use "
        "fewer threads: training.threads, and the environment variables OMP_NUM_THREADS and POLARS_MAX_THREADS",
    )


_NO_THREAD = "can't start new thread"


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and those that it arose from or while handling which it was raised."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
