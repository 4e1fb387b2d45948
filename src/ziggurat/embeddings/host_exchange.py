"""Exchange of pooled rows and their gradients between the ranks of one host, through shared memory.

The results equal those of TorchRec's all-to-all bit for bit (`parallel/shared_memory.py` is the transport). The
features of all ranks are written in the requested order, which takes no extra copy.

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

from ziggurat.parallel.shared_memory import SharedSlots, as_tensor


class HostExchange(nn.Module):
    """Replaces TorchRec's all-to-all of pooled rows: all rows of this rank's tables -> this rank's rows of all tables.

    Args:
        widths: for each rank, the widths of the features that it looks up, in its order.
        order: the output position of each of these features, counted over all ranks; by default their own order.
        slots: the shared memory of all ranks, with two slots each.
        callbacks: TorchRec's callbacks on the output.
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
        """Exchanges (G, D_rank) -> (B, sum of D_r)."""
        sizes = list(getattr(context, "batch_size_per_rank", None) or [])
        if not sizes:
            sizes = [len(local_GD) // self._slots.ranks] * self._slots.ranks
        output: Tensor = cast("Any", _Exchange.apply)(local_GD, self, sizes)
        for callback in self._callbacks:
            output = callback(output)
        return NoWait(output)

    def rows(self, local_GD: Tensor, sizes: Sequence[int]) -> Tensor:
        """Returns this rank's rows of the batch, with the columns of all ranks."""
        slots, own = self._slots, self._slots.rank
        turn, parts = slots.begin_turn(), local_GD.split(list(sizes))
        mine = as_tensor(slots.write_buffer(turn, local_GD.nbytes)).view_as(local_GD).split(list(sizes))
        for rank, part in enumerate(parts):
            if rank != own:
                mine[rank].copy_(part)
        slots.publish(turn)
        slots.wait(turn)
        output_BD = local_GD.new_empty(sizes[own], sum(self._columns))
        for rank, (runs, width) in enumerate(zip(self._runs, self._columns, strict=True)):
            theirs = as_tensor(slots.read(turn, rank, 4 * sum(sizes) * width)).view(sum(sizes), width)
            source = parts[own] if rank == own else theirs.split(list(sizes))[own]
            for at, to, columns in runs:
                output_BD[:, to : to + columns].copy_(source[:, at : at + columns])
        return output_BD

    def gradients(self, grad_BD: Tensor, sizes: Sequence[int]) -> Tensor:
        """Returns the gradients of all rows for this rank's tables, averaged over the ranks as TorchRec does."""
        slots, own = self._slots, self._slots.rank
        turn, widths = slots.begin_turn(), self._columns
        mine = as_tensor(slots.write_buffer(turn, 4 * sizes[own] * sum(widths))).split(
            [sizes[own] * each for each in widths]
        )
        output_GD = grad_BD.new_empty(sum(sizes), widths[own])
        blocks = output_GD.split(list(sizes))
        for rank, runs in enumerate(self._runs):
            to_rank = blocks[own] if rank == own else mine[rank].view(sizes[own], widths[rank])
            for at, to, columns in runs:
                torch.div(grad_BD[:, to : to + columns], slots.ranks, out=to_rank[:, at : at + columns])
        slots.publish(turn)
        slots.wait(turn)
        for rank, block in enumerate(blocks):
            if rank != own:
                theirs = as_tensor(slots.read(turn, rank, 4 * sizes[rank] * sum(widths[: own + 1])))
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
    """Returns the column ranges to copy for each rank, with features merged that are adjacent in source and output.

    Args:
        widths: for each rank, the widths of its features.
        order: the output position of each feature, counted over all ranks.

    Returns:
        For each rank: (first column at the rank, first column of the output, number of columns).
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
    """Merges adjacent features, given as (first column of the output, width), that stay adjacent in the output."""
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
