"""Ranks of one host exchange pooled rows, and their gradients, through memory that they share.

The same numbers as TorchRec's all-to-all, bit for bit, by another way (`parallel/shared_memory.py`); and the features
of all ranks come together in the order that is asked for, with no copy of their own for that.

Shape legend: G rows of the global batch, B of this rank's part, N ranks, D_r columns that rank r looks up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torchrec.distributed.types import Awaitable, NoWait

from ziggurat.parallel.shared_memory import SharedSlots, floats


class HostExchange(nn.Module):
    """Stands where TorchRec's all-to-all of pooled rows was: from all rows of our tables to our rows of all tables.

    Args:
        widths: of the features that each rank looks up, in its order.
        order: the place of each of these features, counted over all ranks, in the output; default: as they come.
        slots: two, of all ranks.
        callbacks: what TorchRec does with the output.
    """

    def __init__(
        self,
        widths: Sequence[Sequence[int]],
        order: Sequence[int] | None,
        slots: SharedSlots,
        callbacks: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        self._columns = [sum(each) for each in widths]
        self._runs = _runs(widths, order)
        self._callbacks = tuple(callbacks)
        self._slots = slots

    def forward(self, local_GD: Tensor, context: Any = None) -> Awaitable[Tensor]:
        """(G, D_rank) -> (B, sum of D_r)."""
        sizes = list(getattr(context, "batch_size_per_rank", None) or [])
        if not sizes:
            sizes = [len(local_GD) // self._slots.ranks] * self._slots.ranks
        output: Tensor = cast("Any", _Exchange.apply)(local_GD, self, sizes)
        for callback in self._callbacks:
            output = callback(output)
        return NoWait(output)

    def rows(self, local_GD: Tensor, sizes: Sequence[int]) -> Tensor:
        """Our rows of the batch, with the columns of all ranks."""
        slots, own = self._slots, self._slots.rank
        turn, parts = slots.begin(), local_GD.split(list(sizes))
        mine = floats(slots.written(turn, local_GD.nbytes)).view_as(local_GD).split(list(sizes))
        for rank, part in enumerate(parts):
            if rank != own:
                mine[rank].copy_(part)
        slots.arrive(turn)
        slots.meet(turn)
        output_BD = local_GD.new_empty(sizes[own], sum(self._columns))
        for rank, (runs, width) in enumerate(zip(self._runs, self._columns, strict=True)):
            theirs = floats(slots.read(turn, rank, 4 * sum(sizes) * width)).view(sum(sizes), width)
            source = parts[own] if rank == own else theirs.split(list(sizes))[own]
            for at, to, columns in runs:
                output_BD[:, to : to + columns].copy_(source[:, at : at + columns])
        return output_BD

    def gradients(self, grad_BD: Tensor, sizes: Sequence[int]) -> Tensor:
        """The gradients of all rows of our tables, meant over the ranks as TorchRec does it."""
        slots, own = self._slots, self._slots.rank
        turn, widths = slots.begin(), self._columns
        mine = floats(slots.written(turn, 4 * sizes[own] * sum(widths))).split([sizes[own] * each for each in widths])
        output_GD = grad_BD.new_empty(sum(sizes), widths[own])
        blocks = output_GD.split(list(sizes))
        for rank, runs in enumerate(self._runs):
            to_rank = blocks[own] if rank == own else mine[rank].view(sizes[own], widths[rank])
            for at, to, columns in runs:
                torch.div(grad_BD[:, to : to + columns], slots.ranks, out=to_rank[:, at : at + columns])
        slots.arrive(turn)
        slots.meet(turn)
        for rank, block in enumerate(blocks):
            if rank != own:
                theirs = floats(slots.read(turn, rank, 4 * sizes[rank] * sum(widths[: own + 1])))
                block.copy_(theirs[sizes[rank] * sum(widths[:own]) :].view_as(block))
        return output_GD


class _Exchange(Function):
    @staticmethod
    def forward(ctx: Any, local_GD: Tensor, exchange: HostExchange, sizes: Sequence[int]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        ctx.exchange, ctx.sizes = exchange, sizes
        return exchange.rows(local_GD, sizes)

    @staticmethod
    def backward(ctx: Any, grad_BD: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.exchange.gradients(grad_BD, ctx.sizes), None, None


def _runs(widths: Sequence[Sequence[int]], order: Sequence[int] | None) -> list[list[tuple[int, int, int]]]:
    """For each rank: (first column of its own, first column of the output, how many), of neighbours in both together.

    Args:
        widths: of the features of each rank.
        order: the place in the output of each feature, counted over all ranks.
    """
    flat = list(itertools.chain.from_iterable(widths))
    places = list(range(len(flat))) if order is None else list(order)
    width_at = [0] * len(flat)
    for width, place in zip(flat, places, strict=True):
        width_at[place] = width
    starts = list(itertools.accumulate(width_at, initial=0))
    place_of = iter(places)
    return [list(_joined((starts[next(place_of)], width) for width in each)) for each in widths]


def _joined(features: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(first column of the output, width) of features side by side -> runs of them that stay side by side."""
    at = 0
    run: tuple[int, int, int] | None = None
    for to, width in features:
        if run is not None and run[1] + run[2] == to:
            run = (run[0], run[1], run[2] + width)
        else:
            if run is not None:
                yield run
            run = (at, to, width)
        at += width
    if run is not None:
        yield run
