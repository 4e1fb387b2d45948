"""Which tables are in memory follows from their demand, and caches from the frequencies of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ziggurat.core.errors import ConfigError
from ziggurat.serving.tables.placement import Demand, Frequencies, place


def demand(name: str, rows: int, lookups: float, *, skew: float | None = 1.0, row_bytes: int = 64) -> Demand:
    counts = None if skew is None else Frequencies.of((1e9 / np.arange(1, rows + 1) ** skew).astype(np.int64))
    return Demand(name, rows, row_bytes, rows * row_bytes, lookups, counts)


@pytest.mark.parametrize("scale", [1, 10**8])
def test_frequencies_say_in_few_numbers_what_all_counts_say(scale: int) -> None:
    draw = np.random.default_rng(0)
    counts = np.minimum(draw.zipf(1.6, 20_000) - 1, 10**9) // 3 * scale
    frequencies = Frequencies.of(counts)
    assert frequencies is not None
    assert len(frequencies.counts) < 2_000
    falling = np.sort(counts)[::-1]
    assert np.array_equal(np.repeat(frequencies.counts, np.diff(frequencies.ends, prepend=0)), falling)
    rows = np.array([0, 1, 17, 400, 20_000, 30_000])
    if scale > 1:  # counts are so high that none is smoothed
        shares = np.append(0.0, np.cumsum(falling)) / falling.sum()
        assert frequencies.share(rows) == pytest.approx(shares[np.minimum(rows, 20_000)], rel=1e-6)
    assert (np.diff(frequencies.share(rows)) >= 0).all()


@pytest.mark.parametrize("most", [0, 1, 7, 900, 5_000, 50_000])
def test_the_rows_that_were_read_most_are_found(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ziggurat.serving.tables.placement._AT_ONCE", 1_000)
    counts = np.random.default_rng(1).zipf(1.5, 12_345) // 2
    frequencies = Frequencies.of(counts)
    assert frequencies is not None
    found = np.concatenate([np.zeros(0, np.int64), *frequencies.most_frequent(counts, most)])
    assert np.array_equal(found, np.unique(found))
    assert len(found) == min(most, np.count_nonzero(counts))
    assert sorted(counts[found]) == sorted(np.sort(counts)[::-1][: len(found)])


def test_rows_that_were_never_read_have_no_frequencies() -> None:
    assert Frequencies.of(np.zeros(5, np.int64)) is None
    assert Frequencies.of(np.zeros(0, np.int64)) is None


def test_everything_is_in_memory_where_it_fits() -> None:
    placed = place([demand("user", 1_000, 1), demand("item", 1_000, 100)], 128_000)
    assert [each.cache_bytes for each in placed] == [None, None]
    assert sum(each.reads for each in placed) == 0


def test_a_users_table_is_on_disk_before_an_items() -> None:
    user, item = place([demand("user", 100_000, 1), demand("item", 100_000, 100)], 7_000_000)
    assert item.cache_bytes is None
    assert user.cache_bytes is not None
    assert 0 < user.hits < 1
    assert user.reads < 1


def test_skewed_rows_need_less_memory() -> None:
    flat, skewed = (place([demand("item", 100_000, 100, skew=skew)], 1_600_000)[0] for skew in (None, 1.1))
    assert flat.hits == pytest.approx(0.2, abs=0.08)
    assert skewed.hits > 0.75


@given(
    st.lists(
        st.tuples(st.integers(1, 200_000), st.floats(0.1, 1e4), st.sampled_from([None, 0.5, 1.2]), st.integers(4, 900)),
        min_size=1, max_size=6,
    ),
    st.floats(0.01, 1.2),
)  # fmt: skip
def test_the_memory_is_never_exceeded(tables: list[tuple[int, float, float | None, int]], share: float) -> None:
    demands = [
        demand(str(number), rows, lookups, skew=skew, row_bytes=row_bytes)
        for number, (rows, lookups, skew, row_bytes) in enumerate(tables)
    ]
    memory = int(share * sum(each.whole_bytes for each in demands))
    if memory < sum(min(each.whole_bytes, 8192 + 64 * (each.row_bytes + 13)) for each in demands):
        with pytest.raises(ConfigError, match="the smallest caches need"):
            place(demands, memory)
        return
    placed = place(demands, memory)
    assert [each.demand for each in placed] == demands
    assert sum(each.memory_bytes for each in placed) <= memory
    assert all(0 <= each.hits <= 1 for each in placed)


def test_too_little_memory_is_refused_with_what_is_enough() -> None:
    demands = [demand("user", 100_000, 1), demand("item", 100_000, 100)]
    with pytest.raises(ConfigError, match=r"2 tables of 12,800,000 bytes: the smallest caches need 26,240") as caught:
        place(demands, 1_000)
    assert "--memory 26240" in caught.value.hint
    assert sum(each.memory_bytes for each in place(demands, 26_240)) <= 26_240
