"""Versions of a graph have their own weights, share its code, and leave nothing behind."""

from __future__ import annotations

import gc
import linecache
import weakref
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.graph_module import (
    _loader,  # pyright: ignore[reportPrivateUsage] - keeps the source of every graph
)

from tests.serving.versions_kit import STEPS, Opener, following, trained, versions_of
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.versions.graph_copies import with_weights
from ziggurat.serving.versions.updater import Updater


class Tied(nn.Module):
    """One weight under two names, a buffer, and a module within."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(3))

    def forward(self, values: Tensor) -> Tensor:
        return self.second(self.first(values)) * self.get_buffer("scale")


def test_a_copy_has_its_own_weights_under_all_their_names() -> None:
    module = fx.symbolic_trace(Tied())
    values, before = torch.randn(2, 3), dict(module.named_parameters())
    expected = module(values)
    weights = {"first.weight": torch.randn(3, 3), "scale": torch.full((3,), 2.0)}
    found = with_weights(module, weights)
    weight = weights["first.weight"]
    hidden = values @ weight.T + before["first.bias"]
    torch.testing.assert_close(found(values), (hidden @ weight.T + before["second.bias"]) * 2)
    torch.testing.assert_close(module(values), expected, rtol=0, atol=0)
    assert type(found) is type(module)
    assert found.get_parameter("second.bias") is before["second.bias"]


def test_versions_that_are_opened_leave_nothing_behind(tmp_path: Path) -> None:
    run, place = trained(), tmp_path / "checkpoints"
    export = run.export(STEPS[0])
    folder = versions_of(export, tmp_path / "versions")
    updater = Updater(folder, export, following(place, folder))
    for step in STEPS[:3]:
        run.put(step, place)
        updater.step()
    records, opener = folder.records(), Opener(folder, Scorer.open(export))

    def held() -> tuple[int, int]:
        sources = sum(name.startswith("<eval_with_key>") for name in linecache.cache)
        return len(_loader.eval_cache), sources

    before, scorer = held(), opener.open(records[0])
    for number in range(12):
        record = records[number % len(records)]
        scorer = opener.open(record)
        np.testing.assert_array_equal(run.predicted(scorer), run.expected(record.step))
        if number == 2:  # those that are compared with are exports, which have graphs of their own
            before = held()
    assert held() == before
    dense = weakref.ref(scorer.dense)
    gc.disable()
    try:
        del scorer
        opener.open(records[0])
        assert dense() is None, "a version that is exchanged is freed at once"
    finally:
        gc.enable()
