"""The exchanges of the tower transform, within a host and between peers, and their gradients.

The ranks 0 to G−1 are numbered host by host, L to a host; H = G/L hosts. Peers are the ranks of one number l = g mod L
on all hosts. Each rank has b rows of the global batch. Before the exchange within a host, a rank's G blocks of rows are
ordered for the peers: by (g mod L, g div L). (The paper prints g mod T, which is the same only where T = L.)

A rank's loss is a mean over its own rows, and gradients are means over the ranks: those of tables are divided by H in
the exchange between peers and by L in that within the host; those of a tower's module by H here, and by L where
:class:`HostRanks` averages them.

Shape legend: G ranks, L ranks of a host, H hosts, b rows of a rank, W floats that this rank sends a row, V that it
receives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from ziggurat.embeddings.tower_transform.host_memory import HostMemory
from ziggurat.embeddings.wire import Kind, Wire
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.groups import new_group
from ziggurat.parallel.shared_memory import slots_of_host
from ziggurat.parallel.world import World


class HostRanks:
    """The process groups of this rank's host and of its peers. All ranks make it together.

    Args:
        world: the ranks.
        wire: the precision in which rows and gradients are sent, by either exchange; by default that of the tensors.
        memory: the config by which CPU ranks of a host exchange through shared memory; None for sockets.

    Attributes:
        world: the ranks.
        host: H numbers: which host this is.
        local: which rank of its host this is.
        within: the group of its host.
        peers: the group of its peers.
    """

    def __init__(self, world: World, wire: Wire | None = None, memory: ParallelConfig | None = None) -> None:
        self.world, self._wire = world, wire
        self.host, self.local = divmod(world.rank, world.local_size)
        self.within = _group_of(world, [_of_host(world, host) for host in range(world.hosts)])
        self.peers = _group_of(world, [_peers(world, local) for local in range(world.local_size)])
        slots = None if memory is None else slots_of_host(memory, world, torch.device("cpu"), self.within)
        self._memory = None if slots is None else HostMemory(slots)

    def exchange_within(self, sent: Tensor, sizes: Sequence[int]) -> Tensor:
        """Sends an equal part of a flat tensor to each rank of the host; returns the parts received, ``sizes`` long."""
        encoded, times = self._encode(sent, "rows")
        if self._memory is not None:
            received = self._memory.exchange_equal(encoded, [times * size for size in sizes])
        else:
            part = sent.numel() // self.world.local_size
            received = self._send(encoded, [part] * self.world.local_size, sizes, times, self.within)
        return self._decode(received, "rows")

    def return_within(self, sent: Tensor, sizes: Sequence[int], received: int) -> Tensor:
        """Sends parts, ``sizes`` long on each rank, to the ranks of the host; returns those received, all ``received``
        long."""
        encoded, times = self._encode(sent, "gradients")
        if self._memory is not None:
            found = self._memory.return_parts(encoded, [times * size for size in sizes])
        else:
            found = self._send(encoded, sizes, [received] * self.world.local_size, times, self.within)
        return self._decode(found, "gradients")

    def exchange_with_peers(self, sent: Tensor, sizes: Sequence[int], received: Sequence[int], kind: Kind) -> Tensor:
        """Sends parts of a flat tensor to the peers, by host; returns the parts received."""
        encoded, times = self._encode(sent, kind)
        return self._decode(self._send(encoded, sizes, received, times, self.peers), kind)

    @torch.no_grad()
    def average_within(self, gradients: Iterable[Tensor]) -> None:
        """Replaces tensors by their means over the ranks of the host."""
        tensors = list(gradients)
        if not tensors or self.world.local_size == 1:
            return
        flat = torch.cat([each.reshape(-1) for each in tensors])
        dist.all_reduce(flat, group=self.within)
        flat.div_(self.world.local_size)
        for each, mean in zip(tensors, flat.split([each.numel() for each in tensors]), strict=True):
            each.copy_(mean.view_as(each))

    @torch.no_grad()
    def sum_of_hosts(self, value: Tensor) -> Tensor:
        """Returns the sum over the hosts of a number that the ranks of a host have in common, added host by host."""
        parts = [torch.zeros_like(value) for _ in range(self.world.hosts)]
        dist.all_gather(parts, value, group=self.peers)
        return torch.stack(parts).sum(dim=0)

    def _encode(self, sent: Tensor, kind: Kind) -> tuple[Tensor, int]:
        """Returns what is sent for a tensor, and how many elements of it stand for a value."""
        if self._wire is None:
            return sent.contiguous(), 1
        return self._wire.encode(sent.contiguous(), kind), self._wire.elements(kind)

    def _decode(self, received: Tensor, kind: Kind) -> Tensor:
        return received if self._wire is None else self._wire.decode(received, kind)

    def _send(
        self, encoded: Tensor, sizes: Sequence[int], received: Sequence[int], times: int, group: dist.ProcessGroup
    ) -> Tensor:
        """Sends parts to the ranks of a group; the sizes of what is sent and received are in values."""
        output = encoded.new_empty(times * sum(received))
        parts = [times * size for size in received], [times * size for size in sizes]
        dist.all_to_all_single(output, encoded, *parts, group=group)
        return output


def peer_order(rows_GbW: Tensor, world: World) -> Tensor:
    """Orders the blocks of the ranks by (g mod L, g div L): (G·b, W), that of rank 0 first → (L, H·b, W)."""
    rows, width = rows_GbW.shape  # no -1 below: a rank without tables has rows of no floats
    blocks = rows_GbW.reshape(world.hosts, world.local_size, rows // world.size, width)
    return blocks.transpose(0, 1).flatten(1, 2)


def rank_order(rows_LHbW: Tensor, world: World) -> Tensor:
    """The inverse of :func:`peer_order`."""
    local, rows, width = rows_LHbW.shape
    blocks = rows_LHbW.reshape(local, world.hosts, rows // world.hosts, width)
    return blocks.transpose(0, 1).reshape(local * rows, width)


class WholeRows:
    """The exchange within the host for tables that are on one rank each: (G·b, W) → (H·b, V).

    Args:
        ranks: the groups.
        widths: the floats that each rank of the host looks up for a row.
    """

    def __init__(self, ranks: HostRanks, widths: Sequence[int]) -> None:
        self.ranks, self.widths = ranks, tuple(widths)

    def __call__(self, local_GbW: Tensor) -> Tensor:
        return cast("Any", _WithinHost.apply)(local_GbW, self)

    def rows(self, local_GbW: Tensor) -> Tensor:
        """Returns what the tower's tables hold for the rows of this rank and of its peers, the first host's first."""
        world = self.ranks.world
        ordered = peer_order(local_GbW, world)
        rows = ordered.shape[1]
        received = self.ranks.exchange_within(ordered.reshape(-1), [rows * width for width in self.widths])
        parts = received.split([rows * width for width in self.widths])
        return torch.cat([part.view(rows, width) for part, width in zip(parts, self.widths, strict=True)], dim=1)

    def gradients(self, grad_HbV: Tensor) -> Tensor:
        """Returns the gradients of the rows of this rank's tables, divided by L."""
        world, rows = self.ranks.world, grad_HbV.shape[0]
        own = self.widths[self.ranks.local]
        parts = [part.reshape(-1) for part in grad_HbV.split(self.widths, dim=1)]
        received = self.ranks.return_within(torch.cat(parts), [len(part) for part in parts], rows * own)
        return rank_order(received.view(world.local_size, rows, own), world).div_(world.local_size)


