"""The encoders that are compared: each gets the same bytes for the weights of a table and its map together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PRIVATE_SHARE = 0.25
"""Share of the rows that the most frequent values have to themselves, with every encoder that has private rows."""
KEY_BYTES = 12
"""Bytes of the key of a private value."""
MAP_SHARE = 0.4
"""The most of a table's bytes that a learned map takes; values beyond that are hashed."""
SLOTS, SPARE_SLOTS, GUARD_BYTES = 1.23, 96, 8
"""Slots of a compact map a value, its slots more, and its bytes more."""
NARROW = 4
"""Numbers a row of the rare band of mixed dimensions."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What an encoder may use.

    Attributes:
        values: distinct values of the table in training rows.
        often: those of them that have a place in a map by default, as they occur often enough.
        dim: numbers a row.
        bytes: bytes of weights and map.
        seed: seed of hash, proxy and clusters.
    """

    values: int
    often: int
    dim: int
    bytes: float
    seed: int

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return 4 * self.dim


Section = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contestant:
    """An encoder of the comparison.

    Attributes:
        name: its name in figures.
        ours: whether it is one that the claim is about.
        section: the encoder's section for a budget.
    """

    name: str
    ours: bool
    section: Callable[[Budget], Section]


def _rows(budget: Budget, least: int = 2) -> int:
    return max(least, int(budget.bytes / budget.width))


def _hash(budget: Budget) -> Section:
    return {"name": "hash", "rows": _rows(budget), "seed": budget.seed}


def _with_private(budget: Budget) -> tuple[int, int]:
    """Returns rows and private rows with the bytes of their keys."""
    rows = budget.bytes / (budget.width + PRIVATE_SHARE * KEY_BYTES)
    return max(4, int(rows)), int(rows * PRIVATE_SHARE)


def _frequency_hash(budget: Budget) -> Section:
    rows, private = _with_private(budget)
    return {"name": "frequency_hash", "rows": rows, "private_rows": private, "seed": budget.seed}


def _double_hash(budget: Budget) -> Section:
    rows, private = _with_private(budget)
    return {"name": "double_hash", "rows": rows, "private_rows": private, "seed": budget.seed}


def _quotient_remainder(budget: Budget) -> Section:
    return {"name": "quotient_remainder", "rows": _rows(budget, 3), "seed": budget.seed}


def _learned(name: str, codes: int, parts: int, **more: Any) -> Callable[[Budget], Section]:
    """Returns the section of an encoder with a map of ``codes`` codes, of which a value has rows in ``parts`` parts."""

    def section(budget: Budget) -> Section:
        bits = range(2, 9 if codes == 1 else 6)
        checks = 2 if budget.often < budget.values else 0  # to tell values that have no place in the map

        def map_bytes(mapped: float, chosen: int) -> float:
            return (SLOTS * mapped + SPARE_SLOTS) * (chosen * codes + checks) / 8 + GUARD_BYTES

        room = MAP_SHARE * budget.bytes
        shared = max(2, budget.bytes / budget.width / parts)
        useful = [each for each in bits if 2**each < 2 * shared] or bits[:1]
        rows = private = mapped = chosen = 0
        for _ in range(3):  # the more private rows, the fewer values in the map
            often = max(1, budget.often - private)
            chosen = next((each for each in reversed(useful) if map_bytes(often, each) <= room), bits[0])
            fitting = int(((room - GUARD_BYTES) * 8 / (chosen * codes + checks) - SPARE_SLOTS) / SLOTS)
            mapped = max(1, min(often, fitting))
            rest = budget.bytes - map_bytes(mapped, chosen)
            rows = max(6, int(rest / (budget.width + PRIVATE_SHARE * KEY_BYTES)))
            private = min(int(rows * PRIVATE_SHARE), rows - 5)
        # Two values or more share a row of the map's; the other rows are for values that occur too rarely to be in it.
        unseen = max(1, rows - 1 - private - max(2 * parts, parts * mapped // 2))
        settings = {"map": "compact", "code_bits": chosen, "check_bits": checks, "mapped_values": mapped}
        divided = {"rows": rows, "private_rows": private, "unseen_rows": unseen}
        return {"name": name, **divided, "seed": budget.seed, **settings, **more}

    return section


CONTESTANTS: tuple[Contestant, ...] = (
    Contestant("hash", False, _hash),
    Contestant("frequency_hash", False, _frequency_hash),
    Contestant("double_hash", False, _double_hash),
    Contestant("quotient_remainder", False, _quotient_remainder),
    Contestant("lsh", False, _learned("lsh", 1, 1)),
    Contestant("helper", False, _learned("clustered_codes", 1, 2, compose="helper")),
    Contestant("cce", False, _learned("clustered_codes", 1, 2, compose="helper", clusterings=8, proxy_passes=12)),
    Contestant("learned_hash", True, _learned("learned_hash", 1, 1)),
    Contestant("residual", True, _learned("clustered_codes", 2, 2, compose="residual")),
)
MIXED = "mixed_dimensions"
"""Mixed dimensions by frequency, which need a table more: see :func:`with_mixed_dimensions`."""
FULL = "full"


def with_encoders(values: Mapping[str, Any], sections: Mapping[str, Section]) -> dict[str, Any]:
    """Returns an experiment in which these tables have these encoders."""
    features = [
        {**feature, "encoder": sections[_table(feature)]} if _table(feature) in sections else feature
        for feature in values["features"]
    ]
    return {**values, "features": features}


def with_mixed_dimensions(values: Mapping[str, Any], budgets: Mapping[str, Budget]) -> dict[str, Any]:
    """Returns an experiment in which half of the bytes of each of these tables are full rows of frequent values, and
    half narrow rows that the others share by hash; a linear map of both makes the field."""
    features: list[dict[str, Any]] = []
    tables = dict(values.get("embeddings", {}).get("tables", {}))
    groups = list(values.get("embeddings", {}).get("groups", []))
    for feature in values["features"]:
        budget = budgets.get(_table(feature))
        if budget is None:
            features.append(feature)
            continue
        hot = max(1, int(budget.bytes / 2 / (budget.width + 2 * KEY_BYTES)))
        rows = max(1, int(budget.bytes / 2 / (4 * NARROW)))
        rare = f"{feature['name']} rare"
        table, rare_table = f"{_table(feature)} hot", f"{_table(feature)} rare"
        first = {"name": "frequency_band", "values": hot}
        second = {"name": "frequency_band", "first": hot, "values": 0, "hashed_rows": rows, "seed": budget.seed}
        column = feature.get("column", feature["name"])
        features.append({**feature, "table": table, "encoder": first})
        features.append({**feature, "name": rare, "column": column, "table": rare_table, "encoder": second})
        tables[rare_table] = {"dim": NARROW}
        groups.append({"features": [feature["name"], rare], "dim": budget.dim, "mlp": {"hidden": []}})
    embeddings = {**values.get("embeddings", {}), "tables": tables, "groups": groups}
    return {**values, "features": features, "embeddings": embeddings}


def _table(feature: Mapping[str, Any]) -> str:
    return str(feature.get("table") or feature["name"])
