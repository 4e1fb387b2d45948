"""The planners section: a row per planner, a dot per device at its value, the bound, and planners without a plan."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from plan_sample import sample_plan

from ziggurat.planning.comparison import Compared, Comparison
from ziggurat.planning.quantities import format_bytes, format_seconds
from ziggurat.report.plan.page import render_plan
from ziggurat.report.plan.rows import in_use
from ziggurat.report.plan.strip_chart import LEFT, Strip, strips
from ziggurat.report.svg import RIGHT, WIDTH


def visible(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def comparison() -> Comparison:
    planned = sample_plan(hosts=1, devices=3, memory=8e10)
    return Comparison(
        "the cost model",
        0.002,
        True,
        (
            Compared("rules", planned, "", (0.002, 0.003, 0.004), 0.01),
            Compared("by dim", planned, "", (0.001, 0.002, 0.008), 0.001),
            Compared("autoshard", None, "device 1 lacks 3 GB", (), 0.5),
        ),
    )


def test_every_planner_and_device_is_drawn_with_a_tooltip() -> None:
    found = comparison()
    root = ET.fromstring(render_plan("ads", found.planned, found))
    text = visible(root)
    assert "Planners are compared by the cost model. The lower bound on the slowest device is 2 ms." in text
    assert "autoshard: device 1 lacks 3 GB" in [visible(note) for note in root.iter("p") if note.get("class") == "note"]
    time, memory = list(root.iter("svg"))[:2]
    time_tips = [visible(title) for title in time.iter("title")]
    assert time_tips[0] == "rules, device 0: 2 ms"
    assert time_tips[-1] == "lower bound: 2 ms"
    assert len(list(time.iter("circle"))) == len(list(memory.iter("circle"))) == 6
    memory_tips = [visible(title) for title in memory.iter("title")]
    assert memory_tips[0] == f"rules, device 0: {format_bytes(in_use(found.planned.devices[0]))}"
    rows = [[visible(cell) for cell in row] for row in root.iter("tr")]
    assert ["autoshard", "does not fit", *["–"] * 5, "500 ms"] in rows
    (rules,) = (row for row in rows if row[:2] == ["rules", "4 ms"])
    assert rules[2:4] == ["100.0 %", "1.333"]
    assert rules[-1] == format_seconds(0.01)


def test_an_even_share_is_not_called_a_lower_bound_unless_proven() -> None:
    found = replace(comparison(), proven=False)
    text = visible(ET.fromstring(render_plan("ads", found.planned, found)))
    assert "An even share of all tables together would be 2 ms" in text
    assert "lower bound" not in text


def test_without_a_comparison_there_is_no_planners_section() -> None:
    found = comparison()
    assert "Planners" not in render_plan("ads", found.planned)


def test_dots_are_at_their_values() -> None:
    rows = [Strip("a", "first", [(10.0, "ten"), (20.0, "twenty")]), Strip("no plan", "quiet", [])]
    root = ET.fromstring(strips("two", rows, "seconds", str, ("bound", 5.0)))
    left, right = (float(dot.get("cx", "")) for dot in root.iter("circle"))
    assert (right - LEFT) / (left - LEFT) == pytest.approx(2, rel=1e-2)
    assert left < right < WIDTH - RIGHT
    (line,) = (line for line in root.iter("line") if line.get("class") == "best")
    assert (float(line.get("x1", "")) - LEFT) / (left - LEFT) == pytest.approx(0.5, rel=1e-2)
    far = ET.fromstring(strips("two", rows, "seconds", str, ("bound", 100.0)))
    assert not [line for line in far.iter("line") if line.get("class") == "best"]


def test_devices_with_zero_time_are_drawn() -> None:
    """No device has tables, so all times are zero."""
    found = comparison()
    nothing = replace(found, even_share=0.0, entries=(replace(found.entries[0], seconds=(0.0, 0.0, 0.0)),))
    ET.fromstring(render_plan("ads", found.planned, nothing))
