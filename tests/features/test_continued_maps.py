"""Maps that continue an earlier one, and rows that are matched between two: what keeps its place, and what is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.features.compressed_kit import KINDS, planted
from ziggurat.core.errors import ConfigError
from ziggurat.features.compressed_rows import compressed_difference, match_compressed
from ziggurat.features.encoders.compressed.frequency import DoubleHashConfig
from ziggurat.features.encoders.compressed.learned_hash import LearnedHashConfig
from ziggurat.features.encoders.compressed.mapped import MappedEncoder, describe_drift
from ziggurat.features.encoders.compressed.quotient_remainder import QuotientRemainderConfig
from ziggurat.features.encoders.encoder import ProxyVectors, ValueCounts


def _some(values: list[int], kind: str, counts: list[int] | None = None) -> tuple[ValueCounts, ProxyVectors]:
    """Returns these values, with vectors near those of their kind."""
    centres = np.random.default_rng(9).standard_normal((KINDS, 4)) * 5
    noise = np.random.default_rng(len(values)).standard_normal((len(values), 4)) * 0.05
    vectors = (centres[np.array(values) % KINDS] + noise).astype(np.float32)
    return ValueCounts(_ids(values, kind), np.array(counts or [10] * len(values))), ProxyVectors(vectors)


def _ids(values: list[int], kind: str) -> pa.Array:
    return pa.array(values) if kind == "integer" else pa.array([f"v{each}" for each in values])


def test_a_refitted_map_keeps_the_rows_of_what_did_not_change() -> None:
    counts, proxy, _ = planted(600)
    config = LearnedHashConfig(rows=2 + 20 + KINDS, private_rows=20)
    first, before = config.fit_with_proxy(counts, proxy)
    turned = np.linalg.qr(np.random.default_rng(3).standard_normal((4, 4)))[0].astype(np.float32)
    newer, noisy, later_kinds = planted(800, seed=5)
    later = ProxyVectors(noisy.vectors_ND @ turned)  # another proxy has other coordinates
    moved = np.flatnonzero(newer.values.to_numpy() == 1590)[0]
    later.vectors_ND[moved] = later.vectors_ND[later_kinds == (later_kinds[moved] + 1) % KINDS].mean(axis=0)
    second, after = config.fit_with_proxy(newer, later, first)
    assert second.lineage == first.lineage
    fresh, _ = config.fit_with_proxy(newer, later)
    assert fresh.lineage != first.lineage
    old = dict(zip(counts.values.to_pylist(), before.tolist(), strict=True))
    new = dict(zip(newer.values.to_pylist(), after.tolist(), strict=True))
    kept = [value for value in old if value in new and old[value] == new[value]]
    assert new[1590] != old[1590]
    assert len(kept) >= 575
    assert second.drift["kept_values"] == len(kept) / len(old)
    assert second.drift["new_values"] == 200 / 800
    rows_R, note = match_compressed(first, second)
    assert note is None
    assert rows_R[second.parts.first_coded :].tolist() == list(range(first.parts.first_coded, first.rows))
    voted, _ = match_compressed(first, fresh)
    found = fresh.transform(newer.values)
    shared = (found >= fresh.parts.first_coded) & np.isin(newer.values.to_numpy(), counts.values.to_numpy())
    agreeing = voted[found[shared]] == first.transform(newer.values)[shared]
    assert agreeing.mean() > 0.9  # the clusters of an unrelated fit are matched by their members


def test_values_that_are_alone_in_their_clusters_stay_there() -> None:
    counts, proxy, _ = planted(60)
    config = LearnedHashConfig(rows=2 + 100, private_rows=0)
    first, before = config.fit_with_proxy(counts, proxy)
    turned_about = ValueCounts(counts.values, counts.counts[::-1].copy())
    second, after = config.fit_with_proxy(turned_about, proxy, first)
    assert after.tolist() == before.tolist()
    assert second.drift["kept_values"] == 1.0


def test_a_compact_map_cannot_be_continued() -> None:
    counts, proxy, _ = planted(600)
    compact, _ = LearnedHashConfig(rows=50, private_rows=10, map="compact").fit_with_proxy(counts, proxy)
    with pytest.raises(ConfigError, match="a compact map, which does not know which values it has"):
        LearnedHashConfig(rows=50, private_rows=10).fit_with_proxy(counts, proxy, compact)


@pytest.mark.parametrize(
    "later", [range(500), [*range(500), 10**6], range(3000, 3100)], ids=["fewer", "spread", "others"]
)
@pytest.mark.parametrize("kind", ["integer", "text"])
def test_values_that_new_rows_lack_keep_their_rows(kind: str, later: Any) -> None:
    config = LearnedHashConfig(rows=2 + KINDS)
    first, _ = config.fit_with_proxy(*_some(list(range(1000)), kind))
    second, _ = config.fit_with_proxy(*_some(list(later), kind), first)
    lacked = _ids([each for each in range(1000) if each not in set(later)], kind)
    assert second.transform(lacked).tolist() == first.transform(lacked).tolist()
    assert second.drift["lost_values"] == 0
    assert "no longer known" not in describe_drift(second.drift)
    figures, arrays = second.to_state()
    assert MappedEncoder.from_state(figures, arrays).transform(lacked).tolist() == first.transform(lacked).tolist()


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_values_that_a_map_has_no_place_for_are_counted_as_lost(kind: str) -> None:
    """Of ten private rows four go to newcomers; of the map's fifty values it keeps those of the new rows first."""
    config = LearnedHashConfig(rows=2 + 10 + KINDS, private_rows=10, mapped_values=50)
    first, _ = config.fit_with_proxy(*_some(list(range(60)), kind, [100] * 10 + [10] * 50))
    newer = [*range(6), *range(100, 104), *range(200, 230)]
    second, ids = config.fit_with_proxy(*_some(newer, kind, [100] * 10 + [10] * 30), first)
    assert ids[:6].tolist() == first.transform(_ids(list(range(6)), kind)).tolist()
    before, after = (encoder.transform(_ids(list(range(60)), kind)) for encoder in (first, second))
    kept = int((before == after).sum())
    assert kept == 6 + 20
    assert second.drift["lost_values"] == pytest.approx((60 - kept) / 60)
    assert describe_drift(second.drift).endswith("; 56.7% of the values of the earlier map are no longer known")
    del first, second.drift["lost_values"]  # of a map that was fitted before this share was recorded
    assert "lost" not in describe_drift(MappedEncoder.from_state(*second.to_state()).drift)


