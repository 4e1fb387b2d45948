"""Towers on several hosts: the exchange of their rows, and their modules where these rows are looked up."""

from __future__ import annotations

import torch
from torch import nn

from ziggurat.core.errors import ConfigError
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.tower_transform.transform import TowerTransform
from ziggurat.embeddings.wire import Wire
from ziggurat.parallel.config import ParallelConfig, TowerTransformConfig
from ziggurat.parallel.world import World
from ziggurat.towers.config import TowersConfig
from ziggurat.towers.model import TowerModel
from ziggurat.towers.placed import towers_of


def transforms(parallel: ParallelConfig, hosts: int) -> bool:
    """Returns whether rows are exchanged by the tower transform; on one host it is the flat exchange."""
    return isinstance(parallel.embeddings, TowerTransformConfig) and hosts > 1


def tower_transform(
    config: TowersConfig | None,
    parallel: ParallelConfig,
    layout: Layout,
    world: World,
    device: torch.device,
    batch_size: int,
) -> TowerTransform | None:
    """Returns the tower transform of the ranks, which make it together; None if rows are exchanged otherwise.

    Rows, outputs of modules and gradients are sent in the precision of the ``parallel`` section, within hosts as
    between them; gradients in fp16 are scaled by about ``batch_size``, the examples of all ranks.

    Raises:
        ConfigError: the number of hosts does not divide that of towers, or the ranks are on GPUs.
    """
    if config is None or not transforms(parallel, world.hosts):
        return None
    if device.type != "cpu":
        raise ConfigError(
            "parallel.embeddings: tower_transform trains on CPUs so far",
            "set training.device: cpu, or parallel.embeddings: {name: flat}",
        )
    wire = Wire(parallel, batch_size) if parallel.reduced else None
    return TowerTransform(layout, towers_of(config, layout), world, device, wire, parallel)


def run_upstream(model: nn.Module, transform: TowerTransform | None, *, autocast: bool) -> None:
    """Has the modules of this host's towers called by the transform, and frees those of other hosts.

    Parameters of other hosts' towers stay, without memory (on ``meta``), so that all ranks number parameters alike.

    Args:
        model: the model, equal on all ranks; nothing happens if it has no modules of towers.
        transform: the transform; nothing happens without one.
        autocast: whether modules compute in bfloat16.
    """
    if transform is None or not isinstance(model, TowerModel):
        return
    model.upstream = True
    for number, tower in enumerate(model.towers):
        if number not in transform.own:
            tower.to("meta")
    own = [model.towers[number] for number in transform.own]
    transform.call(own, model.outputs, model.base.dims.dim, autocast=autocast)
