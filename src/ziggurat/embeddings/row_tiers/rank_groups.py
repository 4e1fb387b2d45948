"""The exchanges of row tiers: in the host, between hosts, in the world. They start at once and are waited for later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ziggurat.embeddings.row_tiers.traffic import Purpose, TierTraffic
from ziggurat.embeddings.tower_transform.exchanges import HostRanks
from ziggurat.parallel.world import World


@dataclass(frozen=True, slots=True)
class InFlight:
    """A tensor that other ranks are sending.

    Attributes:
        received: where it arrives.
        work: torch's handle; None if nothing has to be waited for.
    """

    received: Tensor
    work: Any = None

    def wait(self) -> Tensor:
        """Returns the tensor once it is complete."""
        if self.work is not None:
            self.work.wait()
        return self.received


@dataclass(frozen=True, slots=True)
class Gathering:
    """Rows that all ranks of a group send to all, each padded to the longest.

    Attributes:
        rows: the padded rows of all ranks.
        sizes: the number of rows of each rank.
    """

    rows: InFlight
    sizes: Sequence[int]

    def wait(self) -> list[Tensor]:
        """Returns the rows of each rank."""
        longest = max(self.sizes)
        blocks = self.rows.wait().split(longest) if longest else [self.rows.received] * len(self.sizes)
        return [block[:size] for block, size in zip(blocks, self.sizes, strict=True)]


class RankGroup:
    """Some ranks and the exchanges between them. All of these ranks call each method in the same order.

    Args:
        ranks: their numbers in the world, ascending.
        group: their process group; None for the whole world's.
        world: all ranks.
        traffic: counts what is sent.

    Attributes:
        size: how many ranks they are.
        own: which of them is this one.
    """

    def __init__(
        self, ranks: Sequence[int], group: dist.ProcessGroup | None, world: World, traffic: TierTraffic
    ) -> None:
        self.size, self.own = len(ranks), list(ranks).index(world.rank)
        self._group, self._traffic = group, traffic
        hosts = [rank // world.local_size for rank in ranks]
        others = [(place, host) for place, host in enumerate(hosts) if place != self.own]
        self._near = [place for place, host in others if host == hosts[self.own]]
        self._far = [place for place, host in others if host != hosts[self.own]]

    def send(
        self,
        purpose: Purpose,
        sent: Tensor,
        sizes: Sequence[int],
        received: Sequence[int],
        into: Tensor | None = None,
    ) -> InFlight:
        """Starts to send rows to the ranks, ``sizes`` of them in order; ``received`` come from each.

        They arrive in ``into`` if it is given, has their type, and this is not the only rank.
        """
        row = sent[0:1].nbytes if len(sent) else 0
        near, far = (sum(sizes[place] for place in places) for places in (self._near, self._far))
        self._traffic.sent(purpose, near * row, far * row)
        if self.size == 1:
            return InFlight(sent)
        if into is None or into.dtype != sent.dtype:
            into = sent.new_empty(sum(received), *sent.shape[1:])
        work = dist.all_to_all_single(
            into, sent.contiguous(), list(received), list(sizes), group=self._group, async_op=True
        )
        return InFlight(into, work)

    def send_equal(self, sent: Tensor, purpose: Purpose | None = None, counted: int = 0) -> InFlight:
        """Starts to send row k of ``sent`` to rank k; row k of the result comes from rank k.

        Of each row, ``counted`` bytes are counted for ``purpose``; numbers of ids, which go first, are not.
        """
        if purpose is not None:
            self._traffic.sent(purpose, len(self._near) * counted, len(self._far) * counted)
        if self.size == 1:
            return InFlight(sent)
        output = torch.empty_like(sent)
        return InFlight(output, dist.all_to_all_single(output, sent, group=self._group, async_op=True))

    def gather(self, purpose: Purpose, own: Tensor, sizes: Sequence[int]) -> Gathering:
        """Starts to send this rank's rows to all; rank k has ``sizes[k]``, which all know."""
        longest = max(sizes)
        if self.size == 1 or not longest:
            return Gathering(InFlight(own), sizes)
        sent = own if len(own) == longest else torch.cat([own, own.new_zeros(longest - len(own), *own.shape[1:])])
        self._traffic.sent(purpose, len(self._near) * sent.nbytes, len(self._far) * sent.nbytes)
        output = sent.new_empty(longest * self.size, *sent.shape[1:])
        work = dist.all_gather_into_tensor(  # pyright: ignore[reportDeprecated] - as TorchRec calls it
            output, sent.contiguous(), group=self._group, async_op=True
        )
        return Gathering(InFlight(output, work), sizes)


class RankGroups:
    """The groups of this rank: its host, its peers (the ranks of its number on all hosts), and the world.

    All ranks make it together.

    Attributes:
        hosts: the number of hosts.
        host_ranks: which ranks of the world are on this host.
    """

    def __init__(self, world: World, traffic: TierTraffic) -> None:
        self.hosts = world.hosts
        hosts = HostRanks(world)
        first = hosts.host * world.local_size
        self.host_ranks = slice(first, first + world.local_size)
        self.host = RankGroup(range(first, first + world.local_size), hosts.within, world, traffic)
        self.peers = RankGroup(range(hosts.local, world.size, world.local_size), hosts.peers, world, traffic)
        self.world = RankGroup(range(world.size), None, world, traffic)
