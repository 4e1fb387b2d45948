"""The contract of a cluster for preparation: it maps a function over many items and returns the results in order.

A result depends only on the function and its item. So any number of workers makes the same dataset, and an item whose
worker died can be retried elsewhere. Rows never pass through the caller: workers read raw files and write their results
into the prepared folder, which all hosts must see under the same path.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from ziggurat.core.errors import DataError

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Cluster(Protocol):
    """Workers on any number of hosts, available within a ``with`` statement."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, work: Callable[[Shared, Item], Result], shared: Shared, items: Iterable[Item]) -> Iterator[Result]:
        """Yields ``work(shared, item)`` for every item, in order. Items are drawn as workers become free.

        Args:
            work: a function of a module. It is retried if its worker dies, so it must tolerate files of an earlier try.
            shared: an argument that is sent once rather than with every item.
            items: the items.

        Raises:
            ZigguratError: ``work`` raised it (for the first such item in order), or workers died repeatedly.
        """
        ...


def check_visible(path: Path) -> None:
    """Runs on a worker: checks that this host sees a file or folder of the caller.

    Raises:
        DataError: the path does not exist on this host; the message names the host.
    """
    if not path.exists():
        raise DataError(
            f"{path}: does not exist for a worker on host {socket.gethostname()}",
            "keep raw files and prepared data on a file system that all hosts of the cluster mount at the same path",
        )
