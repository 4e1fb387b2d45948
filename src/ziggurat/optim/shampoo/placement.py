"""Assigns blocks to ranks, and exchanges the blocks' updates between ranks.

One exchange a step carries, for each rank, which parameters have gradients, its error if there was one, and the updates
of its blocks. An error on one rank therefore ends all ranks, with its message, and no rank waits forever.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from ziggurat.core.errors import ConfigError, LostRank
from ziggurat.optim.shampoo.arguments import Precision

_WIRE_TYPES: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
_LARGEST = 120
"""Largest exponent of a scale, since that of a subnormal update would be infinite."""
_ALIGNED = 64
"""Alignment of the message's sections in bytes."""
_MESSAGE_BYTES = 1024
"""Bytes reserved for a rank's error message."""


def owners(blocks: Sequence[tuple[Sequence[int], bool]], ranks: int) -> list[int]:
    """Assigns each block to a rank: the costliest first, to the least loaded rank; ties go to the lower rank.

    The cost of a block is that of its roots and products: the cubes of its dimensions, and the block's size times each
    dimension. The cost of a block without roots is its size.

    Args:
        blocks: for each block its shape, and whether it has roots.
        ranks: number of ranks.
    """
    costs = [
        sum(size**3 + 4 * math.prod(shape) * size for size in shape) if is_preconditioned else 4 * math.prod(shape)
        for shape, is_preconditioned in blocks
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
    """Groups of ranks. The ranks of a group share the work; every group does all of it.

    Attributes:
        group: the process group whose ranks exchange updates; None for a single process.
        groups: the ranks of each group.
        number: index of this rank's group in ``groups``.
        place: index of this rank in its group.
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
        """The ranks of this rank's group."""
        return self.groups[self.number]

    @classmethod
    def alone(cls) -> RankGroups:
        return cls(None, ((0,),), 0, 0)

    @classmethod
    def of(cls, group_size: int | None, within: dist.ProcessGroup | None = None) -> RankGroups:
        """Divides the ranks that train into groups of ``group_size``; all of them call it together.

        Args:
            group_size: ranks in a group; None for all ranks.
            within: process group of the ranks that train; None for all ranks.

        Raises:
            ConfigError: the size does not divide the ranks.
        """
        if not dist.is_initialized():
            return cls.alone()
        if dist.get_rank(within) < 0:
            raise ConfigError(
                f"shampoo: rank {dist.get_rank()} is not in the process_group",
                "make the optimizer only on the group's ranks",
            )
        if dist.get_world_size(within) == 1 or group_size == 1:
            return cls.alone()
        every, rank = dist.get_process_group_ranks(within or dist.group.WORLD), dist.get_rank(within)
        size = group_size or len(every)
        if len(every) % size:
            raise ConfigError(
                f"shampoo: group_size: {size} does not divide the {len(every)} ranks",
                "choose a divisor, or leave group_size out to use all ranks",
            )
        groups = tuple(tuple(every[first : first + size]) for first in range(0, len(every), size))
        own = dist.new_group(list(groups[rank // size]), timeout=_timeout(within), use_local_synchronization=True)
        return cls(cast("dist.ProcessGroup", own), groups, rank // size, rank % size)

    def check_settings_agree(self, described: Mapping[str, str]) -> None:
        """Validates that all ranks have the same parameters and settings; all of them call it.

        Args:
            described: description of a setting or property -> its value on this rank.

        Raises:
            LostRank: naming the first one that differs, with its values on two ranks.
        """
        if self.size == 1:
            return
        every: list[Mapping[str, str]] = [described] * self.size
        dist.all_gather_object(every, dict(described), group=self.group)
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
        """Returns the mesh of the ranks, one of each group, that hold the same blocks as ``owner``."""
        return DeviceMesh(device.type, [each[owner] for each in self.groups], _init_backend=False)

    def spread(self, mesh: DeviceMesh, shape: Sequence[int], like: Tensor, held: Tensor | None) -> DTensor:
        """Returns a state as a DTensor on the ranks of a mesh.

        Args:
            mesh: a mesh from :meth:`mesh`.
            shape: shape of the state.
            like: a tensor with the state's dtype and device.
            held: the state, if this rank holds it; else None.
        """
        # Through DLPack the view looks like a separate allocation: torch cannot copy or save a DTensor whose local part
        # starts inside another tensor's storage.
        local = like.new_empty(0) if held is None else torch.from_dlpack(held)
        stride = torch.empty(tuple(shape), device="meta").stride()
        return DTensor.from_local(local, mesh, [Replicate()], run_check=False, shape=torch.Size(shape), stride=stride)

    def check_same_step(
        self,
        has_gradient: Sequence[bool],
        rates: Sequence[float],
        error: str | None,
        names: Sequence[str],
        device: torch.device,
    ) -> None:
        """Validates, before any other exchange of the step, that all ranks can take the same step.

        No rank may have an error, and all must have the same learning rate for each group and gradients for the same
        parameters. All ranks call it.

        Raises:
            LostRank: naming another rank and its error, or the first group or parameter that differs and the ranks. It
                is not raised on a rank with an error of its own.
        """
        own = torch.frombuffer(bytearray(_header(error, has_gradient, rates)), dtype=torch.uint8).to(device)
        every = own.new_zeros((self.size, len(own)))
        dist.all_gather_single(every.view(-1), own, group=self.group)
        if error is None:
            self.check(every, names, len(rates))

    def check(self, heads: Tensor, names: Sequence[str], groups: int) -> None:
        """Validates the same as :meth:`check_same_step`, given the headers of all ranks.

        Args:
            heads: the messages of all ranks, uint8 (ranks, …); what follows the header is ignored.
            names: names of the parameters.
            groups: number of parameter groups.
        """
        heads = heads.cpu()
        for place, head in enumerate(heads):
            if head[0]:
                text = bytes(head[1:_MESSAGE_BYTES].tolist()).rstrip(b"\0").decode(errors="replace")
                raise LostRank(f"shampoo, rank {self.members[place]}: {text}")
        begin = _MESSAGE_BYTES + len(names)
        every_RG = heads[:, begin : begin + 8 * groups].contiguous().view(torch.float64)
        for place, group in (every_RG != every_RG[0]).nonzero().tolist()[:1]:
            raise LostRank(
                f"shampoo: the learning rate of group {group} is {float(every_RG[0, group])} on rank "
                f"{self.members[0]} and {float(every_RG[place, group])} on rank {self.members[place]}",
                "have all ranks follow one schedule",
            )
        every_RN = heads[:, _MESSAGE_BYTES:begin]
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


def _header(error: str | None, has_gradient: Sequence[bool], rates: Sequence[float]) -> bytes:
    """Returns the header of a rank's message: whether and why it failed, which parameters have gradients, and the
    learning rate of each group."""
    text = (error or "").encode()[: _MESSAGE_BYTES - 1]
    return (
        bytes([error is not None])
        + text
        + bytes(_MESSAGE_BYTES - 1 - len(text))
        + bytes(has_gradient)
        + struct.pack(f"{len(rates)}d", *rates)
    )


class Exchange:
    """Sends the updates of all blocks from their owners to all ranks of a group.

    Args:
        ranks: the ranks of the group.
        shapes: for each rank the shapes of its blocks, in the order of its updates.
        precision: precision in which updates are sent. fp16 has a scale for each block, a power of two.
        names: names of the parameters.
        groups: number of parameter groups.
        like: a tensor with the updates' dtype and device.
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
        self._sent = _WIRE_TYPES.get(precision, like.dtype)
        self._scaled = precision == "fp16"
        mask = _rounded_up(len(names) + 8 * groups)
        scales = _rounded_up(4 * max(len(each) for each in shapes)) if self._scaled else 0
        self._scales, self._data = _MESSAGE_BYTES + mask, _MESSAGE_BYTES + mask + scales
        numbers = max(sum(math.prod(shape) for shape in each) for each in shapes)
        length = self._data + _rounded_up(numbers * self._sent.itemsize)
        self._own = torch.zeros(length, dtype=torch.uint8, device=like.device)
        self._all = torch.zeros((ranks.size, length), dtype=torch.uint8, device=like.device)

    def __call__(
        self, updates: Sequence[Tensor], has_gradient: Sequence[bool], rates: Sequence[float], error: str | None
    ) -> list[list[Tensor]]:
        """Exchanges updates and returns for each rank the updates of its blocks.

        Args:
            updates: updates of this rank's blocks, in the order of ``shapes``; ignored if there is an error.
            has_gradient: whether each parameter has a gradient.
            rates: the learning rate of each group.
            error: this rank's error, which the other ranks then report; None for none.

        Raises:
            LostRank: another rank had an error, or ranks differ in learning rates or in which parameters have
                gradients.
        """
        self._write(updates, _header(error, has_gradient, rates), error is not None)
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


def _rounded_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _timeout(group: dist.ProcessGroup | None) -> timedelta:
    """Returns how long exchanges of a group wait; torch gives each new one 30 minutes of its own."""
    found = group or dist.group.WORLD
    assert found is not None
    device = torch.device("cpu" if torch.device("cpu") in found._device_types else "cuda")  # pyright: ignore[reportPrivateUsage]
    backend: Any = found._get_backend(device)  # pyright: ignore[reportPrivateUsage] - torch has no public name
    return backend.options._timeout
