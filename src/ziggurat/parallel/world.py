"""This process's rank and the size of the world."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.parallel.environment import environment_integer


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that train together, numbered host by host.

    Attributes:
        rank: the rank of this process.
        size: the number of all ranks.
        local_size: the number of ranks on each host.
    """

    rank: int
    size: int
    local_size: int

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes files and prints."""
        return self.rank == 0

    @property
    def hosts(self) -> int:
        return self.size // self.local_size

    @classmethod
    def alone(cls) -> World:
        return cls(0, 1, 1)

    @classmethod
    def current(cls) -> World:
        """Returns the world as described by the launcher (ours or torchrun) and the process group.

        Raises:
            EnvironmentMismatch: hosts have different numbers of ranks.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls.alone()
        rank, size = dist.get_rank(), dist.get_world_size()
        local_size = environment_integer("LOCAL_WORLD_SIZE", size)
        if local_size < 1 or size % local_size:
            raise EnvironmentMismatch(
                f"{size} ranks, {local_size} of them on the host of rank {rank}: all hosts need the same number",
                "start the same number of ranks on each host (torchrun --nproc-per-node)",
            )
        return cls(rank, size, local_size)
