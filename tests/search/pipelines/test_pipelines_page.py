"""The pages of searches of pipelines: columns and scores are shown at their values, names stay text, nothing loads."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.search.pipelines.pipelines_sample import HOSTILE, sample
from ziggurat.metrics.method_ranks import critical_difference
from ziggurat.report.rank_chart import critical_differences
from ziggurat.search.pipelines.comparison_page import render_comparison, write_comparison
from ziggurat.search.pipelines.drawings import feature_map, rewards, scores
from ziggurat.search.pipelines.page import masked, render, write_page
from ziggurat.search.pipelines.pipeline import title
from ziggurat.search.pipelines.scored_by import by_folds, by_model


def visible(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def rows(root: ET.Element) -> list[list[str]]:
    return [[visible(cell) for cell in row] for row in root.iter("tr")]


def test_the_page_shows_clusters_pipelines_rewards_evaluations_and_masks() -> None:
    root = ET.fromstring(render("ads", by_folds("auc"), sample()))
    text = visible(root)
    assert visible(next(root.iter("h1"))) == "ads: search of preprocessing pipelines"
    assert "+0.0800 is gained" in text
    assert "+0.0300" in text  # what the folds that chose say too much
    shown = rows(root)
    assert ["1", "numeric", "median, spline", "income", "1"] in shown
    assert ["1", "categorical", "category, target", "city", "1"] in shown
    assert any(row[:3] == ["0", "numeric", "median, power"] and row[4] == "2" for row in shown)
    evaluations = [row for row in shown if row[1:2] in (["standard"], ["episode"], ["finalist"])]
    assert [row[0] for row in evaluations] == ["4", "3", "1", "0", "2"]  # fresh folds first, failures last
    assert evaluations[0][2:3] + evaluations[0][4:7] == ["fresh 1", "0.7800", "0.7700", "0.7900"]
    assert evaluations[-1][4] == "failed"
    assert any(row[0] == "income" and row[3:] == ["4.0000", "5.0000"] for row in shown)
    labels = [svg.get("aria-label") for svg in root.iter("svg")]
    assert labels == [
        "Map of 4 columns in 2 clusters",
        "Reward (auc) of 3 episodes, from 0.7 to 0.8",
        "Entropy over 3 episodes, last 0.5",
        "policy over 3 episodes, last −0.1",
        "kl over 3 episodes, last 0.3",
        "reconstruction over 3 episodes, last 0.2",
        "Scores of 2 evaluations, the best 0.81, standard scaling 0.7",
    ]
    assert HOSTILE.replace("\x07", "\ufffd") in "".join(root.itertext())
    links = [link.get("href") for link in root.iter("a")]
    assert links == ["#clusters", "#policy", "#evaluations", "#columns", "#masked"]
    assert {link[1:] for link in links if link} <= {each.get("id") for each in root.iter("section")}


def test_what_a_method_does_not_tell_is_left_out() -> None:
    empty = np.zeros((0, 0))
    plain = replace(
        sample(), method="shared", episodes=(), descriptors=empty, coordinates=np.zeros((0, 2)), finished=False
    )
    page = render("ads", by_folds("log_loss"), plain)
    root = ET.fromstring(page)
    assert [link.get("href") for link in root.iter("a")] == ["#clusters", "#evaluations", "#masked"]
    assert "less is better" in page
    assert "Score (minus the log_loss)" in page
    trained = render("ads", by_model("ne"), plain)
    assert "each a training of the model, judged on the validation split" in trained
    assert "cross-validated" not in trained
    assert "The search is not finished." in page


def test_masks_are_told_with_their_reasons() -> None:
    found = {(scaler, discretiser): reason for scaler, discretiser, reason in masked()}
    assert "linear" in found["standard", "uniform_bins"]
    assert ("power", "spline") not in found
    root = ET.fromstring(render("ads", by_folds("auc"), sample()))
    assert len([row for row in rows(root) if row[2:] and "scaler none is it" in row[2]]) > 5


def test_dots_are_at_their_coordinates_and_can_be_reached_by_keys() -> None:
    found = sample()
    root = ET.fromstring(feature_map(found))
    dots = list(root.iter("circle"))
    drawn = np.array([(float(dot.get("cx", "")), -float(dot.get("cy", ""))) for dot in dots])
    scale = np.linalg.norm(drawn[1] - drawn[0])
    assert drawn - drawn[0] == pytest.approx(scale * (found.coordinates - found.coordinates[0]), abs=0.2)
    assert [dot.get("class") for dot in dots] == ["dot first", "dot first", "dot second", "dot second"]
    groups = list(root.iter("g"))
    assert all(each.get("tabindex") == "0" for each in groups)
    assert groups[2].get("aria-label") == f"income: cluster 1, {title(found.pipelines['income'])}"


def test_rewards_and_scores_are_drawn_at_their_values() -> None:
    found = sample()
    dots = [float(each.get("cy", "")) for each in ET.fromstring(rewards(found.episodes, "auc")).iter("circle")]
    assert dots[1] < dots[2] < dots[0]
    assert (dots[0] - dots[2]) / (dots[0] - dots[1]) == pytest.approx(0.10 / 0.11, abs=0.01)
    lines = [each.get("points", "") for each in ET.fromstring(scores(found)).iter("polyline")]
    assert len({point.split(",")[1] for point in lines[0].split()}) == 1  # standard scaling, level
    heights = [float(point.split(",")[1]) for point in lines[1].split()]
    assert heights[1] < heights[0]


def test_the_rank_chart_has_dots_at_mean_ranks_and_bars_over_groups() -> None:
    mean_ranks = [2.5, 1.2, 3.8, 2.5]
    root = ET.fromstring(critical_differences(["a", "ours", HOSTILE, "d"], mean_ranks, 1.4, "ours"))
    dots = {visible(each).split(":")[0]: each for each in root.iter("g") if each.find("circle") is not None}
    places = [float(each.find("circle").get("cx", "")) for each in dots.values()]  # pyright: ignore
    assert list(dots)[:3] == ["ours", "a", "d"]  # the best first
    assert (places[1] - places[0]) / (places[3] - places[0]) == pytest.approx(1.3 / 2.6, abs=0.01)
    bars = [visible(each) for each in root.iter("g") if "not told apart" in visible(each)]
    assert bars[0] == "not told apart: ours, a, d"
    assert bars[1].startswith("not told apart: a, d, ")


def test_methods_over_data_sets_are_ranked_with_a_critical_difference(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    found = {
        f"set {number}": {"standard": (0.7, 0.7), "shared": tuple(0.7 + draw.normal(0, 0.01, 2)), "ours": (0.8, 0.82)}
        for number in range(12)
    }
    write_comparison(tmp_path / "ranks.html", "Pipelines", {"mlp": found}, "ours")
    page = (tmp_path / "ranks.html").read_text(encoding="utf-8")
    assert page == render_comparison("Pipelines", {"mlp": found}, "ours")
    root = ET.fromstring(page)
    (drawing,) = root.iter("svg")
    label = drawing.get("aria-label", "")
    assert "ours 1," in label
    assert f"critical difference {critical_difference(3, 12):.4g}" in label
    shown = rows(root)
    against = next(row for row in shown if row[0] == "standard")
    assert against[1:5] == ["+0.1100", "100.0 %", "0.0 %", "100.0 %"]
    assert next(row for row in shown if row[0] == "set 3")[3] == "0.8100 ± 0.0141"


@pytest.mark.parametrize("name", ["search", "ranks"])
def test_pages_load_nothing(name: str, tmp_path: Path) -> None:
    if name == "search":
        write_page(tmp_path / "search.html", HOSTILE, by_folds("auc"), sample())
        page = (tmp_path / "search.html").read_text(encoding="utf-8")
        assert page == render(HOSTILE, by_folds("auc"), sample())
    else:
        scores_of = {"a": (0.1,), "b": (0.2,), HOSTILE: (0.3,)}
        page = render_comparison(HOSTILE, {HOSTILE: {"one": scores_of, HOSTILE: scores_of}}, "a")
    ET.fromstring(page)
    assert "default-src &#x27;none&#x27;" in page
    assert "prefers-color-scheme: dark" in page
    assert re.findall(r"(?:src|href)=\"(?!#)", page) == []
    assert "<script" not in page
