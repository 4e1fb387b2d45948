"""Data parallelism of the dense part: torch's DDP, FSDP and hybrid FSDP, configured for recommenders."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import Any

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
from ziggurat.parallel.groups import limit_waits, new_group
from ziggurat.parallel.shared_memory import shared_slots
from ziggurat.parallel.shared_memory_ddp import SharedMemoryDDP
from ziggurat.parallel.world import World

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

_NOTHING = nn.ModuleList()


def parallelise(
    module: nn.Module,
    config: ParallelConfig,
    world: World,
    device: torch.device,
    of_hosts: nn.Module = _NOTHING,
) -> nn.Module:
    """Returns the module to call instead of ``module``, so that gradients are averaged over the ranks.

    Args:
        module: equal on all ranks; ``fsdp`` and ``hsdp`` replace its parameters by shards (DTensor) in place.
        config: the kind of parallelism.
        world: more than one rank.
        device: the device of ``module``.
        of_hosts: a part of ``module`` that differs between hosts; its gradients are not averaged here. ``ddp`` only.

    Raises:
        ConfigError: the shard size does not divide the number of ranks.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    dense = config.dense
    apart = {id(parameter) for parameter in of_hosts.parameters()}
    assert not apart or isinstance(dense, DDP), dense
    match dense:
        case DDP() if apart:
            names = [name for name, parameter in module.named_parameters() if id(parameter) in apart]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)  # pyright: ignore[reportPrivateUsage] - torch has no public name
            return _replicated(module, dense, device)
        case DDP():
            whole = all(each.dtype == torch.float32 for each in module.parameters())
            slots = shared_slots(config, world, device) if dense.hook == "none" and whole else None
            return _replicated(module, dense, device) if slots is None else SharedMemoryDDP(module, slots)
        case FSDP():
            mesh = limit_waits(init_device_mesh(device.type, (world.size,)))
            return _sharded(module, dense, mesh)
        case HSDP():
            size = dense.shard_size or world.local_size
            if world.size % size:
                raise ConfigError(
                    f"parallel.dense.shard_size: {size} does not divide the {world.size} ranks",
                    "choose a divisor, or leave it out to use the ranks of a host",
                )
            shape = (world.size // size, size)
            mesh = limit_waits(init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard")))
            return _sharded(module, dense, mesh)


@contextlib.contextmanager
def gradient_sync(module: nn.Module, now: bool) -> Generator[None]:
    """Context for a backward pass: averages its gradients over the ranks if ``now``, else only accumulates them.

    Accumulated gradients are averaged with those of the next pass that synchronises.

    Args:
        module: the result of :func:`parallelise`, or a module of a single rank.
        now: whether to synchronise.
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


def checkpoint_activations(module: nn.Module) -> None:
    """Applies activation checkpointing to the blocks of a stacked model: only their inputs are kept for backward.

    Blocks with a batch norm are not changed, as recomputation would update its running statistics twice.

    Args:
        module: the model, before :func:`parallelise`.
    """
    for unit in _units(module):
        normed = any(isinstance(each, nn.BatchNorm1d) for each in unit.modules())
        if not normed and any(True for _ in unit.children()):  # a single layer saves little besides its input
            unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False)


def _replicated(module: nn.Module, config: DDP, device: torch.device) -> nn.Module:
    group = new_group()  # a separate group: backward also exchanges the tables' gradients
    wrapped = DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=config.bucket_mb,
        forward_sync_buffers=False,  # GlobalBatchNorm keeps the buffers equal
        gradient_as_bucket_view=True,
    )
    # torch rejects hooks whose annotations are strings, as in this module; lambdas have no annotations.
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
    """Averages gradients over the ranks in bfloat16; torch's own hook rejects gloo."""
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
    """Returns the blocks to gather or recompute one at a time: the elements of the outermost module lists."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        return [each for each in module if any(True for _ in each.parameters())]
    return [unit for child in module.children() for unit in _units(child)]
