"""Who we are among the ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.parallel.environment import number_of


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that train together; they count up host by host.

    Attributes:
        rank: ours.
        size: of the world.
        local_size: ranks on each host.
    """

    rank: int
    size: int
    local_size: int

    @property
    def leads(self) -> bool:
        """Whether we are the rank that writes and shows."""
        return self.rank == 0

    @property
    def hosts(self) -> int:
        return self.size // self.local_size

    @classmethod
    def alone(cls) -> World:
        return cls(0, 1, 1)

    @classmethod
    def current(cls) -> World:
        """As the launcher (torchrun) and the process group say.

        Raises:
            EnvironmentMismatch: hosts with different numbers of ranks.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls.alone()
        rank, size = dist.get_rank(), dist.get_world_size()
        local_size = number_of("LOCAL_WORLD_SIZE", size)
        if local_size < 1 or size % local_size:
            raise EnvironmentMismatch(
                f"{size} ranks, {local_size} of them on the host of rank {rank}: hosts must have equally many",
                "start as many ranks on each host (torchrun --nproc-per-node)",
            )
        return cls(rank, size, local_size)
