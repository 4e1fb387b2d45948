"""Sums the gradients of copied rows over all ranks, so that every copy takes the same step.

The exchange is hierarchical. Each rank of a host sums the gradients of a range of the rows over that host; it exchanges
the sums with its peers on the other hosts; and those of rows that every rank holds go back to all ranks of the host.
Only gradients of rows that a rank has touched are sent. Which these are is known before, from flags of one bit a row:
those of rows on every rank travel to all ranks with the numbers of ids, those of rows on every host to the peers while
rows travel. So gradients need no sizes and no indices.

Between N hosts there are two ways, and all ranks know from the flags which is shorter. Either each host sends its sums
to all others, u·(N−1) rows; or each host completes an N-th of the sums and sends these back, (u + v)·(N−1)/N rows. Here
u is the most that a host has touched, and v what all have touched together. An all-reduce of all rows would send
2·(N−1)/N times their number, which is never fewer, since rows include those that nobody touched.

Sums are added in the order of the hosts, by every rank that needs them, so that copies agree to the bit.

Shape legend: G ranks, L of a host, N hosts, P flags of a range, p = P/8 bytes of them, u rows touched by this host, v
by any, D dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ziggurat.embeddings.row_table import add_by_row
from ziggurat.embeddings.row_tiers.distinct_rows import DistinctRows
from ziggurat.embeddings.row_tiers.flags import either, packed, padded, unpacked
from ziggurat.embeddings.row_tiers.rank_groups import Gathering, InFlight, RankGroups
from ziggurat.embeddings.row_tiers.tiered_table import TieredTable
from ziggurat.embeddings.wire import Wire


class CopiedGradients:
    """The gradients of one batch for the copied rows of one table.

    The methods are called in the order in which they are written here, by all ranks. The rows that this rank sums are
    its range of those on every rank, then its range of those on every host.

    Args:
        table: the table.
        groups: the ranks.
        wire: the precision.
        distinct: the rows of the batch.
    """

    def __init__(self, table: TieredTable, groups: RankGroups, wire: Wire, distinct: DistinctRows) -> None:
        self._table, self._groups, self._wire, self._distinct = table, groups, wire, distinct
        self._lengths = [padded(tier.length) for tier in (table.bounds.copied, table.bounds.hosts)]
        self._device = table.copied.weight_RD.device
        self._received: InFlight | None = None

    @property
    def flag_bytes(self) -> int:
        """Bytes of this rank's flags for the rows on every rank."""
        return self._groups.host.size * self._lengths[0] // 8

    def flags(self) -> Tensor:
        """Returns which of the rows on every rank this rank has touched, as bytes, the ranges one after another."""
        bounds, length = self._table.bounds.copied, self._lengths[0]
        flags = torch.zeros(bounds.parts, length, dtype=torch.bool, device=self._device)
        if length:
            positions_U = self._distinct.positions_U[: sum(self._distinct.copied)].long()
            part_U = positions_U // bounds.length
            flags[part_U, positions_U - part_U * bounds.length] = True
        return packed(flags.view(-1))

    def take_flags(self, bits: Tensor) -> None:
        """Takes the flags of all ranks, (G, bytes)."""
        groups = self._groups
        # As bits, an eighth of their size as flags: there are as many of each row as ranks.
        bits_GLp = bits.unflatten(1, (groups.host.size, self._lengths[0] // 8))
        of_own_NLp = bits_GLp[:, groups.host.own].unflatten(0, (groups.hosts, groups.host.size))
        self._range_LP = unpacked(either(bits_GLp))
        self._copied_LP = unpacked(bits_GLp[groups.host_ranks, groups.host.own])
        self._copied_NP = unpacked(torch.stack([either(each_Lp) for each_Lp in of_own_NLp]))

    def send_flags(self, host_places: Tensor) -> None:
        """Tells the peers which of the rows on every host this host has touched.

        Args:
            host_places: the places that the ranks of this host look up in this rank's range of the second tier.
        """
        self._host_places = host_places
        flags_P = torch.zeros(self._lengths[1], dtype=torch.bool, device=self._device)
        flags_P[host_places] = True
        peers = self._groups.peers
        self._peer_flags: Gathering | None = None
        if self._lengths[1]:
            self._peer_flags = peers.gather("copies", packed(flags_P[None]), [1] * peers.size)

    def wait(self) -> None:
        """Waits for the flags; for a batch without a backward pass this is the last call."""
        parts = [self._copied_NP]
        if self._peer_flags is not None:
            parts.append(torch.cat([unpacked(flags) for flags in self._peer_flags.wait()]))
        self._touched_NP = torch.cat(parts, dim=1)
        self._union_P = self._touched_NP.any(dim=0)

    def send(self, copied_UD: Tensor, host_UD: Tensor, host_received: Sequence[int]) -> None:
        """Sends this rank's gradients to the ranks of the host that sum them.

        Args:
            copied_UD, host_UD: the gradients of the distinct rows of the first and second tier.
            host_received: how many rows of the second tier each rank of the host asked of this one.
        """
        distinct = self._distinct
        blocks = zip(copied_UD.split(distinct.copied), host_UD.split(distinct.hosts), strict=True)
        grads = torch.cat([part for pair in blocks for part in pair])
        sizes = [first + second for first, second in zip(distinct.copied, distinct.hosts, strict=True)]
        copied = self._copied_LP.sum(dim=1).tolist()
        received = [first + second for first, second in zip(copied, host_received, strict=True)]
        second = (self._lengths[0] + self._host_places).split(list(host_received))
        places = zip((flags.nonzero().squeeze(1) for flags in self._copied_LP), second, strict=True)
        self._places = torch.cat([part for pair in places for part in pair])
        self._received = self._groups.host.send("copies", self._encode(grads), sizes, received)

    def send_between(self) -> None:
        """Sums the gradients of the host and sends the sums to the peers."""
        assert self._received is not None
        grads, places = self._decode(self._received), self._places
        peers = self._groups.peers
        own_P = self._touched_NP[peers.own]
        touched_N = self._touched_NP.sum(dim=1).tolist()
        sums_UD = add_by_row(grads.new_zeros(touched_N[peers.own], grads.shape[1]), _slots(own_P)[places], grads)
        sent, union = self._encode(sums_UD), int(self._union_P.sum())
        slots_P = _slots(self._union_P)
        self._slots = [slots_P[flags_P] for flags_P in self._touched_NP]
        self._parts: InFlight | Gathering
        most = max(touched_N)
        self._chunk = -(-union // peers.size) if peers.size * most > most + union else 0
        if not self._chunk:
            self._parts = peers.gather("copies", sent, touched_N)
            return
        edges = torch.arange(peers.size + 1, device=self._device) * self._chunk
        sizes_NN = torch.stack([torch.searchsorted(slots, edges).diff() for slots in self._slots]).tolist()
        self._part_sizes = [sizes[peers.own] for sizes in sizes_NN]
        self._parts = peers.send("copies", sent, sizes_NN[peers.own], self._part_sizes)

    def send_sums(self) -> None:
        """Completes this rank's part of the sums of all hosts and sends it to the peers, if that is shorter."""
        if not self._chunk:
            return
        assert isinstance(self._parts, InFlight)
        peers, union = self._groups.peers, int(self._union_P.sum())
        sizes = [min(self._chunk, max(0, union - part * self._chunk)) for part in range(peers.size)]
        first = peers.own * self._chunk
        own = [slots[(slots >= first) & (slots < first + self._chunk)] - first for slots in self._slots]
        parts = self._decode(self._parts).split(self._part_sizes)
        self._parts = peers.gather("copies", self._encode(_summed(parts, own, sizes[peers.own])), sizes)

    def send_back(self) -> None:
        """Sends the sums of rows that every rank holds to the ranks of the host; those of this host's rows are
        applied."""
        assert isinstance(self._parts, Gathering)
        parts = [self._wire.decode(part, "gradients") for part in self._parts.wait()]
        total = torch.cat(parts) if self._chunk else _summed(parts, self._slots, int(self._union_P.sum()))
        sizes = self._range_LP.sum(dim=1).tolist()
        copied = sizes[self._groups.host.own]
        self._sums = self._groups.host.gather("copies", self._encode(total[:copied]), sizes)
        places = self._union_P.nonzero().squeeze(1)[copied:] - self._lengths[0]
        if len(places):
            self._table.hosts.step(places, total[copied:])

    def apply(self) -> None:
        """Takes the step of the rows that every rank holds."""
        sums_UD = torch.cat([self._wire.decode(part, "gradients") for part in self._sums.wait()])
        part_U, place_U = self._range_LP.nonzero().unbind(dim=1)
        if len(part_U):
            self._table.copied.step(part_U * self._table.bounds.copied.length + place_U, sums_UD)

    def _encode(self, grads: Tensor) -> Tensor:
        return self._wire.encode(grads, "gradients")

    def _decode(self, sent: InFlight) -> Tensor:
        return self._wire.decode(sent.wait(), "gradients")


def _slots(flags_P: Tensor) -> Tensor:
    """Returns for each flag that is set its number among those set."""
    return flags_P.cumsum(dim=0) - 1


def _summed(parts: Sequence[Tensor], slots: Sequence[Tensor], size: int) -> Tensor:
    """Returns the sums (size, D) of each host's rows at their slots, added in the order of the hosts."""
    sums = parts[0].new_zeros(size, parts[0].shape[1])
    for part, at in zip(parts, slots, strict=True):
        sums[at] += part  # a host's slots are distinct
    return sums
