"""The report page as text: well-formed, complete, self-contained, and safe against user input."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from report_sample import HOSTILE, sample_inputs

from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.curves import curves
from ziggurat.report.html import render_report, write_report
from ziggurat.report.inputs import ModelSize, ReportInputs, SliceRow, TaskResult

PAGES = {
    "one task": sample_inputs(),
    "two tasks": sample_inputs(("like", "share"), title=HOSTILE),
    "bare": ReportInputs("bare"),
}


def parsed(inputs: ReportInputs) -> ET.Element:
    """Parses the page with a strict XML parser, which rejects unbalanced or unescaped markup."""
    return ET.fromstring(render_report(inputs))


def visible(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


@pytest.mark.parametrize("name", PAGES)
def test_is_well_formed_and_loads_nothing(name):
    page = render_report(PAGES[name])
    root = ET.fromstring(page)
    anchors = {element.get("id") for element in root.iter("section")}
    for element in root.iter():
        assert element.tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "image", "use"}
        assert not {"src", "srcset", "background", "data", "action"} & set(element.attrib)
        assert not any(key.startswith("on") for key in element.attrib)
        if (target := element.get("href")) is not None:
            assert target.startswith("#")
            assert target[1:] in anchors
    style = visible(next(root.iter("style")))
    assert not re.search(r"url\(|@import|http", style)
    policy = next(meta for meta in root.iter("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.get("content", "").startswith("default-src 'none'; style-src 'unsafe-inline'")


def test_rows_on_disk_are_shown_if_tables_are_offloaded():
    assert "Rows on disk" not in visible(parsed(sample_inputs()))
    figures = {"lookups": 1000.0, "hits": 880.0, "missed": 100.0, "reads": 70.0, "writes": 3.0, "waited_s": 0.0125}
    history = [
        {"step": step, "epoch": 0, "split": "beyond_memory", "hit_rate": 0.5 + step / 100, **figures}
        for step in range(10, 50, 10)
    ]
    history[0]["hit_rate"] = None
    text = visible(parsed(replace(sample_inputs(), history=history)))
    assert "In the last quarter of the steps, 90.0 % of the look-ups found their rows in memory" in text
    assert (
        "Per step, 100 distinct rows were read from disk or initialised at their first use, and training waited 12.5 ms"
        in text
    )
    assert "Missing rows per step" in text


def test_same_inputs_same_bytes():
    assert render_report(sample_inputs()) == render_report(sample_inputs())


def test_shows_every_value():
    inputs = PAGES["one task"]
    text = visible(parsed(inputs))
    test = next(result for result in inputs.results if result.split == "test")
    for name in ("auc", "ne", "log_loss", "gauc", "calibration", "ece", "ece_mass", "base_rate"):
        assert f"{test.figures[name]:.4f}" in text, name
    for row in inputs.comparison:
        assert row.model in text
        assert row.settings in text
        assert f"{row.figures['auc']:.4f}" in text
    for feature in inputs.features:
        assert feature.name in text
    for table in inputs.tables:
        assert f"{table.rows:,}" in text
    for needed in (
        "80,367 train",
        "12 rows rejected",
        "2.13.0+cpu",
        "batch_size: 4096",
        "371 kFLOP",
        "step 1,050",
        "2.6 min",
        "61.3 %",
        "4.6 %",
    ):
        assert needed in text, needed
    assert inputs.notes[0] in text


def test_the_best_of_each_column_is_marked():
    root = parsed(PAGES["one task"])
    won = [visible(element) for element in root.iter("span") if element.get("class") == "won"]
    assert won == ["0.7881", "0.5541", "0.8102"]
    headline = visible(next(root.iter("header")))
    auc = PAGES["one task"].comparison[0].figures["auc"]
    assert f"−{0.7881 - auc:.4f} AUC" in headline


def test_every_task_has_a_headline_in_order():
    header = next(parsed(sample_inputs(("share", "like"))).iter("header"))
    assert [visible(heading) for heading in header.iter("h3")] == ["share", "like"]
    tests = {result.task: result for result in sample_inputs(("share", "like")).results if result.split == "test"}
    shown = [visible(tiles) for tiles in header.iter("dl")]
    assert len(shown) == 2
    for task, tiles in zip(("share", "like"), shown, strict=True):
        assert f"AUC{tests[task].figures['auc']:.4f}" in tiles.replace(" ", "")
    assert re.findall(r"Metrics of (\w+) on the test split, 20,000 rows", visible(header)) == ["share", "like"]
    alone = next(parsed(PAGES["one task"]).iter("header"))
    assert len([*alone.iter("dl")]) == 1
    assert not [*alone.iter("h3")]


def test_an_axis_ends_at_the_limit_of_its_metric():
    history = [
        {"step": step, "split": "validation", "auc": auc, "log_loss": 1.0} for step, auc in ((1, 0.5), (2, 0.99))
    ]
    drawn = {svg.get("aria-label"): svg for svg in parsed(ReportInputs("curves", history=history)).iter("svg")}
    (auc,) = (svg for label, svg in drawn.items() if label.startswith("AUC"))
    line = next(mark for mark in auc.iter("polyline"))
    top = float(line.get("points").split()[-1].split(",")[1])
    assert top == pytest.approx(10 + (230 - 38 - 10) * 0.01 / (1 - 0.4706), abs=0.1)  # the upper edge, at 10, is 1


def test_hostile_text_stays_text():
    root = parsed(PAGES["two tasks"])
    shown = " ".join(HOSTILE.replace("\x07", "\ufffd").split())
    assert visible(next(root.iter("h1"))) == shown
    assert shown in visible(next(root.iter("pre")))
    assert sum(shown in visible(cell) for cell in root.iter("td")) >= 2
    assert render_report(PAGES["two tasks"]).count("<style>") == 1


def test_every_drawing_has_a_sentence_and_a_description():
    root = parsed(PAGES["two tasks"])
    figures = list(root.iter("figure"))
    # Loss, NE and AUC of both tasks and the objective; ROC, calibration and scores of both.
    assert len(figures) == 7 + 6
    for element in figures:
        assert len(visible(element.find("figcaption"))) > 30
        assert element.find("svg").get("aria-label")
    skews = [svg for svg in root.iter("svg") if svg.get("class") == "spark"]
    assert len(skews) == 4


def test_curves_are_drawn_at_their_values():
    root = parsed(PAGES["one task"])
    roc = next(svg for svg in root.iter("svg") if "ROC" in svg.get("aria-label", ""))
    line = next(mark for mark in roc.iter("polyline") if mark.get("class") == "line first")
    points = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert points[0] == (50.0, 262.0)  # (0, 0): left margin, height minus lower margin
    assert points[-1] == (342.0, 10.0)  # (1, 1): width minus right margin, upper margin
    curve = PAGES["one task"].results[0].curves.roc
    middle = len(points) // 2
    assert points[middle][0] == pytest.approx(50 + 292 * curve.false_positive_rate_P[middle], abs=0.1)
    assert points[middle][1] == pytest.approx(262 - 252 * curve.true_positive_rate_P[middle], abs=0.1)


def test_empty_sections_are_left_out():
    root = parsed(PAGES["bare"])
    assert list(root.iter("section")) == []
    assert list(root.iter("a")) == []
    assert "nan" not in visible(root).lower()


def test_undefined_metrics_show_the_reason():
    metrics = BinaryMetrics(grouped=True)
    metrics.update([0.5, 0.1], [0, 0], None, [1, 2])
    result = TaskResult("like", "test", metrics.compute(), metrics.undefined(), curves(metrics.histogram, 20))
    root = parsed(ReportInputs("one class", results=[result]))
    text = visible(root)
    assert "none of 2 rows is positive" in text
    assert "nan" not in text
    assert "ROC" not in [visible(heading) for heading in root.iter("h4")]


def test_missing_and_non_finite_values_are_skipped():
    history = [
        {"step": 1, "split": "train", "loss": 0.7},
        {"step": 2, "split": "train", "loss": math.nan},
        {"step": 2, "split": "validation", "log_loss": 0.6, "auc": math.nan},
        {"step": 3, "split": "train", "loss": math.inf},
    ]
    root = parsed(ReportInputs("diverged", history=history))
    drawings = [svg.get("aria-label") for svg in root.iter("svg")]
    assert drawings == ["Loss over steps: train ends at 0.7000; validation ends at 0.6000"]


def test_slices_have_a_table_per_feature():
    rows = [SliceRow("like", name, "a", {"rows": 3.0, "auc": math.nan}) for name in ("gender", "city")]
    root = parsed(ReportInputs("slices", slices=rows))
    assert [visible(heading) for heading in root.iter("h3")] == ["gender", "city"]
    assert [visible(cell) for cell in root.iter("td")] == ["a", "3", "–"] * 2


def test_size_without_tables_and_write(tmp_path):
    inputs = replace(PAGES["bare"], model=ModelSize("LR", 11, 22))
    write_report(tmp_path / "new" / "report.html", inputs)
    assert (tmp_path / "new" / "report.html").read_text(encoding="utf-8") == render_report(inputs)
    assert "22 FLOP" in render_report(inputs)