def test_a_frequent_value_that_moves_counts_by_its_look_ups() -> None:
    config = LearnedHashConfig(rows=2 + KINDS, min_count=1)
    counts, proxy = _some(list(range(100)), "integer", [11] + [1] * 99)
    first, _ = config.fit_with_proxy(counts, proxy)
    moved = proxy.vectors_ND.copy()
    moved[0] = moved[1]
    second, _ = config.fit_with_proxy(counts, ProxyVectors(moved), first)
    assert second.drift["kept_values"] == 0.99
    assert second.drift["kept_lookups"] == pytest.approx(99 / 110)


def test_private_values_keep_their_rows_whatever_their_rank() -> None:
    config = LearnedHashConfig(rows=2 + 4 + KINDS, private_rows=4)
    first, before = config.fit_with_proxy(*_some(list(range(50)), "text", [90, 80, 70, 60] + [10] * 46))
    second, after = config.fit_with_proxy(*_some(list(range(50)), "text", [60, 10, 90, 70, 80] + [10] * 45), first)
    assert before[:4].tolist() == [1, 2, 3, 4]
    assert after[[0, 2, 3]].tolist() == [1, 3, 4]
    assert after[4] == 2  # the newcomer has the row of the value that is rare now
    assert after[1] >= second.parts.first_coded
    assert match_compressed(first, second)[0].tolist()[:5] == [0, 1, int(before[4]), 3, 4]


def test_fewer_values_than_private_rows_are_continued_by_more_and_by_fewer() -> None:
    config = LearnedHashConfig(rows=60, private_rows=40)
    first, before = config.fit_with_proxy(*_some(list(range(30)), "text"))
    more, _ = config.fit_with_proxy(*_some(list(range(10, 55)), "text", [20] * 20 + [10] * 25), first)
    assert more.parts.private == 40
    assert more.transform(_ids(list(range(10, 30)), "text")).tolist() == before[10:].tolist()
    fewer, _ = config.fit_with_proxy(*_some(list(range(10)), "text"), first)
    assert fewer.transform(_ids(list(range(30)), "text")).tolist() == before.tolist()
    rows_R, note = match_compressed(first, more)
    assert note == "rows of unseen values start from scratch: 11 there, 1 here"
    staying = _ids(list(range(10, 30)), "text")
    assert rows_R[more.transform(staying)].tolist() == first.transform(staying).tolist()
    for unseen in (1, 21):  # fewer rows of its own, or more shared ones
        other = LearnedHashConfig(rows=60, private_rows=20, unseen_rows=unseen)
        with pytest.raises(ConfigError, match=f"30 are private and 11 of .* there, of 60 rows 20 and {unseen} "):
            other.fit_with_proxy(*_some(list(range(30)), "text"), first)


