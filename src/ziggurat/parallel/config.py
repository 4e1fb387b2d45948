"""The ``parallel`` section of an experiment: how several ranks train together."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from ziggurat.core.config import Config

Precision = Literal["fp32", "fp16", "bf16"]


class DDP(Config):
    """Every rank holds the dense part; gradients are averaged in buckets while the backward pass runs. Ranks that share
    memory average all of them at once after it.

    Source: Li et al. 2020, "PyTorch Distributed", VLDB; torch's own implementation.
    """

    name: Literal["ddp"] = "ddp"

    bucket_mb: float = pydantic.Field(default=25.0, gt=0)
    """Gradients are exchanged in buckets of this many MiB. Smaller ones start earlier, larger ones need fewer
    messages; a parameter is never split."""

    hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Compression of gradients: none, half the bytes, or a low-rank approximation (Vogels et al. 2019)."""

    powersgd_rank: int = pydantic.Field(default=2, ge=1)
    """Rank of the PowerSGD approximation."""


class FSDP(Config):
    """Parameters, gradients and optimizer states are sharded evenly over all ranks; parameters are gathered for use.

    Source: Zhao et al. 2023, "PyTorch FSDP", VLDB; torch's ``fully_shard``.
    """

    name: Literal["fsdp"] = "fsdp"

    reshard_after_forward: bool = True
    """Free gathered parameters between forward and backward; false saves an all-gather and costs memory."""

    parameters: Precision = "fp32"
    """Precision in which parameters are gathered and used; the optimizer keeps them in fp32."""

    reduce: Precision = "fp32"
    """Precision in which gradients are summed over ranks."""


class HSDP(Config):
    """``fsdp`` within each host, replicated across hosts: only summed gradients cross the slow links.

    Source: Zhang et al. 2022, "DHEN", section 4 (hybrid sharded data parallel); torch's ``fully_shard`` on a 2-D mesh.
    """

    name: Literal["hsdp"] = "hsdp"

    shard_size: int | None = pydantic.Field(default=None, ge=1)
    """Ranks that share one copy of the parameters; default: the ranks of a host."""

    reshard_after_forward: bool = True
    """As in ``fsdp``."""

    parameters: Precision = "fp32"
    """As in ``fsdp``."""

    reduce: Precision = "fp32"
    """As in ``fsdp``."""


DenseParallelConfig = Annotated[DDP | FSDP | HSDP, pydantic.Field(discriminator="name")]
"""How the dense part is parallelised, discriminated by ``name``."""


class FlatLookup(Config):
    """Pooled rows go from the ranks that hold them to those of their examples in one exchange, wherever these are."""

    name: Literal["flat"] = "flat"


class TowerTransformConfig(Config):
    """The tables of a tower are on one host. Pooled rows are exchanged within the host; the tower's module compresses
    them there; then each rank exchanges them with its peers, the ranks of the same number on the other hosts. It
    computes what ``flat`` computes and needs the section ``towers``; on one host it is ``flat``.

    Source: Luo et al. 2024, "Disaggregated Multi-Tower", arXiv 2403.00877, section 3.1 (SPTT). Where we deviate: ranks
    are ordered for their peers by (rank modulo ranks of a host, host), which is right for any number of hosts.
    """

    name: Literal["tower_transform"] = "tower_transform"


EmbeddingExchangeConfig = Annotated[FlatLookup | TowerTransformConfig, pydantic.Field(discriminator="name")]
"""How pooled rows reach the ranks of their examples, discriminated by ``name``."""


class ParallelConfig(Config):
    """How several ranks train together; without effect on a single rank. ``batch_size`` is that of all ranks together,
    so the same config trains the same model on any number of ranks."""

    dense: DenseParallelConfig = DDP()
    """Parallelism of the dense part."""

    embeddings: EmbeddingExchangeConfig = FlatLookup()
    """Exchange of the tables' pooled rows."""

    pipeline: bool = True
    """Send the ids of the next batch to the ranks that hold their rows while this one is computed."""

    forward_precision: Precision = "fp32"
    """Precision in which embedding rows are sent to the ranks that look them up."""

    backward_precision: Precision = "fp32"
    """Precision in which their gradients are sent back. ``fp16`` gradients are scaled by about the batch size, so that
    those of large batches do not underflow."""

    shared_memory: bool = True
    """Let CPU ranks that are all on one host communicate through shared memory instead of sockets (Linux on x86, at
    full precision). This covers ids and rows of table-wise and column-wise tables, and gradients of ``ddp``. On several
    hosts it covers what ``tower_transform`` exchanges within each, at any precision."""

    timeout_s: float = pydantic.Field(default=300.0, gt=0)
    """Seconds that a rank waits for the others in one exchange before it fails."""

    @property
    def reduced(self) -> bool:
        """Whether rows or their gradients are sent in less than full precision."""
        return (self.forward_precision, self.backward_precision) != ("fp32", "fp32")
