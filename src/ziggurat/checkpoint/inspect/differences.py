"""Compares two checkpoints tensor by tensor, in bounded memory.

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
"""Size of the rows that are read at once from each checkpoint."""
GROUPS = (TABLES, "dense", "average")
_CHUNK_VALUES = 2**20
"""How many values are compared at once, in float64."""

Shape = tuple[int, ...]
TensorKey = tuple[str, str]
"""Group and name of a tensor."""
State = Literal["identical", "different", "shapes", "first only", "second only"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The comparison of one tensor in two checkpoints, a and b.

    Attributes:
        group: ``tables``, ``dense`` or ``average``.
        name: name of the tensor in the group.
        state: ``identical``: bit for bit; ``different``; ``shapes``: shapes or dtypes differ, so that values are not
            compared; ``first only`` and ``second only``: the other checkpoint has no such tensor.
        shapes: shapes in a and b; None if the checkpoint has no such tensor.
        counted: number of rows of a table, or of numbers of another tensor.
        different: how many of these differ in any bit.
        largest: max |b − a|. NaN or infinite if numbers are; so are the next two.
        mean: mean of |b − a| over all numbers.
        relative: ‖b − a‖₂ / ‖a‖₂; infinite if a is zero and b is not.
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
    """Compares all weights of two checkpoints, of the same run or of different runs.

    Returns:
        One entry per tensor, tables first.

    Raises:
        RunFolderError: a file of either checkpoint is missing or damaged.
    """
    progress = progress or Silent()
    shapes_a, shapes_b = _shapes(first), _shapes(second)
    # Tables keep their order. Other tensors are sorted by name, as a file lists them in no fixed order.
    keys = sorted({**shapes_a, **shapes_b}, key=lambda key: (GROUPS.index(key[0]), key[1] if key[0] != TABLES else ""))
    shapes = {key: (shapes_a.get(key), shapes_b.get(key)) for key in keys}
    comparable = {
        key: shape_a
        for key, (shape_a, shape_b) in shapes.items()
        if shape_a is not None and shape_a == shape_b and first.dtype(*key) == second.dtype(*key)
    }
    comparisons = {key: _Comparison(by_row=key[0] == TABLES) for key in comparable}
    size = sum(math.prod(shape) * first.dtype(*key).itemsize for key, shape in comparable.items())
    progress.start("compare", size, "bytes")
    done = 0
    for key, a, b in _read(first, second, comparable):
        comparisons[key].add(a, b)
        done += a.nbytes
        progress.advance(done, reading=key[1])
    progress.finish()
    return [_difference(key, each, comparisons.get(key)) for key, each in shapes.items()]


def _difference(
    key: TensorKey, shapes: tuple[Shape | None, Shape | None], comparison: _Comparison | None
) -> Difference:
    if comparison is not None:
        return comparison.result(key, shapes)
    shape_a, shape_b = shapes
    state: State = "second only" if shape_a is None else "first only" if shape_b is None else "shapes"
    return Difference(*key, state, shapes)


class _Comparison:
    """Accumulates the comparison of one tensor over its ranges of rows."""

    def __init__(self, by_row: bool) -> None:
        self._by_row = by_row
        self._counted = self._different = self._numbers = 0
        self._largest = self._sum = self._squares = self._squares_of_first = 0.0

    def add(self, a: Tensor, b: Tensor) -> None:
        a, b = (a, b) if self._by_row else (a.reshape(-1), b.reshape(-1))
        step = max(1, _CHUNK_VALUES // max(1, a[:1].numel()))
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

    def result(self, key: TensorKey, shapes: tuple[Shape | None, Shape | None]) -> Difference:
        state: State = "different" if self._different else "identical"
        norm, gap = math.sqrt(self._squares_of_first), math.sqrt(self._squares)
        relative = gap / norm if norm and gap else math.inf if gap else 0.0
        mean = self._sum / max(1, self._numbers)
        return Difference(*key, state, shapes, self._counted, self._different, self._largest, mean, relative)


def _bits(tensor: Tensor) -> Tensor:
    """Returns the bits of floats as integers, so that a NaN equals itself and 0 differs from −0."""
    if not tensor.dtype.is_floating_point:
        return tensor
    return tensor.contiguous().view({8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.dtype.itemsize])


def _read(
    first: CheckpointReader, second: CheckpointReader, shapes: Mapping[TensorKey, Shape]
) -> Iterator[tuple[TensorKey, Tensor, Tensor]]:
    """Yields the values of both checkpoints.

    Tables are read in portions of :data:`RANGE_BYTES`, each of which may span several tables, so that a file with rows
    of many tables is not read once for each of them. Other tensors are read whole.
    """
    tables = {name: (shape, first.dtype(TABLES, name)) for (group, name), shape in shapes.items() if group == TABLES}
    for portion in _portions(tables):
        read = (_empty_slices(portion, tables), _empty_slices(portion, tables))
        for checkpoint, tensor_slices in zip((first, second), read, strict=True):
            checkpoint.fill({TABLES: tensor_slices})
        for a, b in zip(*read, strict=True):
            yield (TABLES, a.name), a.tensor, b.tensor
    for group, name in shapes:
        if group != TABLES:
            yield (group, name), first.groups[group][name], second.groups[group][name]


def _portions(tables: Mapping[str, tuple[Shape, torch.dtype]]) -> Iterator[list[tuple[str, range]]]:
    """Yields lists of (table, range of rows) to read together."""
    portion: list[tuple[str, range]] = []
    free_bytes = RANGE_BYTES
    for name, (shape, dtype) in tables.items():
        row_bytes, begin = max(1, math.prod(shape[1:]) * dtype.itemsize), 0
        while begin < shape[0]:
            if portion and free_bytes < row_bytes:
                yield portion
                portion, free_bytes = [], RANGE_BYTES
            count = min(shape[0] - begin, max(1, free_bytes // row_bytes))
            portion.append((name, range(begin, begin + count)))
            begin, free_bytes = begin + count, free_bytes - count * row_bytes
    if portion:
        yield portion


def _empty_slices(
    portion: list[tuple[str, range]], tables: Mapping[str, tuple[Shape, torch.dtype]]
) -> list[TensorSlice]:
    tensor_slices: list[TensorSlice] = []
    for name, rows in portion:
        shape, dtype = tables[name]
        values = torch.empty((len(rows), *shape[1:]), dtype=dtype)
        tensor_slices.append(TensorSlice(name, values, shape, (rows.start, *(0 for _ in shape[1:]))))
    return tensor_slices


def _shapes(checkpoint: CheckpointReader) -> dict[TensorKey, Shape]:
    return {(group, name): shape for group in GROUPS for name, shape in (checkpoint.shapes(group) or {}).items()}
