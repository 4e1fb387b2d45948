"""Which rank works on which block, and how updates get from there to the others.

One exchange a step carries all of it: of each rank, which parameters have gradients, what failed if something did, and
the updates of its blocks. So an error on one rank ends all of them, with its words, and none waits for an answer.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from ziggurat.core.errors import ConfigError, LostRank
from ziggurat.optim.shampoo.arguments import Precision

_SENT: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
_LARGEST = 120
"""Exponent of the largest scale: a subnormal update's own would be infinite."""
_ALIGNED = 64
_MESSAGE = 1024
"""Bytes for a rank's words."""


def owners(blocks: Sequence[tuple[Sequence[int], bool]], ranks: int) -> list[int]:
    """The rank of each block: the costliest first, to the one that has least to do; ties go to the lower rank.

    Cost is what roots and products take: the cubes of the dimensions, and the block times each of them; of a block
    that has no roots its numbers.

    Args:
        blocks: shape, and whether it has roots.
        ranks: that there are.
    """
    costs = [
        sum(size**3 + 4 * math.prod(shape) * size for size in shape) if turned else 4 * math.prod(shape)
        for shape, turned in blocks
    ]
    loads = [(0, rank) for rank in range(ranks)]
    found = [0] * len(blocks)
    for number in sorted(range(len(blocks)), key=lambda each: -costs[each]):
        load, rank = heapq.heappop(loads)
        found[number] = rank
        heapq.heappush(loads, (load + costs[number], rank))
    return found


