"""The page of towers: every feature and tower is shown, names stay text, nothing is loaded."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from report_sample import HOSTILE

from ziggurat.report.towers.drawings import LABELLED, LEFT, affinity_matrix, colour, feature_map, load_bars
from ziggurat.report.towers.page import render_partition, summary, tower_rows, write_partition
from ziggurat.towers.partitioner.partition import Partition


def sample(features: int = 7, towers: int = 3) -> Partition:
    random = np.random.default_rng(features)
    affinity = random.uniform(0.1, 0.9, (features, features))
    affinity = (affinity + affinity.T) / 2
    np.fill_diagonal(affinity, 1.0)
    return Partition(
        (HOSTILE, *(f"feature_{number}" for number in range(1, features))),
        tuple(number % towers for number in range(features)),
        tuple(8.0 * (1 + number) for number in range(features)),
        affinity,
        random.normal(size=(features, 2)),
        0.21,
        False,
    )


def visible(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_shows_every_feature_and_tower() -> None:
    partition = sample()
    root = ET.fromstring(render_partition("ads", partition, "runs/ads"))
    text = visible(root)
    assert visible(next(root.iter("h1"))) == "ads: features in towers"
    assert "those that interact most together, from the vectors of runs/ads" in text
    assert "by 0.21 (root mean square) from the affinities" in text
    for name in partition.features[1:]:
        assert name in text
    shown = [[visible(cell) for cell in row] for row in root.iter("tr")]
    for row in tower_rows(partition)[1:]:  # the first is hostile
        assert row in shown
    assert [svg.get("aria-label") for svg in root.iter("svg")] == [
        "Map of 7 features in 3 towers",
        "Affinities of 7 features",
        "Load of 3 towers, the greatest 1.29 times the mean",
    ]
    assert HOSTILE.replace("\x07", "\ufffd") in "".join(root.itertext())
    assert "those that interact least together" in render_partition("a", _diverse(partition), "r")


def _diverse(partition: Partition) -> Partition:
    return Partition(
        partition.features, partition.tower_F, partition.loads_F, partition.affinity_FF, partition.places_F2, 0.1, True
    )


def test_the_page_loads_nothing_and_is_written_whole(tmp_path: Path) -> None:
    write_partition(tmp_path / "towers.html", "ads", sample(), "runs/ads")
    page = (tmp_path / "towers.html").read_text(encoding="utf-8")
    assert page == render_partition("ads", sample(), "runs/ads")
    assert "default-src &#x27;none&#x27;" in page
    assert "prefers-color-scheme: dark" in page
    assert re.findall(r"(?:src|href)=\"(?!#)", page) == []
    assert "<script" not in page
    assert [path.name for path in tmp_path.iterdir()] == ["towers.html"]


def test_dots_are_where_the_map_says_and_have_the_colour_of_their_tower() -> None:
    partition = sample()
    root = ET.fromstring(feature_map(partition))
    dots = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in root.iter("circle")]
    drawn = np.array(dots) * [1, -1]
    places = partition.places_F2
    for one in range(7):
        for other in range(one):
            scale = np.linalg.norm(drawn[one] - drawn[other]) / np.linalg.norm(places[one] - places[other])
            first = np.linalg.norm(drawn[1] - drawn[0]) / np.linalg.norm(places[1] - places[0])
            assert scale == pytest.approx(first, rel=0.02)
    assert drawn.min(0)[0] >= 0
    assert np.abs(drawn).max() <= 360
    fills = [dot.get("style") for dot in root.iter("circle")]
    assert fills == [f"fill:{colour(tower, 3)}" for tower in partition.tower_F]
    assert len({colour(tower, 26) for tower in range(26)}) == 26
    numbers = [visible(text) for text in root.iter("text") if text.get("class") == "on"]
    assert numbers == [str(tower) for tower in partition.tower_F]


def test_bars_are_as_long_as_loads() -> None:
    partition = sample()
    root = ET.fromstring(load_bars(partition))
    widths: dict[float, float] = {}
    for rectangle in root.iter("rect"):
        top = float(rectangle.get("y", ""))
        widths[top] = widths.get(top, 0.0) + float(rectangle.get("width", ""))
    lengths = [widths[top] for top in sorted(widths)]
    unit = lengths[0] / partition.loads[0]
    assert lengths == pytest.approx([load * unit for load in partition.loads], abs=0.3)
    (line,) = (each for each in root.iter("line") if each.get("class") == "best")
    assert float(line.get("x1", "")) == pytest.approx(LEFT + unit * sum(partition.loads) / 3, abs=0.2)


def test_many_features_are_drawn_without_labels() -> None:
    many = sample(LABELLED + 20, 8)
    assert len([text for text in ET.fromstring(feature_map(many)).iter("text") if text.get("class") != "on"]) == 0
    squares = list(ET.fromstring(affinity_matrix(many)).iter("rect"))
    assert len(squares) == (LABELLED + 20) * (LABELLED + 19) + 8
    assert render_partition("many", many, "r").count("<tr>") == 9


def test_a_summary_says_load_and_affinity() -> None:
    within, between = sample().affinities
    assert summary(sample()) == (
        f"The most loaded tower has 1.29× the mean load; two features of one tower have a mean affinity of "
        f"{within:.4g}, of different towers {between:.4g}."
    )
