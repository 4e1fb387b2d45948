"""The dense part spread over the ranks: torch's DDP, FSDP and hybrid FSDP, set up for recommenders."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ziggurat.core.errors import ConfigError
from ziggurat.parallel.config import DDP, FSDP, HSDP, ParallelConfig, Precision
from ziggurat.parallel.shared_memory import shared_slots
from ziggurat.parallel.shared_memory_ddp import SharedMemoryDDP
from ziggurat.parallel.world import World

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def spread(module: nn.Module, config: ParallelConfig, world: World, device: torch.device) -> nn.Module:
    """What to call instead of ``module``, so that its gradients are the mean over the ranks.

    Args:
        module: equal on all ranks; under ``fsdp`` and ``hsdp`` its parameters become parts (DTensor) in place.
        config: how.
        world: of more than one rank.
        device: of ``module``.

    Raises:
        ConfigError: a shard size that does not divide the world.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    dense = config.dense
    match dense:
        case DDP():
            whole = all(each.dtype == torch.float32 for each in module.parameters())
            slots = shared_slots(config, world, device) if dense.hook == "none" and whole else None
            return _replicated(module, dense, device) if slots is None else SharedMemoryDDP(module, slots)
        case FSDP():
            mesh = init_device_mesh(device.type, (world.size,))
            return _sharded(module, dense, mesh)
        case HSDP():
            size = dense.shard_size or world.local_size
            if world.size % size:
                raise ConfigError(
                    f"parallel.dense.shard_size: {size} does not divide the {world.size} ranks",
                    "choose a divisor, or leave it out: the ranks of a host",
                )
            mesh = init_device_mesh(device.type, (world.size // size, size), mesh_dim_names=("replicate", "shard"))
            return _sharded(module, dense, mesh)


@contextlib.contextmanager
def synchronised(module: nn.Module, now: bool) -> Generator[None]:
    """Gradients of a backward pass in here are averaged over the ranks ``now``, or wait for the next that is so.

    Args:
        module: of :func:`spread`, or one that was not spread.
        now: whether to.
    """
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(now)
        yield
    elif isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
    else:
        yield
        if isinstance(module, SharedMemoryDDP) and now:
            module.average()


def checkpointed(module: nn.Module) -> None:
    """Make the blocks of a stacked model keep their inputs alone, and compute the rest again in the backward pass.

    A batch norm that saw each batch twice would count it twice: blocks with one are left as they are.

    Args:
        module: before it is spread.
    """
    for unit in _units(module):
        normed = any(isinstance(each, nn.BatchNorm1d) for each in unit.modules())
        if not normed and any(True for _ in unit.children()):  # one layer alone keeps little beside its input
            unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False)


def _replicated(module: nn.Module, config: DDP, device: torch.device) -> nn.Module:
    group = cast("dist.ProcessGroup", dist.new_group())  # of its own: backward also sends the tables' gradients
    wrapped = DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=config.bucket_mb,
        forward_sync_buffers=False,  # batch norms agree by themselves
        gradient_as_bucket_view=True,
    )
    # torch refuses hooks whose annotations are strings, as ours are: lambdas have none.
    match config.hook:
        case "none":
            pass
        case "fp16":
            wrapped.register_comm_hook(group, default_hooks.fp16_compress_hook)
        case "bf16":
            wrapped.register_comm_hook(group, lambda group, bucket: _bf16_hook(group, bucket))
        case "powersgd":
            state = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=config.powersgd_rank, start_powerSGD_iter=2
            )
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped


def _bf16_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The mean over the ranks of gradients sent as bfloat16; torch's own hook refuses gloo."""
    small = bucket.buffer().div(group.size()).to(torch.bfloat16)
    work = dist.all_reduce(small, group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))


def _sharded(module: nn.Module, config: FSDP | HSDP, mesh: Any) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[config.parameters], reduce_dtype=DTYPES[config.reduce])
    settings: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": policy,
        "reshard_after_forward": config.reshard_after_forward,
    }
    for child in _units(module):
        fully_shard(child, **settings)
    fully_shard(module, **settings)
    return module


def _units(module: nn.Module) -> list[nn.Module]:
    """The blocks that are gathered, or computed again, one after the other: what the outermost lists hold."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        return [each for each in module if any(True for _ in each.parameters())]
    return [unit for child in module.children() for unit in _units(child)]
