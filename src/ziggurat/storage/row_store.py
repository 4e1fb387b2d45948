"""Rows of a table's shard by id, wherever they lie.

Shape legend: U distinct rows, W float32 numbers of a row: its weights and behind them its optimizer's states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Initial = Callable[[Ints], Floats]
"""Rows as they begin, (U,) -> (U, W): a function of the id alone, so that a row that nobody wrote is the same again."""


@dataclass(slots=True)
class Traffic:
    """What moved between a store and memory.

    Attributes:
        reads, writes: requests to the device.
        read_bytes, written_bytes: of them.
        rows_read, rows_written: that were asked for; those that nobody had written are made, not read.
        rows_made: those.
    """

    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    rows_read: int = 0
    rows_written: int = 0
    rows_made: int = 0

    def since(self, earlier: Traffic) -> Traffic:
        """What moved since then."""
        return Traffic(**{name: value - getattr(earlier, name) for name, value in asdict(self).items()})

    def copy(self) -> Traffic:
        return Traffic(**asdict(self))

    def figures(self) -> dict[str, float]:
        """By name."""
        return {name: float(value) for name, value in asdict(self).items()}


class RowStore(ABC):
    """So many rows; each that was never written is as ``initial`` makes it. For one thread at a time.

    Attributes:
        rows: how many.
        width: W.
        traffic: so far.
    """

    def __init__(self, rows: int, width: int, initial: Initial) -> None:
        self.rows, self.width, self._initial = rows, width, initial
        self._written = Bits(rows)
        self.traffic = Traffic()

    def read(self, ids_U: Ints) -> Floats:
        """Rows (U, W), the caller's to keep.

        Args:
            ids_U: ascending, distinct, in [0, rows).
        """
        there_U = self.written(ids_U)
        found = np.empty((len(ids_U), self.width), np.float32)
        if there_U.any():
            found[there_U] = self._read(ids_U[there_U])
        if not there_U.all():
            found[~there_U] = self._initial(ids_U[~there_U])
        self.traffic.rows_read += len(ids_U)
        self.traffic.rows_made += int((~there_U).sum())
        return found

    def write(self, ids_U: Ints, rows_UW: Floats) -> None:
        """Replace rows; ``ids_U`` as in :meth:`read`."""
        self._write(ids_U, rows_UW)
        self._written.set(ids_U)
        self.traffic.rows_written += len(ids_U)

    def written(self, ids_U: Ints) -> npt.NDArray[np.bool_]:
        """Which of these rows were ever written."""
        return self._written.of(ids_U)

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds; what was written need not be there again."""

    @abstractmethod
    def _read(self, ids_U: Ints) -> Floats:
        """Rows that were written, at least one."""

    @abstractmethod
    def _write(self, ids_U: Ints, rows_UW: Floats) -> None: ...


class Bits:
    """A bit for each of so many rows."""

    def __init__(self, rows: int) -> None:
        self._bytes = np.zeros(-(-rows // 8), np.uint8)

    def set(self, ids_U: Ints) -> None:
        np.bitwise_or.at(self._bytes, ids_U >> 3, _bit(ids_U))

    def of(self, ids_U: Ints) -> npt.NDArray[np.bool_]:
        return (self._bytes[ids_U >> 3] & _bit(ids_U)) != 0


class MemoryRows(RowStore):
    """Rows in memory."""

    def __init__(self, rows: int, width: int, initial: Initial) -> None:
        super().__init__(rows, width, initial)
        self._rows_RW = np.empty((rows, width), np.float32)

    def _read(self, ids_U: Ints) -> Floats:
        return self._rows_RW[ids_U]

    def _write(self, ids_U: Ints, rows_UW: Floats) -> None:
        self._rows_RW[ids_U] = rows_UW

    def close(self) -> None:
        self._rows_RW = np.empty((0, self.width), np.float32)


def _bit(ids_U: Ints) -> npt.NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (ids_U & 7).astype(np.uint8))
