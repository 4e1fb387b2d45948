"""The figures of the benchmark ``p3s``: ranks, wins, gains with intervals, over-fit and seconds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from bench.benchmark import Figure
from bench.quality.tabular.measured import OURS, Outcome
from ziggurat.metrics.method_ranks import critical_difference, friedman, ranks, signed_rank
from ziggurat.policies.scores import mean_interval
from ziggurat.search.pipelines.search import METHODS

REGION = 0.001
"""Differences of mean scores that count as none in the signed-rank test."""

Outcomes = Mapping[str, Sequence[Outcome]]
"""Data set -> the outcome of each seed."""


def model_figures(model: str, outcomes: Outcomes) -> list[Figure]:
    """Returns the figures of one downstream model over its sets; at least two sets and three methods."""
    methods = list(next(iter(outcomes.values()))[0])
    means_NM = np.array([[mean(own, method) for method in methods] for own in outcomes.values()])
    ranks_NM = ranks(means_NM)
    mean_ranks = dict(zip(methods, ranks_NM.mean(0).tolist(), strict=True))
    test = friedman(ranks_NM)
    gap = critical_difference(len(methods), len(outcomes))
    best_other = min(rank for method, rank in mean_ranks.items() if method != OURS)
    found = [
        Figure(f"{model}.mean_rank.{method}", "", tuple(ranks_NM[:, at].tolist()), "a sample a set", "mean")
        for at, method in enumerate(methods)
    ]
    found += [
        Figure(f"{model}.rank_ahead", "", (best_other - mean_ranks[OURS],), "best mean rank of the others less ours"),
        Figure(f"{model}.critical_difference", "", (gap,), f"Nemenyi, 5 %; Friedman's test: p = {test.p:.2g}"),
    ]
    place = methods.index(OURS)
    for at, method in enumerate(methods):
        if method != OURS:
            found += _against(f"{model}.{{}}_{method}", means_NM[:, place] - means_NM[:, at], means_NM[:, at])
    for method in methods:
        gaps = [
            tuple(own[method][each] - own[method]["test"] for each in ("chosen", "fresh")) for own in flat(outcomes)
        ]
        note = f"score on the folds that chose less test; fresh folds less test: {_mean(gaps, 1):+.4f}"
        found.append(Figure(f"{model}.over_fit.{method}", "", (_mean(gaps, 0),), note))
    for method in methods:
        seconds = tuple(own[method]["seconds"] for own in flat(outcomes))
        found.append(Figure(f"{model}.seconds.{method}", "s", seconds, "a sample a search"))
    return found


def log_figures(outcomes: Outcomes) -> list[Figure]:
    """Returns the figures of the CTR models: gains in AUC and NE over each method, a sample a seed."""
    found: list[Figure] = []
    ahead = 0
    for name, own in outcomes.items():
        for method in own[0]:
            if method == OURS:
                continue
            gains = tuple(each[OURS]["test"] - each[method]["test"] for each in own)
            nes = tuple(each[method]["ne"] - each[OURS]["ne"] for each in own)
            found.append(
                Figure(f"ctr.{name}.auc_over_{method}", "", gains, "AUC of ours less theirs, a sample a seed", "mean")
            )
            found.append(
                Figure(f"ctr.{name}.ne_below_{method}", "", nes, "NE of theirs less ours, a sample a seed", "mean")
            )
            if method == "standard":
                ahead += statistics.fmean(nes) > 0 and statistics.fmean(gains) > 0
    return [Figure("ctr.logs_ahead_of_standard", "logs", (float(ahead),), "by both AUC and NE"), *found]


def points(model: str, outcomes: Outcomes) -> list[Figure]:
    """Returns ``model:method@set`` figures with a sample a seed, of which the picture is drawn."""
    return [
        Figure(f"{model}:{method}@{name}", "", tuple(each[method]["test"] for each in own), "", "mean")
        for name, own in outcomes.items()
        for method in own[0]
    ]


def lines(model: str, outcomes: Outcomes) -> list[tuple[str, ...]]:
    """Returns a line for each set: test scores of each method, and the rank of ours."""
    found: list[tuple[str, ...]] = []
    for name, own in outcomes.items():
        methods = list(own[0])
        means = np.array([[mean(own, method) for method in methods]])
        rank = ranks(means)[0, methods.index(OURS)]
        cells = [
            f"{mean(own, method):.4f} ± {_spread(own, method):.4f}" if method in methods else "" for method in METHODS
        ]
        found.append((name, model, *cells, f"{rank:g}"))
    return found


def mean(own: Sequence[Outcome], method: str) -> float:
    """Returns the mean test score of a method over seeds."""
    return statistics.fmean(each[method]["test"] for each in own)


def flat(outcomes: Outcomes) -> list[Outcome]:
    return [each for own in outcomes.values() for each in own]


def _against(name: str, gains_N: np.ndarray, theirs_N: np.ndarray) -> list[Figure]:
    _, low, high = mean_interval(gains_N)
    outcome = signed_rank(gains_N, REGION)
    won, tied, lost = (int(each.sum()) for each in (gains_N > 0, gains_N == 0, gains_N < 0))
    relative = 100 * gains_N / theirs_N
    return [
        Figure(name.format("won_against"), "%", (100 * won / len(gains_N),), f"{won} won, {tied} tied, {lost} lost"),
        Figure(
            name.format("gain_over"), "", tuple(gains_N.tolist()),
            f"a sample a set; 95 % interval of the mean {low:+.4f} to {high:+.4f}; signed-rank test: better "
            f"{outcome.above:.3f}, alike {outcome.equal:.3f}, worse {outcome.below:.3f}", "mean",
        ),
        Figure(name.format("worst_against"), "%", (float(relative.min()),), "of the score, on the worst set"),
    ]  # fmt: skip


def _mean(pairs: Sequence[tuple[float, ...]], place: int) -> float:
    return statistics.fmean(each[place] for each in pairs)


def _spread(own: Sequence[Outcome], method: str) -> float:
    scores = [each[method]["test"] for each in own]
    return statistics.stdev(scores) if len(scores) > 1 else 0.0