@pytest.mark.parametrize("there", [range(1000), [*range(1000), 10**6]], ids=["by place", "by key"])
@pytest.mark.parametrize("here", [range(1100), [*range(1100), 10**7]], ids=["by place", "by key"])
def test_clusters_vote_however_values_are_known(there: Any, here: Any) -> None:
    """Maps of integers know them by their place where these fill their range, else by keys."""
    config = LearnedHashConfig(rows=2 + KINDS)
    first, _ = config.fit_with_proxy(*_some(list(there), "integer"))
    second, _ = config.fit_with_proxy(*_some(list(here), "integer"))
    rows_R, note = match_compressed(first, second)
    assert note is None
    values = pa.array(range(1000))
    assert rows_R[second.transform(values)].tolist() == first.transform(values).tolist()


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_a_newly_private_value_takes_over_the_row_of_its_cluster(kind: str) -> None:
    config = LearnedHashConfig(rows=2 + 10 + KINDS, private_rows=10)
    values = list(range(1000))
    hot, later = [100] * 10 + [10] * 990, [10] * 100 + [100] * 10 + [10] * 890
    first, _ = config.fit_with_proxy(*_some(values, kind, hot))
    second, ids = config.fit_with_proxy(*_some(values, kind, later), first)
    rows_R, _ = match_compressed(first, second)
    newly = _ids(list(range(100, 110)), kind)
    assert sorted(ids[100:110].tolist()) == list(range(1, 11))
    assert rows_R[second.transform(newly)].tolist() == first.transform(newly).tolist()


def test_the_majority_of_a_cluster_decides() -> None:
    config = LearnedHashConfig(rows=2 + KINDS)
    counts, proxy = _some(list(range(1000)), "text")
    first, _ = config.fit_with_proxy(counts, proxy)
    vectors = proxy.vectors_ND.copy()
    vectors[:200] = proxy.vectors_ND[1:201]  # these values belong to the next kind now
    second, ids = config.fit_with_proxy(counts, ProxyVectors(vectors))
    rows_R, note = match_compressed(first, second)
    assert note is None
    assert rows_R[ids[200:]].tolist() == first.transform(counts.values)[200:].tolist()


def test_frequent_values_keep_their_rows_and_hashed_rows_theirs() -> None:
    config = DoubleHashConfig(rows=1 + 4 + 6, private_rows=4)
    first = config.fit(_some(list(range(50)), "text", [90, 80, 70, 60] + [10] * 46)[0])
    second = config.fit(_some(list(range(50)), "text", [60, 10, 90, 70, 80] + [10] * 45)[0])
    rows_R, note = match_compressed(first, second)
    assert note is None
    values = _ids([0, 2, 3, *range(5, 50)], "text")  # all but the value that is no longer frequent, and the newcomer
    there, here = first.transform(values), second.transform(values)
    assert np.where(here == -1, -1, rows_R[here]).tolist() == there.tolist()
    assert rows_R[second.transform(_ids([4], "text"))[0, 0]] == -1
    other = DoubleHashConfig(rows=1 + 4 + 6, private_rows=4, seed=1).fit(_some(list(range(50)), "text")[0])
    shared, note = match_compressed(first, other)
    assert note == "rows that are shared by hash start from scratch: 6 there, 6 here"
    assert (shared[5:] == -1).all()


def test_quotients_are_matched_if_they_are_divided_alike() -> None:
    counts = ValueCounts(pa.array(range(500, 1500)), np.ones(1000, np.int64))
    first, longer = (QuotientRemainderConfig(rows=90).fit(counts), QuotientRemainderConfig(rows=91).fit(counts))
    later = QuotientRemainderConfig(rows=90).fit(ValueCounts(pa.array(range(501, 1501)), counts.counts))
    more = QuotientRemainderConfig(rows=90).fit(ValueCounts(pa.array(range(500, 1900)), np.ones(1400, np.int64)))
    ours = first.to_state()[0]
    assert compressed_difference(ours, dict(ours)) is None
    assert match_compressed(first, first)[0].tolist() == list(range(90))
    assert compressed_difference(ours, later.to_state()[0]) == "its division differs: low 501 there, 500 here"
    found = compressed_difference(ours, more.to_state()[0])
    assert found == f"its division differs: remainders {more.remainders} there, {first.remainders} here"
    found = compressed_difference(ours, longer.to_state()[0])
    assert found is not None
    assert found.startswith("its division differs: rows 91 there, 90 here")


def test_clusters_that_have_nothing_in_common_say_so() -> None:
    config = LearnedHashConfig(rows=2 + KINDS)
    first, _ = config.fit_with_proxy(*_some(list(range(100)), "text"))
    second, _ = config.fit_with_proxy(*_some(list(range(1000, 1100)), "text"))
    rows_R, note = match_compressed(first, second)
    assert (rows_R[2:] == -1).all()
    assert note == "shared rows start from scratch: none of the values that share them has a row there"
