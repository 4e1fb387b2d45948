"""Draws mean ranks of methods over data sets with Nemenyi's critical difference (Demšar, JMLR 7, 2006, figure 1)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.plots import canvas_of
from ziggurat.metrics.method_ranks import alike, critical_difference, ranks

_INK, _BAR = "#2f5d8a", "#555555"


def draw_ranks(path: Path, figures: Sequence[Mapping[str, Any]]) -> None:
    """Draws the ranks of figures named ``group:method@set``, a panel for each group; equal figures give equal bytes.

    A figure's value is the mean of its samples. Bars join methods that the test does not tell apart.
    """
    groups: dict[str, dict[str, dict[str, float]]] = {}
    for figure in figures:
        where, at, data_set = str(figure["name"]).partition("@")
        group, _, method = where.partition(":")
        if at:
            samples = [float(each) for each in figure["samples"]]
            groups.setdefault(group, {}).setdefault(data_set, {})[method] = statistics.fmean(samples)
    heights = [len(next(iter(sets.values()))) / 2 + 3 for sets in groups.values()]
    with canvas_of(path, 7.5, 0.32 * sum(heights)) as canvas:
        axes: Any = canvas.subplots(len(groups), 1, squeeze=False, height_ratios=heights)
        for panel, (group, sets) in zip(axes[:, 0], groups.items(), strict=True):
            _panel(panel, group, sets)


def _panel(panel: Any, group: str, sets: Mapping[str, Mapping[str, float]]) -> None:
    methods = list(next(iter(sets.values())))
    mean_ranks = ranks(np.array([[own[method] for method in methods] for own in sets.values()])).mean(0).tolist()
    difference = critical_difference(len(methods), len(sets))
    order = sorted(range(len(methods)), key=lambda place: (mean_ranks[place], place))
    last, half = len(methods), (len(methods) + 1) // 2
    panel.set_xlim(-0.6, last + 1.6)
    panel.set_ylim(half + 1.6, -1.6)
    panel.axis("off")
    panel.set_title(f"{group}: mean rank over {len(sets)} sets, 1 is the best", loc="left", fontsize=9)
    panel.plot([1, last], [0, 0], color=_BAR, lw=1)
    for rank in range(1, last + 1):
        panel.plot([rank, rank], [0, -0.15], color=_BAR, lw=1)
        panel.annotate(str(rank), (rank, -0.2), ha="center", va="bottom")
    panel.plot([1, 1 + difference], [-1.1, -1.1], color=_INK, lw=2)
    panel.annotate(f"critical difference {difference:.2f}", (1 + difference + 0.1, -1.1), va="center")
    groups = alike(mean_ranks, difference)
    for number, group_ in enumerate(groups):
        y = 0.22 + 0.22 * number
        ends = [mean_ranks[group_[0]] - 0.04, mean_ranks[group_[-1]] + 0.04]
        panel.plot(ends, [y, y], color=_BAR, lw=3, solid_capstyle="butt")
    for row, place in enumerate(order):
        left = row < half
        y = 0.6 + 0.22 * len(groups) + (row if left else len(order) - 1 - row)
        end = 0.7 if left else last + 0.3
        rank = mean_ranks[place]
        panel.plot([rank, rank, end], [0, y, y], color=_INK, lw=0.8)
        text = f"{methods[place]} {rank:.2f}"
        panel.annotate(text, (end + (-0.06 if left else 0.06), y), ha="right" if left else "left", va="center")
