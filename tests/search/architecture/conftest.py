"""Small spaces and super-nets over the log of the training tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import MakeExperiment, make_experiment
from ziggurat.core.config import parse_config
from ziggurat.core.progress import Silent
from ziggurat.search.architecture.config import ArchitectureSearchConfig
from ziggurat.search.architecture.space.whole_space import WholeSpace
from ziggurat.search.architecture.supernet.loop import SuperNetTrainer
from ziggurat.search.architecture.supernet.opened import opened_super_net
from ziggurat.training.preparation import prepare
from ziggurat.training.process_group import process_group

__all__ = ["make_experiment"]

SMALL: dict[str, Any] = {
    "space": {
        "layers": 1,
        "blocks": [{"name": "linear", "outputs": 5}, {"name": "convolution", "outputs": 5}],
        "top": {"layers": 2, "widths": [8, 16]},
        "bottom": {"layers": 1, "widths": [4]},
    },
    "tables": {"rows": [1, 0.5], "least_rows": 30},
    "supernet": {"warmup_epochs": 1, "epochs": 1},
    "drawn": 3,
    "retrained": 1,
}

OpenTrainer = Callable[[Path], contextlib.AbstractContextManager[SuperNetTrainer]]


def small_config(**changes: Any) -> ArchitectureSearchConfig:
    """Returns the small search with other sections."""
    return parse_config(ArchitectureSearchConfig, {**SMALL, **changes})


@pytest.fixture
def open_trainer(make_experiment: MakeExperiment) -> OpenTrainer:
    """Returns what opens the super-net of the small search in a folder, on this process alone."""
    experiment, config = make_experiment(), small_config()
    dataset = prepare(experiment)

    @contextlib.contextmanager
    def opened(folder: Path) -> Generator[SuperNetTrainer]:
        folder.mkdir(exist_ok=True)
        device = torch.device("cpu")
        with process_group(device):
            space = WholeSpace(config.space, config.tables, experiment, dataset.schema)
            limits = config.limits.resolved(space.own_costs())
            with opened_super_net(space, dataset, folder, device) as recommender:
                yield SuperNetTrainer(
                    recommender, space, limits, config.supernet, dataset, folder, device, 0, "same", Silent()
                )

    return opened
