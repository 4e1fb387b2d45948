"""Rows whose bag or sequence holds their own id are counted while preparing, and reported as a likely leak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_kit import experiment, write_csv

from ziggurat.core.statistics import FeatureStatistics, OwnIds, load_features
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.features.preparation import block_batching
from ziggurat.features.preparation.own_ids import leak_warnings
from ziggurat.features.preparation.prepare import prepare

ROWS, ITEMS = 700, 30
Log = dict[str, list[Any]]


def random_log(leak: str = "", prefix: str = "") -> Log:
    """Returns rows with an item and two lists of items, some empty or missing; ``leak``: which rows hold their own."""
    item = np.random.default_rng(1).zipf(1.3, ROWS) % ITEMS
    click = np.random.default_rng(2).random(ROWS) < 0.3
    draw = np.random.default_rng(3)
    log: Log = {"item": [], "history": [], "basket": [], "click": click.astype(int).tolist(), "when": list(range(ROWS))}
    for row in range(ROWS):
        history = draw.integers(0, ITEMS, draw.integers(0, 6)).tolist()
        if leak == "all" or (leak == "positives" and click[row]):
            history.append(int(item[row]))
        log["item"].append(None if row % 50 == 7 else f"{prefix}{item[row]}")
        log["history"].append("|".join(f"{prefix}{each}" for each in history) or None)
        log["basket"].append(
            "|".join(f"{prefix}{each}" for each in draw.integers(0, ITEMS, draw.integers(0, 4))) or None
        )
    return log


def prepared(folder: Path, log: Log, kind: str = "integer", encoder: dict[str, Any] | None = None) -> Path:
    write_csv(folder / "log.csv", log)
    lists: list[dict[str, Any]] = [
        {"name": "history", "kind": "sequence", "last": 3},
        {"name": "basket", "kind": "bag", "max_length": 2},
    ]
    item = {"name": "item", "kind": "categorical", "type": kind, **({"encoder": encoder} if encoder else {})}
    config = experiment(
        [item, *({**each, "type": kind, "table": "item"} for each in lists)],
        folder=str(folder),
        split={"name": "time", "validation": 0.1, "test": 0.1},
        time="when",
    )
    return prepare(config.data, config.features, folder / "prepared")


def by_hand(log: Log, column: str, rows: int) -> OwnIds:
    """Counts the first ``rows`` rows, which are the training rows, one by one."""
    kept = {"history": slice(-3, None), "basket": slice(None, 2)}[column]
    lists = [cell.split("|")[kept] if cell else [] for cell in log[column][:rows]]
    items, clicks = log["item"][:rows], log["click"][:rows]
    covered = [row for row in range(rows) if lists[row]]
    own = {row for row in covered if items[row] in lists[row]}
    expected = sum(items.count(each) / rows for row in covered for each in lists[row]) / len(covered)
    by_label = [
        [sum(clicks[row] == value for row in covered), sum(clicks[row] == value for row in own)] for value in (0, 1)
    ]
    return OwnIds(len(covered), len(own), expected, {"click": by_label})


@pytest.mark.parametrize(
    ("kind", "prefix", "encoder"),
    [
        ("integer", "", None),
        ("integer", "", {"name": "hash", "rows": 3}),  # collisions of ids do not count
        ("integer", "", {"name": "vocabulary", "min_count": 100}),  # nor do unknown values
        ("text", "film ", None),
    ],
)
def test_counts_equal_a_loop_over_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, prefix: str, encoder: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(block_batching, "PART_ROWS", 100)
    log = random_log("positives", prefix)
    folder = prepared(tmp_path, log, kind, encoder)
    rows = Dataset(folder).split("train").rows
    assert 500 < rows < 600
    found = load_features(folder)
    assert not found["item"].own_ids
    for column in ("history", "basket"):
        own, expected = found[column].own_ids["item"], by_hand(log, column, rows)
        assert own == replace(expected, chance=own.chance)
        assert own.chance == pytest.approx(expected.chance, abs=1e-3)
        assert 0 < own.own < own.rows


def test_counts_do_not_depend_on_how_rows_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, FeatureStatistics]] = []
    for part_rows in (64, 10**6):
        monkeypatch.setattr(block_batching, "PART_ROWS", part_rows)
        (tmp_path / str(part_rows)).mkdir()
        found.append(load_features(prepared(tmp_path / str(part_rows), random_log())))
    assert found[0] == found[1]


def test_a_leak_is_told_and_chance_is_not(tmp_path: Path) -> None:
    told: dict[str, list[str]] = {}
    for leak in ("", "positives", "all"):
        (tmp_path / f"leak-{leak}").mkdir()
        told[leak] = leak_warnings(load_features(prepared(tmp_path / f"leak-{leak}", random_log(leak))))
    assert told[""] == []
    (positives,), (everywhere,) = told["positives"], told["all"]
    assert positives.startswith("a likely leak: 'history' holds the row's own 'item' in ")
    assert "% where click = 0, 9" in positives
    assert "where click = 1; by chance " in positives
    assert "% where click = 0, 9" in everywhere


def test_few_rows_or_a_small_excess_are_not_told() -> None:
    def features(rows: int, own: int, chance: float) -> dict[str, FeatureStatistics]:
        own_ids = {"item": OwnIds(rows, own, chance, {"click": [[rows, own], [0, 0]]})}
        return {"history": FeatureStatistics("history", "sequence", "item", 1.0, 0.0, own_ids=own_ids)}

    assert not leak_warnings(features(0, 0, 0.0))
    assert not leak_warnings(features(10**6, 59_000, 0.05))  # less than a percent more than by chance
    assert not leak_warnings(features(100, 12, 0.05))  # 7 percent more, but only three standard errors
    assert leak_warnings(features(10**6, 61_000, 0.05))
    assert leak_warnings(features(100, 15, 0.05))
