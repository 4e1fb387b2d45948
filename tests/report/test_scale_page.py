"""The page of scaling sweeps: every figure is shown, the law is drawn at its values, weak laws are called weak."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from report_sample import HOSTILE
from scale_sample import LAW, sweep_result, sweep_series

from ziggurat.core.errors import ConfigError
from ziggurat.metrics.power_law import PowerLaw
from ziggurat.report.scaling.page import render_scale, write_scale
from ziggurat.report.scaling.titles import labels, titles
from ziggurat.report.svg import Axes, log_ticks
from ziggurat.training.scaling.result import DivergedRun, RunResult, ScaleResult

THREE = (
    sweep_result(),
    sweep_result(PowerLaw(0.48, 0.02 * 120_000**0.8, 0.8), "dcn_v2", "crossed"),
    sweep_result(PowerLaw(0.5, 0, 0), "dlrm", "dots", sizes=4),
)


def visible(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def parsed(*results: ScaleResult) -> ET.Element:
    return ET.fromstring(render_scale(sweep_series(*results)))


def test_shows_every_value() -> None:
    result = THREE[0]
    fit = sweep_series(result)[0].fit
    assert fit is not None
    text = visible(parsed(result))
    low, high = fit.interval("exponent")
    assert f"{fit.law.exponent:.4g} [{low:.4g}, {high:.4g}]" in text
    assert f"log-loss = {fit.law.floor:.4f} + {fit.law.scale:.4g} · FLOPs−{fit.law.exponent:.3g}" in text
    assert f"{fit.r2_log:.4f}" in text
    assert fit.verdict in text
    assert "120 kFLOP to 9.72 MFLOP per example · 15 runs · figures on test" in text
    for entry in result.sizes:
        assert f"{entry.size.dense_parameters:,}" in text
        assert f"{entry.mean('test', 'log_loss'):.4f} ±" in text
        assert f"{entry.mean('test', 'auc'):.4f} ±" in text
    assert "654,321" in text
    assert "layers 8, rank 19" in text
    assert "81.0 s" in text  # size 2: the mean of 80, 81 and 82
    assert "1.73 T" in text  # 3 · 120 k · 4.8 M
    fall = 100 * (result.sizes[4].mean("test", "log_loss") / result.sizes[0].mean("test", "log_loss") - 1)
    assert f"−{-fall:.2f} %" in text
    assert "rank: 17" in text  # the config


def test_dots_and_curve_are_drawn_at_their_values() -> None:
    root = parsed(THREE[0])
    drawing = next(root.iter("svg"))
    dots = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in drawing.iter("circle")]
    assert len(dots) == 5
    steps = [right[0] - left[0] for left, right in pairwise(dots)]
    assert steps == pytest.approx([steps[0]] * 4, abs=0.11)  # equal ratios, equal distances
    curve = next(line for line in drawing.iter("polyline") if line.get("class") == "line first")
    points = [tuple(map(float, pair.split(","))) for pair in curve.get("points", "").split()]
    assert points[0][0] == pytest.approx(dots[0][0], abs=0.11)
    assert points[-1] == pytest.approx(dots[-1], abs=1.0)
    bars = [line for line in drawing.iter("polyline") if line.get("class") == "line bar first"]
    assert len(bars) == 5
    tips = [visible(title) for title in drawing.iter("title")]
    assert tips[1].startswith("wukong, size 2: 360 kFLOP, log-loss 0.4")
    assert "3 seeds" in tips[1]


def test_several_sweeps_share_a_chart() -> None:
    root = parsed(*THREE)
    assert len(list(root.iter("svg"))) == 1
    classes = {line.get("class") for line in root.iter("polyline")}
    assert {"line first", "line second", "line third"} <= classes
    sections = [section.get("id") for section in root.iter("section")]
    assert sections == ["law", "sizes-first", "sizes-second", "sizes-third", "config"]
    text = visible(root)
    assert "dlrm: No power law visible: over these sizes the loss does not fall by more than its noise." in text
    assert "wukong: The loss falls along a power law" in text
    assert visible(next(root.iter("h1"))) == "shop and crossed and dots: quality over compute"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (sweep_result(sizes=2), "A law needs 3 model sizes; 2 of them are trained."),
        (sweep_result(sizes=3, seeds=1), "Each model size was trained once and there are few sizes"),
        (sweep_result(sizes=3), "The largest size is only 9.0 times the smallest"),
    ],
)
def test_a_weak_law_is_called_weak(result: ScaleResult, message: str) -> None:
    root = parsed(result)
    notes = [visible(element) for element in root.iter("p") if element.get("class") == "note"]
    assert any(note.startswith(message) for note in notes)
    assert "nan" not in visible(root).lower()


def test_is_well_formed_loads_nothing_and_hostile_text_stays_text() -> None:
    page = render_scale(sweep_series(sweep_result(name=HOSTILE)))
    root = ET.fromstring(page)
    for element in root.iter():
        assert element.tag not in {"script", "link", "img", "iframe", "object"}
        assert not {"src", "href"} & set(element.attrib)
    assert not re.search(r"url\(|@import", page)
    assert HOSTILE.split("\x07")[0].strip() in visible(next(root.iter("h1")))
    assert page == render_scale(sweep_series(sweep_result(name=HOSTILE)))


def test_writes_the_page_and_returns_the_laws(tmp_path: Path) -> None:
    same = [THREE[0], THREE[0], replace(THREE[0], name="other")]
    laws = write_scale(tmp_path / "new" / "scale.html", same)
    assert [law is not None and round(law.law.exponent, 1) for law in laws] == [LAW.exponent] * 3
    folders = [tmp_path / name for name in ("a", "b", "c")]
    assert titles(same, folders) == [
        f"wukong, shop, {folders[0]}",
        f"wukong, shop, {folders[1]}",
        f"wukong, other, {folders[2]}",
    ]
    assert titles([same[0], same[2]], folders[:2]) == ["wukong, shop", "wukong, other"]
    assert labels([same[0], same[2]]) == ["shop, wukong", "other, wukong"]
    text = (tmp_path / "new" / "scale.html").read_text(encoding="utf-8")
    assert "wukong, shop, 1" in text
    assert "wukong, other, 3" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dataset": "beef"},
            "different datasets cannot be compared: shop has f00df00df00d, shop has beef",
        ),
        (
            {"split": "validation"},
            "different splits cannot be compared: shop has test, shop has validation",
        ),
        ({"sizes": ()}, "shop: no run is finished"),
    ],
)
def test_sweeps_that_cannot_be_compared_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write_scale(tmp_path / "scale.html", [THREE[0], replace(THREE[0], **changes)])
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_folders_of_sweeps(tmp_path: Path) -> None:
    other = replace(THREE[0], split="validation")
    with pytest.raises(ConfigError, match="splits cannot be compared: runs/a has test, runs/b has validation"):
        write_scale(tmp_path / "scale.html", [THREE[0], other], [Path("runs/a"), Path("runs/b")])
    with pytest.raises(ConfigError, match="runs/a: the same sweep is given 2 times"):
        write_scale(tmp_path / "scale.html", THREE[:2], [Path("runs/a"), Path("runs/x/../a")])


def test_a_sweep_of_several_models_is_titled_by_all() -> None:
    result = THREE[0]
    sizes = (*result.sizes[:2], *(replace(entry, model={"name": "dnn"}) for entry in result.sizes[2:]))
    assert titles([replace(result, sizes=sizes)]) == ["wukong → dnn"]


def test_metrics_of_several_tasks_are_called_means() -> None:
    def of_tasks(run: RunResult) -> RunResult:
        figures = {f"{task}/{name}": value for task in ("click", "buy") for name, value in run.figures["test"].items()}
        return replace(run, figures={"test": figures})

    sizes = tuple(replace(entry, runs=tuple(map(of_tasks, entry.runs))) for entry in THREE[0].sizes)
    text = visible(parsed(replace(THREE[0], sizes=sizes)))
    assert "figures on test, mean of click and buy" in text
    assert "Log-loss and AUC are means over the 2 tasks, click and buy." in text
    assert "tasks" not in visible(parsed(THREE[0]))


def test_a_flat_or_undetermined_law_has_no_formula() -> None:
    flat = visible(parsed(sweep_result(PowerLaw(0.6411, 0, 0), sizes=3, seeds=1, noise=0)))
    assert "No fall visible: flat at 0.6411." in flat
    assert "log-loss is flat at 0.6411" in flat
    assert "wukongflat at 0.6411–––" in flat  # the row of the table
    assert "FLOPs−" not in flat
    three = sweep_result(sizes=3, seeds=1)
    row = next(parsed(three).iter("tbody")).findall("tr/td")
    assert visible(row[4]) == "–"
    step = sweep_result(PowerLaw(0.5, 0.1 * 120_000**12, 12), noise=1e-3)
    text = visible(parsed(step))
    assert "but the exponent is not determined" in text
    assert "FLOPs−" not in text


def test_a_diverged_run_is_reported() -> None:
    lost = DivergedRun(1, "rung-02/seed-1", "the training loss became nan by step 20")
    sizes = (THREE[0].sizes[0], replace(THREE[0].sizes[1], diverged=(lost,)), *THREE[0].sizes[2:])
    root = parsed(replace(THREE[0], sizes=sizes))
    notes = [visible(element) for element in root.iter("p") if element.get("class") == "note"]
    assert notes[0].startswith("Size 2, seed 1, diverged and is left out: the training loss became nan by step 20.")


def test_too_many_sweeps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="6 sweeps are too many for one chart"):
        write_scale(tmp_path / "scale.html", [THREE[0]] * 6)


def test_logarithmic_ticks_by_hand() -> None:
    assert log_ticks(1e5, 1e7) == [1e5, 3e5, 1e6, 3e6, 1e7]
    assert log_ticks(1.1e5, 9e5) == [2e5, 5e5]
    assert log_ticks(90, 1100) == [100, 200, 500, 1000]
    assert log_ticks(1, 1e12) == [1, 1e3, 1e6, 1e9, 1e12]
    assert log_ticks(100, 130) == [100, 110, 120, 130]
    axes = Axes((1e2, 1e6), (0, 1), "x", x_log=True)
    assert [axes.x(value) for value in (1e2, 1e4, 1e6)] == pytest.approx([50, 196, 342])
