"""Every model, with every head, begins near the base rate: at step 0 the normalised entropy is nearly 1."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from ziggurat.models.build import ModelConfig
from ziggurat.models.model import ModelDims, ModelSettings
from ziggurat.objectives.label_figures import LabelFigures
from ziggurat.objectives.outputs import Outputs
from ziggurat.objectives.task import Task

ROWS, RATES = 512, (0.002, 0.3)
NAMES = [kind().name for kind in get_args(get_args(ModelConfig)[0])]
HEADS: list[dict[str, Any]] = [
    {"name": name, "head": {"name": head}}
    for name in ("dnn", "dhen", "wukong")
    for head in ("shared_bottom", "mmoe", "ple")
]


@pytest.mark.parametrize("values", [*({"name": name} for name in NAMES), *HEADS], ids=str)
def test_the_first_predictions_are_near_the_base_rate(values: dict[str, Any]) -> None:
    config: ModelSettings = TypeAdapter(ModelConfig).validate_python(values)
    torch.manual_seed(0)
    tasks = [Task("rare"), Task("common")]
    dim = config.embedding_dim(16, tasks=len(tasks))
    model = config.build(ModelDims(dense=6, features=9, dim=dim, tasks=len(tasks))).eval()
    outputs = Outputs(tasks, at_base_rate=True).eval()
    outputs.start(
        {task.name: LabelFigures(rate, math.sqrt(rate * (1 - rate))) for task, rate in zip(tasks, RATES, strict=True)}
    )
    with torch.no_grad():
        logits_BT = outputs(model(torch.randn(ROWS, 6), 0.01 * torch.randn(ROWS, 9, dim))).double()
    for column, rate in enumerate(RATES):
        predicted_B = torch.sigmoid(logits_BT[:, column]).numpy()
        loss = -np.mean(rate * np.log(predicted_B) + (1 - rate) * np.log1p(-predicted_B))
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        assert 1 <= loss / entropy < 1.05, (rate, loss / entropy)
