"""Modules of towers that compress what leaves a tower to a given share, for the benchmarks of speed and of quality."""

from __future__ import annotations

from ziggurat.towers.modules.dcn import DCNTower
from ziggurat.towers.modules.dlrm import DLRMTower


def dlrm_module(features: int, dim: int, towers: int, compression: int) -> DLRMTower.Config:
    """Returns a module whose outputs are about as many times fewer numbers than the tower's fields.

    Outputs are as wide as fields, or half as wide and so on, until there are three of them: a model multiplies each
    two, and none with itself. Wide outputs learn faster than many narrow ones. A tower of one or two features needs no
    more outputs than features.

    Args:
        features: features of all towers.
        dim: width of their fields.
        towers: number of towers.
        compression: how many times fewer.
    """
    numbers = features * dim / (towers * compression)
    least = min(3, -(-features // towers))
    width = dim
    while width > 1 and round(numbers / width) < least:
        width //= 2
    return DLRMTower.Config(flat=max(1, round(numbers / width)), each=0, width=width)


def dcn_module(features: int, dim: int, towers: int, compression: int) -> DCNTower.Config:
    """Returns a module of one cross layer whose only output has about as many times fewer numbers than the fields.

    The arguments are those of :func:`dlrm_module`.
    """
    return DCNTower.Config(layers=1, rank=64, width=max(1, round(features * dim / (towers * compression))))