@dataclass(frozen=True)
class RankGroups:
    """Those that share the work.

    Attributes:
        group: whose members exchange updates; None: this process alone.
        groups: that there are, each one's ranks; all do the same work.
        number: of this rank's group among them.
        place: of this rank in its group.
    """

    group: dist.ProcessGroup | None
    groups: tuple[tuple[int, ...], ...]
    number: int
    place: int

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of the group."""
        return self.groups[self.number]

    @classmethod
    def alone(cls) -> RankGroups:
        return cls(None, ((0,),), 0, 0)

    @classmethod
    def of(cls, group_size: int | None, within: dist.ProcessGroup | None = None) -> RankGroups:
        """All ranks of this training, in groups of ``group_size``; they call it together.

        Args:
            group_size: None: all of them.
            within: those that train; None: all that there are.

        Raises:
            ConfigError: the size does not divide the ranks.
        """
        if not dist.is_initialized():
            return cls.alone()
        if dist.get_rank(within) < 0:
            raise ConfigError(
                f"shampoo: rank {dist.get_rank()} is not of the process_group",
                "make the optimizer on its members alone",
            )
        if dist.get_world_size(within) == 1 or group_size == 1:
            return cls.alone()
        every, rank = dist.get_process_group_ranks(within or dist.group.WORLD), dist.get_rank(within)
        size = group_size or len(every)
        if len(every) % size:
            raise ConfigError(
                f"shampoo: group_size: {size} does not divide the {len(every)} ranks",
                "choose a divisor, or leave it out: all",
            )
        groups = tuple(tuple(every[first : first + size]) for first in range(0, len(every), size))
        own = dist.new_group(list(groups[rank // size]), use_local_synchronization=True)
        return cls(cast("dist.ProcessGroup", own), groups, rank // size, rank % size)

    def agree(self, told: Mapping[str, str]) -> None:
        """Refuse to begin where ranks differ in what shapes their work; all of them call it.

        Args:
            told: what -> as this rank has it.

        Raises:
            LostRank: naming the first that differs, with two ranks.
        """
        if self.size == 1:
            return
        every: list[Mapping[str, str]] = [told] * self.size
        dist.all_gather_object(every, dict(told), group=self.group)
        for place, other in enumerate(every):
            for name in sorted({*other, *every[0]}):
                first, second = every[0].get(name, "nothing"), other.get(name, "nothing")
                if first != second:
                    raise LostRank(
                        f"shampoo: {name} is {first} on rank {self.members[0]} and {second} on rank "
                        f"{self.members[place]}",
                        "give all ranks the same parameters and settings; ranks that train another model need a "
                        "process_group of their own",
                    )

    def mesh(self, owner: int, device: torch.device) -> DeviceMesh:
        """Of the ranks, one in each group, that hold what ``owner`` holds."""
        return DeviceMesh(device.type, [each[owner] for each in self.groups], _init_backend=False)

    def spread(self, mesh: DeviceMesh, shape: Sequence[int], like: Tensor, held: Tensor | None) -> DTensor:
        """A state on the ranks of a mesh.

        Args:
            mesh: of :meth:`mesh`.
            shape: of the state.
            like: of the state's type, on its device.
            held: the state, where this rank is one of them.
        """
        # A memory of its own, as it seems: torch copies and saves no DTensor whose part begins within another's.
        local = like.new_empty(0) if held is None else torch.from_dlpack(held)
        stride = torch.empty(tuple(shape), device="meta").stride()
        return DTensor.from_local(local, mesh, [Replicate()], run_check=False, shape=torch.Size(shape), stride=stride)

    def same(
        self,
        has_gradient: Sequence[bool],
        rates: Sequence[float],
        error: str | None,
        names: Sequence[str],
        device: torch.device,
    ) -> None:
        """Before they exchange anything else, refuse to go on where a rank has an error, or where ranks differ in
        learning rates (of each group), or in which parameters have gradients; all of them call it.

        Raises:
            LostRank: naming another rank and its error, or the first such group or parameter and the ranks; not on a
                rank that has an error of its own.
        """
        own = torch.frombuffer(bytearray(_head(error, has_gradient, rates)), dtype=torch.uint8).to(device)
        every = own.new_zeros((self.size, len(own)))
        dist.all_gather_single(every.view(-1), own, group=self.group)
        if error is None:
            self.check(every, names, len(rates))

    def check(self, heads: Tensor, names: Sequence[str], groups: int) -> None:
        """As :meth:`same`, of what every rank said, and more behind it: uint8 of (ranks, …)."""
        heads = heads.cpu()
        for place, head in enumerate(heads):
            if head[0]:
                text = bytes(head[1:_MESSAGE].tolist()).rstrip(b"\0").decode(errors="replace")
                raise LostRank(f"shampoo, rank {self.members[place]}: {text}")
        begin = _MESSAGE + len(names)
        every_RG = heads[:, begin : begin + 8 * groups].contiguous().view(torch.float64)
        for place, group in (every_RG != every_RG[0]).nonzero().tolist()[:1]:
            raise LostRank(
                f"shampoo: the learning rate of group {group} is {float(every_RG[0, group])} on rank "
                f"{self.members[0]} and {float(every_RG[place, group])} on rank {self.members[place]}",
                "have all ranks follow one schedule",
            )
        every_RN = heads[:, _MESSAGE:begin]
        differing = (every_RN != every_RN[0]).any(0).nonzero()
        if not len(differing):
            return
        number, members = int(differing[0]), self.members
        with_it = [members[place] for place in range(self.size) if every_RN[place, number]]
        without = [each for each in members if each not in with_it]
        raise LostRank(
            f"shampoo: parameter {names[number]!r} has a gradient on rank {_listed(with_it)} and none on rank "
            f"{_listed(without)}",
            "have every rank compute its loss from the same parameters, or freeze this one on all",
        )


def _head(error: str | None, has_gradient: Sequence[bool], rates: Sequence[float]) -> bytes:
    """What a rank says first: whether it failed, why, which parameters have gradients, and each group's learning
    rate."""
    text = (error or "").encode()[: _MESSAGE - 1]
    return (
        bytes([error is not None])
        + text
        + bytes(_MESSAGE - 1 - len(text))
        + bytes(has_gradient)
        + struct.pack(f"{len(rates)}d", *rates)
    )


class Exchange:
    """Updates of all blocks, from their owners to all ranks of a group.

    Args:
        ranks: of the group.
        shapes: of each rank, its blocks', as they are handed over.
        precision: in which they travel. fp16 has a scale for each block, a power of two.
        names: of the parameters.
        groups: that these are in.
        like: of the updates' type, on their device.
    """

    def __init__(
        self,
        ranks: RankGroups,
        shapes: Sequence[Sequence[tuple[int, ...]]],
        precision: Precision,
        names: Sequence[str],
        groups: int,
        like: Tensor,
    ) -> None:
        self._ranks, self._shapes, self._names, self._groups = ranks, shapes, names, groups
        self._sent = _SENT.get(precision, like.dtype)
        self._scaled = precision == "fp16"
        mask = _up(len(names) + 8 * groups)
        scales = _up(4 * max(len(each) for each in shapes)) if self._scaled else 0
        self._scales, self._data = _MESSAGE + mask, _MESSAGE + mask + scales
        numbers = max(sum(math.prod(shape) for shape in each) for each in shapes)
        length = self._data + _up(numbers * self._sent.itemsize)
        self._own = torch.zeros(length, dtype=torch.uint8, device=like.device)
        self._all = torch.zeros((ranks.size, length), dtype=torch.uint8, device=like.device)

    def __call__(
        self, updates: Sequence[Tensor], has_gradient: Sequence[bool], rates: Sequence[float], error: str | None
    ) -> list[list[Tensor]]:
        """Of each rank, the updates of its blocks.

        Args:
            updates: of this rank's blocks, in the order of ``shapes``; not looked at where there was an error.
            has_gradient: of each parameter.
            rates: the learning rate of each group.
            error: why there are none, for the others.

        Raises:
            LostRank: another rank had an error, or ranks differ in learning rates or in which parameters have
                gradients.
        """
        self._write(updates, _head(error, has_gradient, rates), error is not None)
        dist.all_gather_single(self._all.view(-1), self._own, group=self._ranks.group)
        if error is None:
            self._ranks.check(self._all[:, : self._scales], self._names, self._groups)
        return [self._read(place) for place in range(self._ranks.size)]

    def _write(self, updates: Sequence[Tensor], head: bytes, has_failed: bool) -> None:
        self._own[: len(head)].copy_(torch.frombuffer(bytearray(head), dtype=torch.uint8))
        if has_failed or not updates:
            return
        if self._scaled:
            scales = self._scales_of(self._own, len(updates))
            largest = torch.stack([each.abs().amax() for each in updates]).float()
            scales.copy_(torch.ldexp(torch.ones_like(largest), -torch.frexp(largest).exponent.clamp(min=-_LARGEST)))
            updates = [each * scale for each, scale in zip(updates, scales, strict=True)]
        torch._foreach_copy_(self._parts(self._own, self._ranks.place), list(updates))  # pyright: ignore[reportPrivateUsage]

    def _read(self, place: int) -> list[Tensor]:
        parts = self._parts(self._all[place], place)
        if not self._scaled or not parts:
            return parts
        scales = self._scales_of(self._all[place], len(parts))
        return [each.float() / scale for each, scale in zip(parts, scales, strict=True)]

    def _scales_of(self, buffer: Tensor, count: int) -> Tensor:
        return buffer[self._scales : self._data].view(torch.float32)[:count]

    def _parts(self, buffer: Tensor, place: int) -> list[Tensor]:
        shapes = self._shapes[place]
        sizes = [math.prod(shape) for shape in shapes]
        flat = buffer[self._data :].view(self._sent)[: sum(sizes)]
        return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)] if sizes else []


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
