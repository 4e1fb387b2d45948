"""The processes of a server: forks of one that has imported what they need.

So one that takes the place of another is there in a fraction of a second, and they share the memory of the libraries.
The process that forks neither computes nor serves; it ends when the server and all forks have ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from typing import Any


def start_process(name: str, target: Callable[..., None], *arguments: Any) -> tuple[ForkServerProcess, Any]:
    """Starts a process that calls ``target(*arguments, pipe)``.

    Args:
        name: the name of the process.
        target: a function of a module.
        arguments: what can be sent to a process.

    Returns:
        the process, and this side's end of ``pipe``. When it is closed, or this process is gone, the other end is told.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([target.__module__])
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(_Environment(), target, *arguments, theirs), name=name)
    process.start()
    theirs.close()
    return process, ours


class _Environment:
    """The environment variables of this process, which become those of the process that it is sent to.

    They are set when this is received, before what follows is imported: the fork may have those of an earlier time, and
    libraries of metrics read theirs when they are imported.
    """

    def __reduce__(self) -> tuple[Callable[[dict[str, str]], None], tuple[dict[str, str]]]:
        return _set_environment, (dict(os.environ),)


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.update(variables)


def _run(environment: None, target: Callable[..., None], *arguments: Any) -> None:
    del environment  # it is set
    target(*arguments)
