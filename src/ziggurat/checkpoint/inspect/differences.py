"""How far two checkpoints are apart, tensor by tensor, in bounded memory.

Shape legend: R rows of a range, D columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ziggurat.checkpoint.reader import TABLES, CheckpointReader
from ziggurat.core.progress import Progress, Silent
from ziggurat.parallel.tensor_slices import TensorSlice

RANGE_BYTES = 256 * 2**20
"""Of a table's rows that are read at once, of either checkpoint."""
GROUPS = (TABLES, "dense", "average")
_CHUNK_NUMBERS = 2**20
"""Compared at once, in float64."""

Shape = tuple[int, ...]
Pair = tuple[str, str]
"""Group and name of a tensor."""
State = Literal["identical", "different", "shapes", "first only", "second only"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor of two checkpoints, a and b.

    Attributes:
        group: ``tables``, ``dense`` or ``average``.
        name: in the group.
        state: ``identical``: bit for bit; ``shapes``: they, or the types, differ, and nothing is compared;
            ``first only`` and ``second only``: the other has no such tensor.
        shapes: of a and b; None where it is not there.
        counted: rows of a table, numbers of another tensor.
        different: how many of these are not the same bits.
        largest: max |b − a|; nan or infinite where numbers are, as the next two.
        mean: of |b − a|, over all numbers.
        relative: ‖b − a‖₂ / ‖a‖₂; infinite where a is zero.
    """

    group: str
    name: str
    state: State
    shapes: tuple[Shape | None, Shape | None]
    counted: int = 0
    different: int = 0
    largest: float = 0.0
    mean: float = 0.0
    relative: float = 0.0


def differences(
    first: CheckpointReader, second: CheckpointReader, progress: Progress | None = None
) -> list[Difference]:
    """Of all weights of two checkpoints, of the same run or of others: tables first.

    Raises:
        RunFolderError: a file of either is missing or damaged.
    """
    progress = progress or Silent()
    ours, theirs = _shapes(first), _shapes(second)
    # Tables in their order; others by name, as a file tells them in any order.
    pairs = sorted({**ours, **theirs}, key=lambda pair: (GROUPS.index(pair[0]), pair[1] if pair[0] != TABLES else ""))
    shapes = {pair: (ours.get(pair), theirs.get(pair)) for pair in pairs}
    alike = {
        pair: one
        for pair, (one, other) in shapes.items()
        if one is not None and one == other and first.dtype(*pair) == second.dtype(*pair)
    }
    compared = {pair: _Compared(by_row=pair[0] == TABLES) for pair in alike}
    size = sum(math.prod(shape) * first.dtype(*pair).itemsize for pair, shape in alike.items())
    progress.start("compare", size, "bytes")
    done = 0
    for pair, a, b in _read(first, second, alike):
        compared[pair].add(a, b)
        done += a.nbytes
        progress.advance(done, reading=pair[1])
    progress.finish()
    return [_difference(pair, each, compared.get(pair)) for pair, each in shapes.items()]


def _difference(pair: Pair, shapes: tuple[Shape | None, Shape | None], compared: _Compared | None) -> Difference:
    if compared is not None:
        return compared.result(pair, shapes)
    one, other = shapes
    state: State = "second only" if one is None else "first only" if other is None else "shapes"
    return Difference(*pair, state, shapes)


class _Compared:
    """What is summed up over the ranges of a tensor."""

    def __init__(self, by_row: bool) -> None:
        self._by_row = by_row
        self._counted = self._different = self._numbers = 0
        self._largest = self._sum = self._squares = self._squares_of_first = 0.0

    def add(self, a: Tensor, b: Tensor) -> None:
        a, b = (a, b) if self._by_row else (a.reshape(-1), b.reshape(-1))
        step = max(1, _CHUNK_NUMBERS // max(1, a[:1].numel()))
        for begin in range(0, len(a), step):
            self._add(a[begin : begin + step], b[begin : begin + step])

    def _add(self, a: Tensor, b: Tensor) -> None:
        differs = _bits(a) != _bits(b)
        differs_R = differs.flatten(1).any(1) if differs.ndim > 1 else differs
        self._counted += len(a)
        self._numbers += a.numel()
        self._different += int(differs_R.sum())
        exact = a.double()
        self._squares_of_first += float(exact.square().sum())
        if not a.numel() or not bool(differs.any()):
            return
        gap = torch.where(differs, b.double() - exact, 0.0).abs()
        largest = float(gap.max())
        self._largest = largest if math.isnan(largest) else max(self._largest, largest)
        self._sum += float(gap.sum())
        self._squares += float(gap.square().sum())

    def result(self, pair: Pair, shapes: tuple[Shape | None, Shape | None]) -> Difference:
        state: State = "different" if self._different else "identical"
        norm, gap = math.sqrt(self._squares_of_first), math.sqrt(self._squares)
        relative = gap / norm if norm and gap else math.inf if gap else 0.0
        mean = self._sum / max(1, self._numbers)
        return Difference(*pair, state, shapes, self._counted, self._different, self._largest, mean, relative)


def _bits(tensor: Tensor) -> Tensor:
    """The same numbers as integers, so that nan is itself and the two zeros are not one another."""
    if not tensor.dtype.is_floating_point:
        return tensor
    return tensor.contiguous().view({8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.dtype.itemsize])


def _read(
    first: CheckpointReader, second: CheckpointReader, shapes: Mapping[Pair, Shape]
) -> Iterator[tuple[Pair, Tensor, Tensor]]:
    """Both checkpoints' numbers: of tables in portions of :data:`RANGE_BYTES`, so that a file which has rows of many
    tables is not read for each of them; of others, all."""
    tables = {name: (shape, first.dtype(TABLES, name)) for (group, name), shape in shapes.items() if group == TABLES}
    for portion in _portions(tables):
        read = (_pieces(portion, tables), _pieces(portion, tables))
        for saved, tensor_slices in zip((first, second), read, strict=True):
            saved.fill({TABLES: tensor_slices})
        for a, b in zip(*read, strict=True):
            yield (TABLES, a.name), a.tensor, b.tensor
    for group, name in shapes:
        if group != TABLES:
            yield (group, name), first.groups[group][name], second.groups[group][name]


def _portions(tables: Mapping[str, tuple[Shape, torch.dtype]]) -> Iterator[list[tuple[str, range]]]:
    """Ranges of rows of tables that are read together."""
    portion: list[tuple[str, range]] = []
    room = RANGE_BYTES
    for name, (shape, dtype) in tables.items():
        row, begin = max(1, math.prod(shape[1:]) * dtype.itemsize), 0
        while begin < shape[0]:
            if portion and room < row:
                yield portion
                portion, room = [], RANGE_BYTES
            count = min(shape[0] - begin, max(1, room // row))
            portion.append((name, range(begin, begin + count)))
            begin, room = begin + count, room - count * row
    if portion:
        yield portion


def _pieces(portion: list[tuple[str, range]], tables: Mapping[str, tuple[Shape, torch.dtype]]) -> list[TensorSlice]:
    made: list[TensorSlice] = []
    for name, rows in portion:
        shape, dtype = tables[name]
        numbers = torch.empty((len(rows), *shape[1:]), dtype=dtype)
        made.append(TensorSlice(name, numbers, shape, (rows.start, *(0 for _ in shape[1:]))))
    return made


def _shapes(saved: CheckpointReader) -> dict[Pair, Shape]:
    return {(group, name): shape for group in GROUPS for name, shape in (saved.shapes(group) or {}).items()}
