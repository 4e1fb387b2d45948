"""Columns of plainly written numbers are recognised at once; their summary is that of the definitions, spelt out."""

from __future__ import annotations

import itertools
import time

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pytest
from hypothesis import given

from ziggurat.data.inference.columns import profile_frame
from ziggurat.data.inference.numeric.plain_numbers import plain_numbers, summarise_numbers


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "-20", "0", None], [1, -20, 0, None]),
        (["1.5", "2", None, "-3e-2"], [1.5, 2.0, None, -0.03]),
        (["007", "1"], None),  # leading zeros may matter
        (["1.0", "2.0"], None),  # floats without a fraction may be ids
        (["1", " 2"], None),
        (["1", "NA"], None),
        (["+1", "2"], None),
        ([str(2**63), "1"], None),
        (["1e999", "0.5"], None),
        (["nan", "0.5"], None),
        ([None, None], None),
    ],
)
def test_only_plainly_written_numbers_are_recognised(
    cells: list[str | None], values: list[float | None] | None
) -> None:
    found = plain_numbers(pl.Series("x", cells, pl.String))
    assert (None if found is None else found.to_list()) == values


@given(st.lists(st.integers(-5, 5) | st.integers(-(2**62), 2**62), min_size=1, max_size=60))
def test_a_summary_is_that_of_the_definitions(values: list[int]) -> None:
    found = summarise_numbers(np.array(values, np.int64), 3)
    ordered = sorted(values)
    counts = {value: values.count(value) for value in ordered}
    assert (found.distinct, found.once, found.twice) == (
        len(counts), sum(count == 1 for count in counts.values()), sum(count == 2 for count in counts.values())
    )  # fmt: skip
    assert list(found.common) == sorted(counts, key=lambda value: (-counts[value], value))[:3]
    assert (found.minimum, found.maximum) == (float(ordered[0]), float(ordered[-1]))
    assert found.median in {float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])}
    assert found.ascending == (len(values) > 2 and all(a < b for a, b in itertools.pairwise(values)))
    share = sum(float(value) >= found.balanced_threshold for value in values) / len(values)
    assert share >= 1 / len(values)


def test_thousands_of_columns_are_profiled_in_seconds() -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({f"f{k}": rng.random(50).round(3) for k in range(4_000)}).cast(pl.String)
    started = time.process_time()
    profiles = profile_frame(frame, complete=True)
    assert len(profiles) == 4_000
    assert profiles[7].maximum == max(map(float, frame["f7"]))
    assert time.process_time() - started < 20  # it took 100 s when the schema was built anew for each column
