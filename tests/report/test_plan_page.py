"""The plan's page: every table and device is shown, bars have the right lengths, unusual names stay text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from plan_sample import NAMES, histories_plan, sample_plan, tiered_plan
from report_sample import HOSTILE

from ziggurat.planning.quantities import format_bytes, format_seconds
from ziggurat.planning.tier_cost import TIER_NAMES
from ziggurat.report.plan.chart import LEFT, Bar, BarSegment, fitting, stacked
from ziggurat.report.plan.page import render_plan
from ziggurat.report.plan.rows import alternatives, devices, format_ranks, percent, tables, tiers, verdict
from ziggurat.report.svg import RIGHT, WIDTH


def visible(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_shows_every_table_and_device() -> None:
    planned = sample_plan()
    root = ET.fromstring(render_plan("ads", planned))
    text = visible(root)
    assert visible(next(root.iter("h1"))) == "ads: placement of the tables"
    assert verdict(planned) in text
    assert "25 tables on 2 hosts × 4 devices (h100), 6 GB each, 4,096 examples per step and device" in text
    assert "something is assumed" in [visible(note) for note in root.iter("p") if note.get("class") == "note"]
    for device in planned.devices:
        assert format_bytes(device.spare_bytes) in text
        assert format_seconds(device.seconds) in text
    shown = [[visible(cell) for cell in row] for row in root.iter("tr")]
    for row in tables(planned)[1][1:]:  # the first is hostile, below
        assert row in shown
    for label in ("host 0, 3", "host 1, 4"):
        assert label in text


def test_both_memories_are_drawn_and_tabulated() -> None:
    planned = tiered_plan()
    assert 0 < planned.slow_share < 0.5
    root = ET.fromstring(render_plan("ads", planned))
    text = visible(root)
    assert "850 kB each and 1 MB of slow memory" in text
    assert f"{percent(planned.slow_share)} of the look-ups read slow memory." in verdict(planned)
    drawings = [svg.get("aria-label", "").split(",")[0] for svg in root.iter("svg")]
    assert drawings == [
        "Bytes on each device",
        "Bytes in the slow memory of each device",
        "Modelled seconds of a step on each device",
    ]
    titles = [visible(title) for title in root.iter("title")]
    fast = planned.plan.placements["t0"].fast_rows
    assert fast is not None
    assert any(f"5,000 rows by falling frequency, {fast:,} of them fast" in title for title in titles)
    headers, rows, _ = devices(planned)
    for device, row in zip(planned.devices, rows, strict=True):
        cells = dict(zip(headers, row, strict=True))
        assert cells["in fast"] == format_bytes(device.fast_bytes)
        assert cells["in slow"] == format_bytes(device.slow_bytes)
        assert cells["slow reads"] == percent(device.slow_lookups / device.lookups)
        assert device.fast_bytes + device.buffer_bytes + device.spare_bytes == 850_000
    headers, rows, _ = tables(planned)
    assert [dict(zip(headers, row, strict=True))["fast rows"] for row in rows] == [
        f"{planned.plan.placements[name].fast_rows:,}" for name in ("t0", "t1")
    ]
    assert "slow" not in " ".join(devices(sample_plan())[0] + tables(sample_plan())[0])


def test_bars_are_as_long_as_their_values() -> None:
    parts = [BarSegment("b", 1.0, "second", "b: 1"), BarSegment("a", 3.0, "first", "a: 3")]
    root = ET.fromstring(stacked("two", [Bar("0", parts), Bar("1", parts[:1])], "bytes", "{:g} B".format, limit=5.0))
    rectangles = [(r.get("class"), float(r.get("x", "")), float(r.get("width", ""))) for r in root.iter("rect")]
    unit = (WIDTH - LEFT - RIGHT) / (5.0 * 1.02)
    assert [cls for cls, _, _ in rectangles] == ["dot part first", "dot part second", "dot part second"]
    assert [x for _, x, _ in rectangles] == pytest.approx([LEFT, LEFT + 3 * unit, LEFT], abs=0.06)
    assert [width for _, _, width in rectangles] == pytest.approx([3 * unit, unit, unit], abs=0.11)
    (line,) = (each for each in root.iter("line") if each.get("class") == "best")
    assert float(line.get("x1", "")) == pytest.approx(LEFT + 5 * unit, abs=0.06)
    assert [visible(title) for title in root.iter("title")] == ["a: 3", "b: 1", "b: 1", "limit: 5 B"]


def test_a_far_limit_is_left_out_and_small_segments_are_merged() -> None:
    small = [BarSegment(f"c{k}", 0.001, "first", "") for k in range(50)] + [
        BarSegment("other", 0.002, "quiet", "alone")
    ]
    root = ET.fromstring(stacked("", [Bar("0", [BarSegment("a", 1.0, "first", "a"), *small])], "", str, limit=4.0))
    assert not [each for each in root.iter("line") if each.get("class") == "best"]
    assert [visible(title) for title in root.iter("title")] == ["a", "alone", "50 small shards"]
    assert ET.fromstring(stacked("", [Bar("0", [])], "", str)).tag == "svg"


def test_names_are_truncated_to_their_bars() -> None:
    assert fitting("user_id", 60) == "user_id"
    assert fitting("user_id", 30) == "use…"
    assert fitting("user_id", 15) == ""
    assert fitting("物品编号", 40) == "物品…"
    assert fitting("r", 8) == "r"


def test_hostile_names_stay_text_and_nothing_is_loaded() -> None:
    page = render_plan(HOSTILE, sample_plan())
    root = ET.fromstring(page)
    for element in root.iter():
        assert element.tag not in {"script", "link", "img", "iframe", "object"}
        assert not {"src", "href"} & set(element.attrib)
    assert not re.search(r"url\(|@import", page)
    assert HOSTILE.split("\x07")[0].strip() in visible(root)
    assert NAMES[1] in visible(root)
    assert page == render_plan(HOSTILE, sample_plan())


def test_of_many_devices_the_slowest_are_drawn() -> None:
    planned = sample_plan(hosts=4, devices=25, memory=8e10)
    root = ET.fromstring(render_plan("ads", planned))
    drawings = list(root.iter("svg"))
    assert "The 64 slowest of 100 devices." in visible(root)
    labels = [visible(text) for text in drawings[1].iter("text") if (text.text or "").startswith("host ")]
    assert len(labels) == 64
    slowest = max(planned.devices, key=lambda device: device.seconds)
    assert f"host {slowest.host}, {slowest.rank}" in labels


def test_a_single_host_shows_no_traffic_between_hosts() -> None:
    root = ET.fromstring(render_plan("ads", sample_plan(hosts=1, devices=4, memory=8e10)))
    text = visible(root)
    assert "25 tables on 4 devices (h100)" in text
    assert "between" not in text
    assert "device 3" in text


def test_ranks_are_formatted() -> None:
    assert format_ranks((0, 1, 2, 3)) == "0–3"
    assert format_ranks((0, 1)) == "0, 1"
    assert format_ranks((3, 0, 3)) == "3, 0, 3"
    assert format_ranks(tuple(range(20, 0, -1))) == "20, 19, 18, 17, 16, 15, 14, 13, … (20)"


def test_shows_rows_in_tiers_and_other_ways_to_place_them() -> None:
    planned = histories_plan()
    root = ET.fromstring(render_plan("shop", planned))
    (found,) = [each for each in root.iter("section") if each.get("id") == "tiers"]
    shown = [[visible(cell) for cell in row] for row in found.iter("tr")]
    for rows in (tiers(planned)[1], alternatives(planned)[1]):
        for row in rows:
            assert row in shown
    (estimate,) = planned.tiers
    texts = [visible(each) for each in found.iter("title")]
    for load in estimate.tiers[1:]:  # the first has no rows here
        assert any(text.startswith(f"{load.rows:,} rows") and format_bytes(load.kept_bytes) in text for text in texts)
    for way in estimate.alternatives:
        assert f"{way.name}: {format_bytes(way.inter_bytes)} between" in texts
    (devices_section,) = [each for each in root.iter("section") if each.get("id") == "devices"]
    tips = [visible(each) for each in devices_section.iter("title")]
    for name in TIER_NAMES[1:]:
        assert any(tip.startswith("item, row_tiers: ") and f"by falling frequency, {name}" in tip for tip in tips)
    assert "tiers" not in [each.get("id") for each in ET.fromstring(render_plan("ads", sample_plan())).iter("section")]
