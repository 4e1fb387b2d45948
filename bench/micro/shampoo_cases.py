"""Models and settings of ``shampoo_step``."""

from __future__ import annotations

from typing import Any

from bench.micro.dense_step import CASES as DENSE_CASES
from bench.micro.dense_step import Case, Step
from ziggurat.interactions.mlp import MLP
from ziggurat.models.dlrm import DLRM
from ziggurat.models.model import ModelDims
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.optim.torch_optimizers import AdamW

NEVER = 10**9
APART = 64
"""Steps from one gradient that second moments take in to the next, where steps between are measured."""

CASES = {
    "wukong_criteo": DENSE_CASES["wukong"],
    "dlrm_criteo": Case(
        DLRM.Config(top=MLP.Config(hidden=(512, 256))), ModelDims(dense=13, features=26, dim=64), (), "MLPs 512-256"
    ),
    "dlrm_frappe": Case(DLRM.Config(), ModelDims(dense=0, features=10, dim=16), (), "as it is by default"),
    "wukong_frappe": DENSE_CASES["wukong_small"],
}

WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "default": ({}, "in the eigenbasis, blocks of up to 128"),
    "large": ({"max_preconditioner_dim": 256}, "in the eigenbasis, blocks of up to 256"),
    "roots": ({"max_preconditioner_dim": 256, "form": "roots"}, "inverse roots, blocks of up to 256"),
}


KINDS = ("adamw", "plain", "statistics", "roots")


def step(name: str, way: str, kind: str, rows: int) -> Step:
    """A training step of a kind.

    =============  ============================================================================
    adamw          of AdamW
    plain          of Shampoo, with roots and second moments of rows and columns as they are
    statistics     the same, and second moments take in the gradient
    roots          the same, and roots are taken
    =============  ============================================================================
    """
    if kind == "adamw":
        return Step(CASES[name], "fp32", False, rows, AdamW())
    frequency, every = (1, 1) if kind == "roots" else (NEVER, APART if kind == "plain" else 1)
    config = ShampooConfig(start=every, precondition_frequency=frequency, statistics_frequency=every, **WAYS[way][0])
    made = Step(CASES[name], "fp32", False, rows, config)
    made()
    for _ in range(config.first_direction_step):
        made.optimizer.step()
    return made
