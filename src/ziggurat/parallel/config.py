"""The ``parallel`` section of an experiment: what several ranks do otherwise than one."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from ziggurat.core.config import Config

Precision = Literal["fp32", "fp16", "bf16"]


class DDP(Config):
    """Every rank holds the dense part; gradients are averaged in buckets while the backward pass runs. Ranks that share
    memory average them at once behind it.

    Source: Li et al. 2020, "PyTorch Distributed", VLDB; torch's own implementation.
    """

    name: Literal["ddp"] = "ddp"

    bucket_mb: float = pydantic.Field(default=25.0, gt=0)
    """Gradients are exchanged in buckets of this many MiB. Smaller ones start earlier, larger ones cost fewer
    messages; a parameter is never split."""

    hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """What is sent of a gradient: all of it, half the bytes, or a low-rank approximation (Vogels et al. 2019)."""

    powersgd_rank: int = pydantic.Field(default=2, ge=1)
    """Rank of the approximation."""


class FSDP(Config):
    """Parameters, gradients and optimizer states lie in even parts on all ranks; parameters are gathered for use.

    Source: Zhao et al. 2023, "PyTorch FSDP", VLDB; torch's ``fully_shard``.
    """

    name: Literal["fsdp"] = "fsdp"

    reshard_after_forward: bool = True
    """Let go of gathered parameters between forward and backward; false saves a gathering and costs memory."""

    parameters: Precision = "fp32"
    """Precision in which parameters are gathered and used; the optimizer keeps fp32."""

    reduce: Precision = "fp32"
    """Precision in which gradients are summed over ranks."""


class HSDP(Config):
    """As ``fsdp`` inside each host, replicated across hosts: only summed gradients cross the slow links.

    Source: Zhang et al. 2022, "DHEN", section 4 (hybrid sharded data parallel); torch's ``fully_shard`` on a 2-D mesh.
    """

    name: Literal["hsdp"] = "hsdp"

    shard_size: int | None = pydantic.Field(default=None, ge=1)
    """Ranks that share one copy; default: those of a host."""

    reshard_after_forward: bool = True
    """As in ``fsdp``."""

    parameters: Precision = "fp32"
    """As in ``fsdp``."""

    reduce: Precision = "fp32"
    """As in ``fsdp``."""


DenseParallelConfig = Annotated[DDP | FSDP | HSDP, pydantic.Field(discriminator="name")]
"""How the dense part is spread, told apart by ``name``."""


class ParallelConfig(Config):
    """What several ranks do otherwise than one; without a part where there is one. ``batch_size`` is theirs together,
    so the same config trains the same model on any number of ranks."""

    dense: DenseParallelConfig = DDP()
    """How the dense part is spread over the ranks."""

    pipeline: bool = True
    """Send the ids of the next batch to the ranks that hold their rows while this one is computed."""

    forward_precision: Precision = "fp32"
    """Of embedding rows on their way to the ranks that asked for them."""

    backward_precision: Precision = "fp32"
    """Of their gradients on the way back. ``fp16`` sends them times the batch size, so that those of large batches do
    not vanish."""

    shared_memory: bool = True
    """Let CPU ranks that are all on one host exchange through memory that they share instead of sockets (Linux on x86,
    at full precision): ids and rows of tables that are whole or split by columns, and gradients of ``ddp``."""

    timeout_s: float = pydantic.Field(default=300.0, gt=0)
    """Seconds that a rank waits for the others in one exchange before it gives up and says so."""

    @property
    def reduced(self) -> bool:
        """Whether rows or their gradients travel in less than full precision."""
        return (self.forward_precision, self.backward_precision) != ("fp32", "fp32")
