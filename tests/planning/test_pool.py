"""The pool of synthetic tables: it has the published reuse, and drawn ids follow its counts."""

from __future__ import annotations

import numpy as np
import pytest

from ziggurat.planning.autoshard import pool
from ziggurat.planning.autoshard.pool import PoolTable, statistics, table_pool, train_test_halves


def histogram(tables: tuple[PoolTable, ...], weighted: bool) -> np.ndarray:
    """Returns the shares of rows, or ``weighted`` of look-ups, by bins of look-ups of a row."""
    found = np.zeros(len(pool.LOOKUP_SHARES))
    for table in tables:
        bins = np.minimum(np.ceil(np.log2(table.lookups)).astype(int), len(found) - 1)
        np.add.at(found, bins, table.times * (table.lookups if weighted else 1))
    return found / found.sum()


def test_sums_over_all_tables_are_as_published() -> None:
    tables = table_pool()
    assert len(tables) == 856
    lookups = sum(int(table.lookups @ table.times) for table in tables)
    assert lookups == pytest.approx(pool.LOOKUPS, rel=0.01)
    assert sum(int(table.times.sum()) for table in tables) == pytest.approx(pool.TOUCHED_ROWS, rel=0.01)
    assert histogram(tables, weighted=True) == pytest.approx(pool.LOOKUP_SHARES, abs=0.0015)
    assert histogram(tables, weighted=False)[:10] == pytest.approx(pool.ROW_SHARES, abs=0.0025)


def test_the_seed_decides_and_tables_differ() -> None:
    first, again, other = table_pool(), table_pool.__wrapped__(), table_pool(seed=1)
    assert [(t.rows, t.dim) for t in first] == [(t.rows, t.dim) for t in again]
    assert [t.rows for t in first] != [t.rows for t in other]
    assert {table.dim for table in first} == set(pool.DIMS)
    poolings = np.array([table.ids_per_row for table in first])
    assert np.quantile(poolings, 0.9) > 10 * np.quantile(poolings, 0.1)


def test_each_table_is_for_training_or_for_testing() -> None:
    trained_on, tested = train_test_halves(table_pool())
    assert len(trained_on) == len(tested) == 428
    assert {table.number for table in trained_on} | {table.number for table in tested} == set(range(856))


def test_statistics_are_what_preparation_would_have_counted() -> None:
    table = table_pool(tables=5)[3]
    counted = statistics([table])
    accesses = counted.tables[table.name].accesses
    assert len(accesses) == table.rows
    values, times = np.unique(accesses[accesses > 0], return_counts=True)
    assert values.tolist() == table.lookups.tolist()
    assert times.tolist() == table.times.tolist()
    assert accesses.sum() / counted.rows["train"] == pytest.approx(table.ids_per_row)


def test_ids_follow_the_counts() -> None:
    table = table_pool(tables=5)[3]
    accesses, draw = table.accesses(), np.random.default_rng(0)
    ids, lengths = table.ids(pool.EXAMPLES, draw)
    assert lengths.sum() == len(ids) == pytest.approx(table.lookups @ table.times, rel=0.01)
    assert ids.min() >= 0
    assert ids.max() < table.rows
    seen = np.bincount(ids, minlength=table.rows)
    assert not seen[accesses == 0].any()
    hot = accesses > 30
    assert seen[hot] == pytest.approx(accesses[hot], abs=6.5 * np.sqrt(accesses[hot].max()))
    assert seen[hot].sum() == pytest.approx(accesses[hot].sum(), rel=0.02)