class SummedRows:
    """The exchange within the host for tables that are split by rows: partial sums (L·H·b, W) → sums (H·b, W).

    TorchRec's lookup of such tables has ordered its blocks for the peers already. The parts are sent as by a
    reduce-scatter and added rank by rank, so that the sum is the same to the bit in any run.
    """

    def __init__(self, ranks: HostRanks) -> None:
        self.ranks = ranks

    def __call__(self, local_GbW: Tensor) -> Tensor:
        return cast("Any", _WithinHost.apply)(local_GbW, self)

    def rows(self, local_GbW: Tensor) -> Tensor:
        """Returns the sums for the rows of this rank and of its peers."""
        count = self.ranks.world.local_size
        rows, width = local_GbW.shape
        part = rows // count * width
        parts = self.ranks.exchange_within(local_GbW.reshape(-1), [part] * count).split([part] * count)
        total = parts[0].clone()
        for each in parts[1:]:
            total += each
        return total.view(rows // count, width)

    def gradients(self, grad_HbW: Tensor) -> Tensor:
        """Returns the gradients of the partial sums, divided by L."""
        count = self.ranks.world.local_size
        rows, width = grad_HbW.shape
        flat = grad_HbW.reshape(-1)
        received = self.ranks.return_within(flat.repeat(count), [len(flat)] * count, len(flat))
        return received.view(count * rows, width).div_(count)


class PeerExchange:
    """The exchange between the peers: the outputs of this host's towers for H·b rows → those of all towers for b rows.

    Args:
        ranks: the groups.
        widths: the floats that the towers of each host return for a row.
    """

    def __init__(self, ranks: HostRanks, widths: Sequence[int]) -> None:
        self.ranks, self.widths = ranks, tuple(widths)

    def __call__(self, own_HbW: Tensor) -> Tensor:
        """(H·b, W), the rows of the first host's peer first → (b, sum of widths), the first host's towers first."""
        return cast("Any", _BetweenPeers.apply)(own_HbW, self)

    def rows(self, own_HbW: Tensor) -> Tensor:
        """Returns the outputs of all towers for this rank's rows."""
        hosts = self.ranks.world.hosts
        rows = own_HbW.shape[0] // hosts
        sizes = [rows * width for width in self.widths]
        received = self.ranks.exchange_with_peers(own_HbW.reshape(-1), [rows * own_HbW.shape[1]] * hosts, sizes, "rows")
        parts = [part.view(rows, width) for part, width in zip(received.split(sizes), self.widths, strict=True)]
        return torch.cat(parts, dim=1)

    def gradients(self, grad_bV: Tensor) -> Tensor:
        """Returns the gradients of this host's outputs, divided by H."""
        hosts, rows = self.ranks.world.hosts, grad_bV.shape[0]
        own = self.widths[self.ranks.host]
        parts = [part.reshape(-1) for part in grad_bV.split(self.widths, dim=1)]
        sizes = [len(part) for part in parts]
        received = self.ranks.exchange_with_peers(torch.cat(parts), sizes, [rows * own] * hosts, "gradients")
        return received.view(hosts * rows, own).div_(hosts)


class _WithinHost(Function):
    @staticmethod
    def forward(ctx: Any, local_GbW: Tensor, exchange: WholeRows | SummedRows) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        ctx.exchange = exchange
        return exchange.rows(local_GbW)

    @staticmethod
    def backward(ctx: Any, grad_HbV: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.exchange.gradients(grad_HbV), None


class _BetweenPeers(Function):
    @staticmethod
    def forward(ctx: Any, own_HbW: Tensor, exchange: PeerExchange) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        ctx.exchange = exchange
        return exchange.rows(own_HbW)

    @staticmethod
    def backward(ctx: Any, grad_bV: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.exchange.gradients(grad_bV), None


def _of_host(world: World, host: int) -> list[int]:
    return [host * world.local_size + local for local in range(world.local_size)]


def _peers(world: World, local: int) -> list[int]:
    return [host * world.local_size + local for host in range(world.hosts)]


def _group_of(world: World, groups: Sequence[Sequence[int]]) -> dist.ProcessGroup:
    """Creates the groups, as torch requires on every rank; returns that of this rank."""
    made = [(ranks, new_group(ranks)) for ranks in groups]
    return next(group for ranks, group in made if world.rank in ranks)
