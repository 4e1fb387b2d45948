"""The exchange within a host through shared memory: each rank writes what it sends once, and the others read theirs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ziggurat.parallel.shared_memory import SharedSlots, as_tensor


class HostMemory:
    """Exchanges flat tensors between the ranks of a host. All of them call each method in the same order.

    Args:
        slots: the shared memory of these ranks, with two slots each.
    """

    def __init__(self, slots: SharedSlots) -> None:
        self._slots = slots

    def exchange_equal(self, sent: Tensor, sizes: Sequence[int]) -> Tensor:
        """Sends an equal part of a tensor to each rank; returns the parts received, ``sizes`` elements long."""
        own = self._slots.rank
        firsts = [own * size for size in sizes]
        return self._exchange(sent, firsts, sizes, [self._slots.ranks * size for size in sizes])

    def return_parts(self, sent: Tensor, sizes: Sequence[int]) -> Tensor:
        """Sends parts, ``sizes`` elements long on each rank, to the ranks; returns those received, of equal length."""
        own, ranks = self._slots.rank, self._slots.ranks
        return self._exchange(sent, [sum(sizes[:own])] * ranks, [sizes[own]] * ranks, [sum(sizes)] * ranks)

    def _exchange(self, sent: Tensor, firsts: Sequence[int], sizes: Sequence[int], totals: Sequence[int]) -> Tensor:
        """Returns of each rank's tensor, ``totals`` long, the elements from a first one on."""
        slots, turn, width = self._slots, self._slots.begin_turn(), sent.element_size()
        as_tensor(slots.write_buffer(turn, sent.nbytes), sent.dtype).copy_(sent)
        slots.publish(turn)
        slots.wait(turn)
        output = sent.new_empty(sum(sizes))
        parts = output.split(list(sizes))
        for rank, (part, first, total) in enumerate(zip(parts, firsts, totals, strict=True)):
            theirs = sent if rank == slots.rank else as_tensor(slots.read(turn, rank, width * total), sent.dtype)
            part.copy_(theirs[first : first + len(part)])
        return output
