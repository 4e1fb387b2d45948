"""What preparation asks of a cluster: to run one function over many items, and to give the results in their order.

Functions and items are such that a result depends on them alone. So any number of workers leaves the same dataset, and
an item whose worker died may be tried again elsewhere. Rows never pass through the caller: workers read raw files and
leave what they make in the prepared folder, which all hosts must see under the same path.
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
    """Workers on any number of hosts, held for the body of a ``with``."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, work: Callable[[Shared, Item], Result], shared: Shared, items: Iterable[Item]) -> Iterator[Result]:
        """``work(shared, item)`` of every item, in the order of the items, which are drawn as workers get free.

        Args:
            work: a function of a module; tried again where its worker dies, so it must not mind what that one left.
            shared: sent once, not with every item.

        Raises:
            ZigguratError: what ``work`` raised, for the first item in order; or workers that die again and again.
        """
        ...


def seen(path: Path) -> None:
    """On a worker: refuse to go on where this host does not see a file or folder that the caller does.

    Raises:
        DataError: naming the host.
    """
    if not path.exists():
        raise DataError(
            f"{path}: not there for a worker on host {socket.gethostname()}",
            "keep raw files and prepared data on a file system that all hosts of the cluster mount at the same place",
        )
