"""Which encoders the benchmark learned_hash compares, and the leads that come of outcomes made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from bench.quality import learned_hash
from bench.quality.compression.contestants import CONTESTANTS, FULL
from bench.quality.compression.logs import LOGS, Log
from bench.quality.learned_hash import LEARNED_HASH, OURS, half_width

SEEDS = (0, 1, 2)
LOG = Log("drawn", ("item",), lambda context: {}, seeds=SEEDS, ratios=(2, 5))
NE: dict[str, tuple[float, float]] = {
    "hash": (0.99, 0.99), "frequency_hash": (0.90, 0.80), "cce": (0.85, 0.85), "helper": (0.86, 0.86),
    OURS[0]: (0.70, 0.84), OURS[1]: (0.60, 0.88),
}  # fmt: skip
"""Contestant -> its NE on validation rows and on test rows."""


def outcomes(ratios: tuple[int, ...] = (2, 5)) -> learned_hash.Outcomes:
    found: learned_hash.Outcomes = {}
    for seed in SEEDS:
        found[FULL, 1, seed] = outcome(0.5, 0.5, 0, 4000)
        for ratio in ratios:
            for number, (name, (validation, test)) in enumerate(NE.items()):
                size = 4000 // ratio + (60 if name == "cce" and ratio == 5 else 0)
                found[name, ratio, seed] = outcome(validation, test + 0.001 * seed * number, 100, size - 100)
    return found


def outcome(validation: float, test: float, maps: int, weights: int) -> dict[str, Any]:
    return {
        "validation": {"ne": validation, "auc": 0.5}, "test": {"ne": test, "auc": 1 - test}, "maps": maps,
        "weights": weights, "prepare_s": 1.0, "row_s": 1e-6,
    }  # fmt: skip


def test_the_lead_is_that_of_our_choice_on_validation_before_the_best_rival_on_test() -> None:
    figures = {each.name: each for each in learned_hash._figures(LOG, outcomes())}  # pyright: ignore[reportPrivateUsage]
    lead = figures["drawn 5x lead"]
    assert lead.note == f"{OURS[1]} before frequency_hash"
    assert lead.samples == pytest.approx([0.80 - 0.88 + 0.001 * seed * (1 - 5) for seed in SEEDS])
    assert lead.value == pytest.approx(-0.084)
    assert figures["drawn 5x lead_apart"].value == 0.0
    assert figures["drawn 5x frequency_hash.ne"].value == pytest.approx(0.801)
    assert figures[f"drawn 1x {FULL}.ne"].value == 0.5
    assert figures["drawn 5x frequency_hash.auc"].samples == pytest.approx([0.2 - 0.001 * seed for seed in SEEDS])


def test_clusters_of_our_proxy_are_left_out_of_one_lead() -> None:
    found = outcomes()
    for seed in SEEDS:
        found["frequency_hash", 5, seed] = outcome(0.99, 0.98, 100, 700)
    figures = {each.name: each for each in learned_hash._figures(LOG, found)}  # pyright: ignore[reportPrivateUsage]
    assert figures["drawn 5x lead"].note == f"{OURS[1]} before cce"
    assert figures["drawn 5x lead_without_cce"].note == f"{OURS[1]} before frequency_hash"
    assert figures["drawn 5x lead_without_cce"].value == pytest.approx(0.98 - 0.885)
    assert figures["drawn 5x lead_without_cce_apart"].value == 1.0
    assert figures["drawn 5x lead"].value == pytest.approx(0.852 - 0.885)
    assert figures["drawn 5x lead_apart"].value == 0.0


def test_intervals_that_touch_are_not_apart() -> None:
    found = outcomes()
    for seed in SEEDS:
        found[OURS[1], 5, seed] = outcome(0.6, 0.79 + 0.01 * seed, 100, 700)  # 0.80 ± 0.0248
        for name in ("frequency_hash", "cce", "helper"):
            found[name, 5, seed] = outcome(0.9, 0.83 + 0.01 * seed, 100, 700)  # 0.84 ± 0.0248
    figures = {each.name: each for each in learned_hash._figures(LOG, found)}  # pyright: ignore[reportPrivateUsage]
    assert half_width([0.79, 0.80, 0.81]) == pytest.approx(0.0248, abs=1e-4)
    assert figures["drawn 5x lead"].value == pytest.approx(0.04)
    assert figures["drawn 5x lead_apart"].value == 0.0
    for seed in SEEDS:
        found[OURS[1], 5, seed] = outcome(0.6, 0.78 + 0.01 * seed, 100, 700)
    figures = {each.name: each for each in learned_hash._figures(LOG, found)}  # pyright: ignore[reportPrivateUsage]
    assert figures["drawn 5x lead_apart"].value == 1.0


def test_the_most_bytes_of_all_encoders_and_ratios_are_told() -> None:
    figures = {each.name: each for each in learned_hash._figures(LOG, outcomes())}  # pyright: ignore[reportPrivateUsage]
    assert figures["drawn bytes"].value == pytest.approx(860 / 4000 * 5)
    assert LEARNED_HASH.targets["movielens bytes"].holds(1.02)
    assert not LEARNED_HASH.targets["movielens bytes"].holds(1.03)


def test_leads_of_five_times_and_more_are_claimed() -> None:
    every = {**LEARNED_HASH.targets, **LEARNED_HASH.data_targets}
    claimed = {name for name in every if name.endswith(" lead")}
    assert claimed == {f"{log.name} {ratio}x lead" for log in LOGS for ratio in log.ratios if ratio >= 5}
    assert not every["movielens 5x lead"].holds(0.0)


def test_a_row_of_the_table_has_bytes_with_maps() -> None:
    rows = list(learned_hash._rows(LOG, outcomes()))  # pyright: ignore[reportPrivateUsage]
    assert len(rows) == 1 + 2 * len(NE)
    by_name = {(row[1], row[2]): row for row in rows}
    assert by_name["5x", "cce"][-3:] == ("860", "100", "1.0 s")
    assert by_name["5x", "hash"][3] == "0.9900"


def test_every_contestant_has_a_name_of_its_own_and_two_are_ours() -> None:
    names = [each.name for each in CONTESTANTS]
    assert len(set(names)) == len(names)
    assert set(OURS) < set(names)
    assert set(NE) <= set(names)
