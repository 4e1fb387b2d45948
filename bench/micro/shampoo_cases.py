"""The models and settings of ``shampoo_step``."""

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
STATISTICS_INTERVAL = 64
"""The steps between updates of the second moments in the ``plain`` step, longer than a measurement."""

CASES = {
    "wukong_criteo": DENSE_CASES["wukong"],
    "dlrm_criteo": Case(
        DLRM.Config(top=MLP.Config(hidden=(512, 256))), ModelDims(dense=13, features=26, dim=64), (), "MLPs 512-256"
    ),
    "dlrm_frappe": Case(DLRM.Config(), ModelDims(dense=0, features=10, dim=16), (), "default settings"),
    "wukong_frappe": DENSE_CASES["wukong_small"],
}

SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "default": ({}, "in the eigenbasis, blocks of up to 128"),
    "large": ({"max_preconditioner_dim": 256}, "in the eigenbasis, blocks of up to 256"),
    "roots": ({"max_preconditioner_dim": 256, "form": "roots"}, "inverse roots, blocks of up to 256"),
}


KINDS = ("adamw", "plain", "statistics", "roots")


def step(name: str, setting: str, kind: str, rows: int) -> Step:
    """Creates a training step.

    Args:
        name: the name of the model in ``CASES``.
        setting: the name of Shampoo's setting in ``SETTINGS``.
        kind: the optimizer and the work of a step:

            =============  ========================================================
            adamw          AdamW
            plain          Shampoo, without updating second moments or roots
            statistics     the same, plus an update of the second moments
            roots          the same, plus a computation of the roots
            =============  ========================================================
        rows: the batch size.
    """
    if kind == "adamw":
        return Step(CASES[name], "fp32", False, rows, AdamW())
    frequency, every = (1, 1) if kind == "roots" else (NEVER, STATISTICS_INTERVAL if kind == "plain" else 1)
    config = ShampooConfig(
        start=every, precondition_frequency=frequency, statistics_frequency=every, **SETTINGS[setting][0]
    )
    made = Step(CASES[name], "fp32", False, rows, config)
    made()
    for _ in range(config.first_direction_step):
        made.optimizer.step()
    return made
