"""The benchmark of pipelines: its figures of outcomes that are known, and its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.quality.p3s import P3S
from bench.quality.tabular.figures import lines, log_figures, model_figures, points
from bench.quality.tabular.labelled import labelled, split
from bench.quality.tabular.measured import TASKS, held_out
from bench.quality.tabular.others import drawn
from bench.rank_plot import draw_ranks
from ziggurat.search.pipelines.pipeline import STANDARD, NumericPipeline
from ziggurat.search.pipelines.search import METHODS


def outcomes(ours: float, sets: int = 10, seeds: int = 2) -> dict[str, list[dict[str, Any]]]:
    """Returns outcomes in which ours has ``ours`` and each other method .8 on test, with more on validation."""
    own = {method: {"test": 0.8, "chosen": 0.83, "fresh": 0.81, "seconds": 2.0} for method in METHODS}
    own["cluster"] = {"test": ours, "chosen": ours + 0.01, "fresh": ours, "seconds": 4.0}
    return {f"set_{number}": [own] * seeds for number in range(sets)}


def test_figures_tell_ranks_wins_and_over_fit() -> None:
    found = {each.name: each for each in model_figures("mlp", outcomes(0.84))}
    assert found["mlp.mean_rank.cluster"].value == 1.0
    assert found["mlp.mean_rank.shared"].value == 4.0  # five methods tie for 2 to 6
    assert found["mlp.rank_ahead"].value == 3.0
    assert found["mlp.won_against_shared"].value == 100.0
    assert found["mlp.gain_over_tpe"].value == pytest.approx(0.04)
    assert found["mlp.worst_against_standard"].value == pytest.approx(5.0)
    assert found["mlp.over_fit.shared"].value == pytest.approx(0.03)
    assert found["mlp.over_fit.cluster"].value == pytest.approx(0.01)


def test_every_target_has_a_figure_and_a_gain_on_a_log_needs_both_auc_and_ne() -> None:
    own = {"cluster": {"test": 0.8, "ne": 0.7}, "standard": {"test": 0.79, "ne": 0.71}}
    worse = {"cluster": {"test": 0.8, "ne": 0.72}, "standard": {"test": 0.79, "ne": 0.71}}
    logs = {each.name: each for each in log_figures({"one": [own, own], "two": [worse]})}
    assert logs["ctr.logs_ahead_of_standard"].value == 1.0
    assert logs["ctr.one.ne_below_standard"].samples == pytest.approx((0.01, 0.01))
    found = {each.name for model in TASKS for each in model_figures(model, outcomes(0.84))}
    assert set(P3S.targets) <= {*found, *logs}


def test_ties_and_losses_are_no_wins() -> None:
    tied = {each.name: each for each in model_figures("mlp", outcomes(0.8))}
    assert tied["mlp.won_against_shared"].value == 0.0
    assert tied["mlp.won_against_shared"].note == "0 won, 10 tied, 0 lost"
    behind = {each.name: each for each in model_figures("mlp", outcomes(0.79))}
    assert behind["mlp.worst_against_standard"].value == pytest.approx(-1.25)
    assert not P3S.targets["mlp.worst_against_standard"].holds(behind["mlp.worst_against_standard"].value)


def test_a_line_has_every_methods_score_and_the_rank_of_ours() -> None:
    (line, *_) = lines("mlp", outcomes(0.84))
    assert line[:3] == ("set_0", "mlp", "0.8400 ± 0.0000")
    assert line[-1] == "1"
    assert len(line) == 3 + len(METHODS)


def test_the_picture_shows_each_models_ranks(tmp_path: Path) -> None:
    figures = [each.to_json() for model in TASKS for each in points(model, outcomes(0.84))]
    draw_ranks(tmp_path / "p3s.svg", figures)
    first = (tmp_path / "p3s.svg").read_bytes()
    draw_ranks(tmp_path / "p3s.svg", figures)
    assert (tmp_path / "p3s.svg").read_bytes() == first
    assert ET.fromstring(first).tag.endswith("svg")


def test_test_rows_are_scored_by_what_training_rows_fitted() -> None:
    """Where the label follows from a band of a number, intervals are worth more than scaling, on rows held out too."""
    table = labelled("drawn", drawn(1500), 1500)
    train, test = split(table, 0)
    task = TASKS["logistic_regression"]
    plain = {each.name: STANDARD[each.kind] for each in train.columns}
    banded = {**plain, **{name: NumericPipeline(scaler="none", discretiser="spline") for name in ("hour", "place")}}
    before, after = (held_out(each, task, train, test, 0)["test"] for each in (plain, banded))
    assert after > before + 0.05
    changed = test.columns[0].values + 1e6
    moved = [each if each.name != "price" else type(each)(each.name, each.kind, changed) for each in test.columns]
    other = type(test)(tuple(moved), test.labels, test.classes)
    assert held_out(plain, task, train, other, 0)["test"] != before
    assert np.isfinite(held_out(plain, task, train, other, 0)["test"])
