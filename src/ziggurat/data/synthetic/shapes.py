"""Predefined logs: ``criteo`` (a label, 13 integers, 26 hashed categories, empty cells), ``demo`` (a small shop), and
``groups`` (categories that interact within groups)."""

from __future__ import annotations

import itertools
import random
from typing import Literal

from ziggurat.data.synthetic.config import (
    CategoricalColumn,
    GeneratorConfig,
    LabelColumn,
    ManyColumn,
    NumericColumn,
)

Shape = Literal["criteo", "demo", "groups"]

# Cardinality and share of empty cells of each of the 26 categories; median, spread and share of empty cells of each of
# the 13 integers. Invented, with magnitudes like those of the display-advertising logs that the shape is named after.
CRITEO_CATEGORIES = (
    (1_400, 0.0), (550, 0.0), (900_000, 0.03), (250_000, 0.03), (300, 0.0), (20, 0.12), (12_000, 0.0), (600, 0.0),
    (3, 0.0), (90_000, 0.0), (5_600, 0.0), (700_000, 0.03), (3_200, 0.0), (27, 0.0), (14_000, 0.0), (500_000, 0.03),
    (10, 0.0), (5_600, 0.0), (2_100, 0.44), (4, 0.44), (600_000, 0.03), (17, 0.76), (15, 0.0), (280_000, 0.03),
    (100, 0.44), (140_000, 0.44),
)  # fmt: skip
CRITEO_NUMBERS = (
    (2, 1.4, 0.45), (5, 2.2, 0.0), (8, 1.6, 0.21), (5, 1.0, 0.21), (2_500, 2.2, 0.03), (45, 1.8, 0.22),
    (4, 1.8, 0.04), (9, 1.1, 0.0), (50, 1.4, 0.04), (1, 0.6, 0.45), (2, 1.0, 0.04), (1, 1.3, 0.77), (5, 1.1, 0.21),
)  # fmt: skip
CRITEO_PAIRS = (
    ("c1", "c2"), ("c1", "c17"), ("c2", "c9"), ("c5", "c14"), ("c8", "c23"), ("c13", "c17"), ("i2", "c9"),
    ("i6", "c14"), ("c7", "c9"), ("c11", "c23"),
)  # fmt: skip


def criteo_shape(rows: int, seed: int = 0) -> GeneratorConfig:
    """Columns ``label``, ``i1`` … ``i13``, ``c1`` … ``c26``; tab-separated without a header."""
    return GeneratorConfig(
        rows=rows,
        seed=seed,
        labels=(LabelColumn(name="label", rate=0.256, third_order=0.3),),
        numeric=tuple(
            NumericColumn(name=f"i{k}", median=median, spread=spread, lowest=-1, integer=True, missing=missing)
            for k, (median, spread, missing) in enumerate(CRITEO_NUMBERS, 1)
        ),
        categorical=tuple(
            CategoricalColumn(name=f"c{k}", cardinality=cardinality, exponent=1.1, style="hex", missing=missing)
            for k, (cardinality, missing) in enumerate(CRITEO_CATEGORIES, 1)
        ),
        pairs=CRITEO_PAIRS,
        triples=(("c9", "c14", "c17"), ("c5", "c9", "c23")),
        delimiter="\t",
        header=False,
    )


def demo_shape(rows: int, seed: int = 0) -> GeneratorConfig:
    """Impressions of a shop: two labels, user, item, context, a bag of tags, the user's last items, time."""
    return GeneratorConfig(
        rows=rows,
        seed=seed,
        labels=(LabelColumn(name="click", rate=0.2), LabelColumn(name="buy", rate=0.05, first_order=0.9)),
        numeric=(
            NumericColumn(name="age", median=20, spread=0.5, lowest=14, integer=True, missing=0.08),
            NumericColumn(name="price", median=18, spread=1.1, lowest=0.99),
            NumericColumn(name="seconds_since_visit", median=9_000, spread=2.2, integer=True, missing=0.3),
        ),
        categorical=(
            CategoricalColumn(name="user_id", cardinality=2_000, exponent=0.7),
            CategoricalColumn(name="item_id", cardinality=1_000, exponent=1.0),
            CategoricalColumn(name="category", cardinality=40, exponent=0.8, style="text"),
            CategoricalColumn(name="device", cardinality=4, exponent=0.9, style="text", missing=0.02),
            CategoricalColumn(name="hour", cardinality=24, exponent=0.3),
        ),
        many=(
            ManyColumn(name="tags", cardinality=300, exponent=1.0, style="text", longest=6),
            ManyColumn(name="last_items", cardinality=1_000, ids_of="item_id", longest=10, delimiter=" "),
        ),
        pairs=(
            ("user_id", "category"),
            ("item_id", "device"),
            ("item_id", "last_items"),
            ("tags", "device"),
            ("price", "category"),
            ("age", "tags"),
        ),
        time="timestamp",
    )


GROUPS, GROUP_SIZE = 4, 6
"""Groups of columns of the shape ``groups``, and columns of each."""


def groups_shape(rows: int, seed: int = 0) -> GeneratorConfig:
    """Columns ``label``, ``c0`` … ``c23`` in four groups of six; any two columns of a group interact, and no others.

    Which columns are a group is drawn from the seed, so that neither neighbours nor every fourth column are one.
    :func:`planted_groups` returns the groups. The interactions are dot products of latent vectors, one for each id, as
    a factorization machine or DLRM computes; they are most of what the label depends on.
    """
    names = [f"c{k}" for k in range(GROUPS * GROUP_SIZE)]
    random.Random(seed).shuffle(names)
    members = [names[k * GROUP_SIZE : (k + 1) * GROUP_SIZE] for k in range(GROUPS)]
    return GeneratorConfig(
        rows=rows,
        seed=seed,
        labels=(LabelColumn(name="label", rate=0.3, first_order=0.5, second_order=2.0),),
        categorical=tuple(
            CategoricalColumn(name=f"c{k}", cardinality=100, exponent=0.8) for k in range(GROUPS * GROUP_SIZE)
        ),
        pairs=tuple(pair for group in members for pair in itertools.combinations(group, 2)),
    )


def planted_groups(config: GeneratorConfig) -> tuple[tuple[str, ...], ...]:
    """Returns the columns of a generated log in groups: those that interact, directly or through others, are one."""
    group_of = {column.name: [column.name] for column in config.features}
    for together in config.groups:
        for name in together[1:]:
            joined, other = group_of[together[0]], group_of[name]
            if joined is not other:
                joined += other
                group_of.update(dict.fromkeys(other, joined))
    order = [column.name for column in config.features]
    found = {id(each): tuple(sorted(each, key=order.index)) for each in group_of.values()}
    return tuple(sorted(found.values(), key=lambda group: order.index(group[0])))


SHAPES = {"criteo": criteo_shape, "demo": demo_shape, "groups": groups_shape}
