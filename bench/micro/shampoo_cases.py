"""Models and settings of ``shampoo_step``."""

from __future__ import annotations

from typing import Any

from bench.micro.dense_step import CASES as DENSE_CASES
from bench.micro.dense_step import Case, Step
from ziggurat.interactions.mlp import MLP
from ziggurat.models.dlrm import DLRM
from ziggurat.models.model import ModelDims
from ziggurat.optim.dense import AdamW
from ziggurat.optim.shampoo.config import ShampooConfig

NEVER = 10**9

CASES = {
    "wukong_criteo": DENSE_CASES["wukong"],
    "dlrm_criteo": Case(
        DLRM.Config(top=MLP.Config(hidden=(512, 256))), ModelDims(dense=13, features=26, dim=64), (), "MLPs 512-256"
    ),
    "dlrm_frappe": Case(DLRM.Config(), ModelDims(dense=0, features=10, dim=16), (), "as it is by default"),
    "wukong_frappe": DENSE_CASES["wukong_small"],
}

WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "small": ({"max_preconditioner_dim": 256}, "blocks of up to 256"),
    "large": ({"max_preconditioner_dim": 1024}, "blocks of up to 1,024"),
    "eigenbasis": ({"max_preconditioner_dim": 256, "form": "eigenbasis"}, "the same of up to 256, in the eigenbasis"),
}


def step(name: str, way: str, kind: str, rows: int) -> Step:
    """A training step: of AdamW, of Shampoo with its roots taken before (``plain``), or at each step (``roots``)."""
    if kind == "adamw":
        return Step(CASES[name], "fp32", False, rows, AdamW())
    frequency = 1 if kind == "roots" else NEVER
    settings, _ = WAYS[way]
    return Step(CASES[name], "fp32", False, rows, ShampooConfig(start=1, precondition_frequency=frequency, **settings))
