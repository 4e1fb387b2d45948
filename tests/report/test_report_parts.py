"""Helpers of the report: number formats, ticks, thinning, access skew, markup."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.report import numbers
from ziggurat.report.charts import thin
from ziggurat.report.inputs import access_skew
from ziggurat.report.markup import Html, el, escape
from ziggurat.report.svg import padded, ticks


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numbers.figure(0.78123), "0.7812"),
        (numbers.figure(-0.5), "−0.5000"),
        (numbers.figure(math.nan), "–"),
        (numbers.figure(3.2e12), "3.20e12"),
        (numbers.figure(0.0), "0.0000"),
        (numbers.figure(0.0001234), "0.000123"),
        (numbers.figure(1.234e-7), "1.23e−7"),
        (numbers.figure(0.012345), "0.0123"),
        (numbers.tick(0.0002), "2e−4"),
        (numbers.tick(-0.25), "−0.25"),
        (numbers.tick(20_000), "20 k"),
        (numbers.difference(0.01234), "+0.0123"),
        (numbers.difference(-0.01234), "−0.0123"),
        (numbers.count(1234567.0), "1,234,567"),
        (numbers.percent(0.123), "12.3 %"),
        (numbers.percent(0.0001), "<0.1 %"),
        (numbers.percent(0.9999), ">99.9 %"),
        (numbers.percent(1.0), "100.0 %"),
        (numbers.size(84), "84 B"),
        (numbers.size(1536), "1.5 KiB"),
        (numbers.size(5 * 2**40), "5.0 TiB"),
        (numbers.scaled(371_234, "FLOP"), "371 kFLOP"),
        (numbers.scaled(999_999), "1 M"),
        (numbers.scaled(12), "12"),
        (numbers.duration(3.14), "3.1 s"),
        (numbers.duration(154), "2.6 min"),
        (numbers.duration(9000), "2.5 h"),
        (numbers.short(-0.00031), "−3.10e−4"),
        (numbers.short(1234.5678), "1235"),
        (numbers.short(190000.0), "1.90e5"),
    ],
)
def test_numbers(written, expected):
    assert written == expected


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_even_and_inside(low, width):
    high = low + width
    if high - low < 1e-9 * max(abs(low), abs(high), 1):
        return
    found = ticks(low, high)
    assert 1 <= len(found) <= 7
    slack = 1e-6 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in found)


def test_ticks_by_hand():
    assert ticks(0, 1) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(0.741, 0.762) == [0.745, 0.75, 0.755, 0.76]
    assert ticks(-3, 12) == [0, 5, 10]


def test_padding_has_a_positive_width():
    assert padded([2.0, 2.0]) == (1.88, 2.12)
    assert padded([0.0]) == (-1.0, 1.0)


def test_padding_stays_within_the_possible_values():
    assert padded([0.5, 0.99], within=(0.0, 1.0)) == (pytest.approx(0.4706), 1.0)
    assert padded([0.01, 0.9], within=(0.0, math.inf)) == (0.0, pytest.approx(0.9534))
    assert padded([1.0, 1.0], within=(0.0, 1.0)) == (0.94, 1.0)


def test_thinning_averages_neighbours_and_keeps_the_last_step():
    steps = list(range(1, 1001))
    xs, ys = thin(steps, [float(step) for step in steps], 10)
    assert xs == [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]
    assert ys == [50.5 + 100 * part for part in range(10)]
    assert thin([1, 2], [3.0, 4.0], 10) == ([1, 2], [3.0, 4.0])


def test_access_skew_by_hand():
    counts = np.array([0, 10, 0, 70, 20])
    skew = access_skew(counts, points=1000)
    assert skew is not None
    assert list(zip(skew.row_share_P, skew.access_share_P, strict=True)) == [
        (0.0, 0.0),
        (0.2, 0.7),
        (0.4, 0.9),
        (0.6, 1.0),
        (0.8, 1.0),
        (1.0, 1.0),
    ]
    assert skew.top_percent == 0.7
    assert access_skew(np.zeros(4, np.int64)) is None
    zipf = access_skew(np.rint(1e9 / np.arange(1, 10_001)).astype(np.int64))
    assert zipf is not None
    harmonic = np.cumsum(1 / np.arange(1, 10_001))
    assert zipf.top_percent == pytest.approx(harmonic[99] / harmonic[-1], abs=1e-6)
    assert len(zipf.row_share_P) == 33


def test_markup_escapes_all_but_html():
    assert el("p", "<b>", Html("<i>x</i>"), None, 3, cls='a"b') == '<p class="a&quot;b">&lt;b&gt;<i>x</i>3</p>'
    assert el("line", x1=1, stroke_width=None) == '<line x1="1" />'
    assert escape("a\x00b\ud800") == "a\ufffdb\ufffd"
