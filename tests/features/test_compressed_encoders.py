"""Encoders with fewer rows than values: maps, clusters, golden rows, damage, extreme id spaces, refitting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic
import pytest
from threadpoolctl import threadpool_limits

from bench.quality.compression.build import measure
from tests.features.compressed_kit import KINDS, planted
from ziggurat.core.errors import DataError
from ziggurat.features.encoders.compressed.clusters import (
    centroids,
    cluster,
    distortion,
    nearest,
    shared_out,
    sign_codes,
)
from ziggurat.features.encoders.compressed.frequency import DoubleHashConfig, FrequencyBandConfig, FrequencyHashConfig
from ziggurat.features.encoders.compressed.hashed_keys import hash_keys
from ziggurat.features.encoders.compressed.learned_hash import ClusteredCodesConfig, LearnedHashConfig, LshConfig
from ziggurat.features.encoders.compressed.mapped import MappedEncoder
from ziggurat.features.encoders.compressed.quotient_remainder import (
    QuotientRemainderConfig,
    QuotientRemainderEncoder,
    divisor,
)
from ziggurat.features.encoders.compressed.static_function import StaticFunction
from ziggurat.features.encoders.encoder import EncoderSettings, ValueCounts
from ziggurat.features.encoders.files import load_encoder, save_encoder
from ziggurat.features.encoders.round_trip import made_up_vectors


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
@pytest.mark.parametrize("bits", [1, 9, 32])
def test_a_static_function_returns_what_it_was_built_from(count: int, bits: int) -> None:
    keys = hash_keys(pa.array(np.arange(count)))
    numbers = (np.random.default_rng(1).integers(0, 2**32, count) % 2**bits).astype(np.uint32)
    function = StaticFunction.build(keys, numbers, bits)
    assert function.find(keys).tolist() == numbers.tolist()
    assert function.nbytes == StaticFunction.bytes_of(count, bits)
    figures, packed = function.to_state()
    assert StaticFunction.from_state(figures, packed, "map").find(keys).tolist() == numbers.tolist()
    if count == 1000:
        assert function.nbytes < 1.35 * count * bits / 8 + 8
    with pytest.raises(DataError, match=r"which .* numbers of .* bits do not"):
        StaticFunction.from_state(figures, packed[:-1], "map")


def test_clusters_are_those_that_were_planted() -> None:
    _, proxy, kinds = planted(3000)
    found = cluster(proxy.vectors_ND, np.ones(3000), KINDS)
    assert len({(each, kind) for each, kind in zip(found, kinds, strict=True)}) == KINDS


def test_many_clusters_are_better_than_chance_and_all_used() -> None:
    random = np.random.default_rng(0)
    x_ND = random.standard_normal((4000, 3)).astype(np.float32)
    weights_N = random.random(4000)
    found = cluster(x_ND, weights_N, 600)
    assert np.bincount(found, minlength=600).min() > 0
    assert distortion(x_ND, weights_N, found) < 0.1 * distortion(x_ND, weights_N, random.permutation(found))
    means_KD = random.standard_normal((1500, 3)).astype(np.float32)
    direct = ((x_ND[:200, None] - means_KD) ** 2).sum(axis=2).min(axis=1)
    near = ((x_ND[:200] - means_KD[nearest(x_ND, means_KD)[:200]]) ** 2).sum(axis=1)
    assert near.sum() < 1.3 * direct.sum()


def test_clusters_and_codes_are_the_same_by_any_number_of_threads() -> None:
    """Few clusters by mini-batches, many in two levels, the nearest centroids and the signs of projections."""
    random = np.random.default_rng(3)
    x_ND, weights_N = random.standard_normal((150_000, 8)).astype(np.float32), random.random(150_000)
    found: list[list[np.ndarray[Any, Any]]] = []
    for threads in (1, 2, 7):
        with threadpool_limits(threads):
            many = cluster(x_ND, weights_N, 700)
            means_KD = centroids(x_ND, weights_N, many, 700)
            found.append([cluster(x_ND, weights_N, 50), many, nearest(x_ND, means_KD), sign_codes(x_ND, 20, 1)])
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            assert np.array_equal(ours, theirs)


def test_codes_are_the_signs_of_projections_of_centred_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ziggurat.features.encoders.compressed.clusters._CHUNK", 64)  # eight vectors at once
    x_ND = np.random.default_rng(4).standard_normal((101, 3)).astype(np.float32) + 2
    planes_DB = np.random.default_rng(7).standard_normal((3, 8)).astype(np.float32)
    signs_NB = (x_ND - x_ND.mean(axis=0)) @ planes_DB > 0
    expected = [sum(1 << bit for bit in range(8) if signs[bit]) for signs in signs_NB]
    assert sign_codes(x_ND, 8, 7).tolist() == expected


def test_a_frequent_vector_draws_the_centroid() -> None:
    x_ND = np.array([[0.0], [0.1], [10.0], [11.0]], np.float32)
    found = cluster(x_ND, np.array([1.0, 1, 1e4, 1e4]), 3).tolist()
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_mini_batches_are_weighted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most vectors lie at 0 and weigh next to nothing, so that those at 10 and at 11 are told apart."""
    monkeypatch.setattr("ziggurat.features.encoders.compressed.clusters._FULL", 1000)
    x_ND = np.repeat(np.array([0, 10, 11], np.float32), [2000, 500, 500])[:, None]
    found = cluster(x_ND, np.repeat([1e-3, 1e3, 1e3], [2000, 500, 500]), 2)
    assert found[0] == found[2000] != found[2500]


def test_cells_get_clusters_by_zadors_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two intervals one is ten times as wide, and has 100 times the distortion: in one dimension it gets 100 to the
    power 1/3 times as many clusters."""
    monkeypatch.setattr("ziggurat.features.encoders.compressed.clusters.FLAT", 2)
    x_ND = np.concatenate([np.linspace(0, 1, 1000), np.linspace(100, 110, 1000)]).astype(np.float32)[:, None]
    found = cluster(x_ND, np.ones(2000), 60)
    narrow, wide = len(set(found[:1000].tolist())), len(set(found[1000:].tolist()))
    assert narrow + wide == 60
    assert wide / narrow == pytest.approx(100 ** (1 / 3), rel=0.15)


def test_shares_add_up() -> None:
    assert shared_out(np.array([3.0, 1.0, 0.0]), np.array([100, 100, 100]), 12).tolist() == [8, 3, 1]
    assert shared_out(np.array([3.0, 1.0]), np.array([2, 100]), 12).tolist() == [2, 10]
    assert shared_out(np.array([1.0, 1.0]), np.array([2, 0]), 12).tolist() == [2, 0]


@pytest.mark.parametrize("kind", ["integer", "text"])
@pytest.mark.parametrize("form", ["plain", "compact"])
def test_alike_values_share_rows(kind: str, form: str) -> None:
    counts, proxy, kinds = planted(400, kind)
    config = LearnedHashConfig.model_validate(
        {"rows": 2 + 10 + KINDS, "private_rows": 10, "map": form, "code_bits": 3, "check_bits": 8}
    )
    encoder, ids = config.fit_with_proxy(counts, proxy)
    hottest = np.argsort(-counts.counts, kind="stable")[:9]
    assert sorted(ids[hottest].tolist()) == list(range(1, 10))
    shared = ids >= encoder.parts.first_coded
    assert shared.sum() == 390
    pairs = {(row, kind) for row, kind in zip(ids[shared].tolist(), kinds[shared].tolist(), strict=True)}
    assert len(pairs) == KINDS
    unseen = pa.array([7, -3]) if kind == "integer" else pa.array(["x", ""])
    assert encoder.transform(unseen).tolist() == [11, 11]


@pytest.mark.parametrize("form", ["plain", "compact"])
def test_unseen_and_unmapped_values_share_all_rows_for_them(form: str) -> None:
    counts, proxy, _ = planted(600, "text")
    config = LearnedHashConfig.model_validate(
        {"rows": 1 + 10 + 8 + KINDS, "private_rows": 10, "unseen_rows": 8, "mapped_values": 200, "map": form}
        | {"code_bits": 3, "check_bits": 8}
    )
    ranked = ValueCounts(counts.values, np.arange(600, 0, -1))
    encoder, ids = config.fit_with_proxy(ranked, proxy)
    assert ids[:10].tolist() == list(range(1, 11))
    assert ids[10:210].min() >= encoder.parts.first_coded == 19
    unseen = (ids[210:] >= 11) & (ids[210:] < 19)
    assert unseen.mean() > 0.98  # eight check bits miss one in 256
    strangers = encoder.transform(pa.array([f"w{each}" for each in range(4000)]))
    shares = np.bincount(strangers, minlength=19)[11:19] / 4000
    assert shares.min() > 0.1
    assert shares.max() < 0.15


def test_a_compact_map_takes_less_than_the_bytes_it_promises() -> None:
    counts, proxy, _ = planted(20_000, "text")
    encoder, ids = LearnedHashConfig(rows=1000, map="compact").fit_with_proxy(counts, proxy)
    assert encoder.map_bytes < 1.5 * 20_000
    assert ids.min() >= encoder.parts.first_coded
    assert np.bincount(ids, minlength=1000)[encoder.parts.first_coded :].min() > 0
    strangers = encoder.transform(pa.array([f"w{each}" for each in range(4000)]))
    assert 0.65 < (strangers == 1).mean() < 0.85  # two check bits find three of four out


def test_bytes_of_a_plain_map() -> None:
    counts, proxy, _ = planted(1000)
    dense, _ = LearnedHashConfig(rows=100).fit_with_proxy(counts, proxy)
    assert dense.map_bytes == 4 * 1000  # integers that fill their range
    texts, _ = LearnedHashConfig(rows=100).fit_with_proxy(*planted(1000, "text")[:2])
    assert texts.map_bytes == 12 * 1000


GOLDEN: list[tuple[EncoderSettings, list[Any]]] = [
    (LearnedHashConfig(rows=6, private_rows=1), [1, 5, 4, 3, 5, 3]),
    (LearnedHashConfig(rows=6, private_rows=1, map="compact", code_bits=2), [1, 5, 4, 3, 5, 3]),
    (LshConfig(rows=6, private_rows=1), [1, 3, 3, 3, 4, 4]),
    (ClusteredCodesConfig(rows=8), [[3, 5], [4, 5], [2, 5], [3, 7], [4, 6], [4, 6]]),
    (ClusteredCodesConfig(rows=8, compose="residual"), [[3, 7], [4, 5], [2, 7], [3, 5], [4, 6], [4, 6]]),
    (ClusteredCodesConfig(rows=8, compose="product"), [[3, 7], [4, 5], [2, 7], [4, 7], [4, 6], [4, 6]]),
    (FrequencyHashConfig(rows=5, private_rows=2), [1, 2, 4, 3, 3, 4]),
    (DoubleHashConfig(rows=8, private_rows=1), [[1, -1], [6, 2], [7, 2], [4, 7], [2, 3], [3, 7]]),
    (FrequencyBandConfig(first=1, values=2, hashed_rows=3), [0, 1, 2, 5, 3, 4]),
    (QuotientRemainderConfig(rows=6), [[1, 4], [1, 5], [2, 3], [2, 4], [2, 5], [1, 3]]),
]


@pytest.mark.parametrize(("config", "expected"), GOLDEN, ids=lambda each: getattr(each, "title", ""))
def test_golden_maps(config: EncoderSettings, expected: list[Any]) -> None:
    counts = ValueCounts(pa.array([11, 12, 13, 14, 15, 10]), np.array([60, 50, 40, 30, 20, 10]))
    assert _fitted(config, counts).tolist() == expected


def _fitted(config: EncoderSettings, counts: ValueCounts) -> np.ndarray[Any, Any]:
    if config.proxy is None:
        return config.fit(counts).transform(counts.values)
    encoder, _ = config.fit_with_proxy(counts, made_up_vectors(counts.values, config.proxy.dim))
    return encoder.transform(counts.values)


@pytest.mark.parametrize("form", ["plain", "compact"])
@pytest.mark.parametrize(
    "values", [pa.array([5]), pa.array(["only"]), pa.array([], pa.int64()), pa.array([-(2**63), 2**63 - 1])]
)
def test_tiny_and_extreme_id_spaces(values: pa.Array, form: str, tmp_path: Path) -> None:
    counts = ValueCounts(values, np.arange(1, len(values) + 1))
    for config in (
        LearnedHashConfig.model_validate({"rows": 6, "private_rows": 1, "map": form}),
        ClusteredCodesConfig.model_validate({"rows": 6, "compose": "residual", "map": form}),
    ):
        encoder, ids = config.fit_with_proxy(counts, made_up_vectors(values, 8))
        save_encoder(tmp_path, "t", encoder)
        again = load_encoder(tmp_path, "t")
        np.testing.assert_array_equal(again.transform(values), ids)
        assert again.rows == encoder.rows == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": lambda codes: codes + 100}, "a code of its map is outside the table"),
        ({"codes": lambda codes: codes[:, :0]}, "its map has 0 codes of 40 values, which do not fit"),
        ({"keys": lambda keys: keys[::-1]}, "the hashes 'keys' do not ascend"),
        ({"private_order": lambda order: order * 0}, "the positions 'private' are not those of its 2 values"),
        ({"private": lambda keys: keys[:1]}, "the positions 'private' are not those of its 1 values"),
    ],
)
def test_a_damaged_map_is_named(change: dict[str, Any], message: str) -> None:
    counts, proxy, _ = planted(42, "text")
    encoder, _ = LearnedHashConfig(rows=10, private_rows=2).fit_with_proxy(counts, proxy)
    figures, arrays = encoder.to_state()
    damaged = {**arrays, **{name: np.ascontiguousarray(of(arrays[name])) for name, of in change.items()}}
    with pytest.raises(DataError, match=message):
        MappedEncoder.from_state(figures, damaged)


def test_quotients_and_remainders_tell_all_values_apart() -> None:
    counts = ValueCounts(pa.array(np.arange(500, 1500)), np.ones(1000, np.int64))
    encoder = QuotientRemainderConfig(rows=90).fit(counts)
    assert encoder.rows == 90
    assert len({tuple(each) for each in encoder.transform(counts.values).tolist()}) == 1000
    assert [divisor(1000, rows) for rows in (1001, 500, 64, 63, 10)] == [1000, 497, 36, 31, 5]


@pytest.mark.parametrize("ratio", [2, 10, 50])
def test_values_without_numbers_use_all_pairs_of_rows(ratio: int) -> None:
    count = 20_000
    for values in (pa.array([f"B{each:09d}" for each in range(count)]), pa.array(np.arange(count) ** 2 * 1001)):
        encoder = QuotientRemainderConfig(rows=count // ratio).fit(ValueCounts(values, np.ones(count, np.int64)))
        ids = encoder.transform(values)
        assert (ids.min(), ids.max()) == (1, encoder.rows - 1)
        pairs, alone = np.unique(ids[:, 0] * encoder.rows + ids[:, 1], return_counts=True)
        by_chance = np.exp(-count / ((encoder.rows - 1) / 2) ** 2)
        assert (alone == 1).sum() / count == pytest.approx(by_chance, abs=0.02)
        assert len(pairs) <= count


def test_a_quotient_encoder_of_version_1_keeps_its_rows() -> None:
    stored = {"name": "quotient_remainder", "version": 1, "rows": 12, "remainders": 8, "low": None, "seed": 0}
    encoder = QuotientRemainderEncoder.from_state(stored, {})
    assert encoder.transform(pa.array(["a", "b", "c", "d"])).tolist() == [[2, 11], [3, 7], [3, 6], [3, 11]]
    with pytest.raises(DataError, match="version 3"):
        QuotientRemainderEncoder.from_state({**stored, "version": 3}, {})


def test_two_hashes_are_independent() -> None:
    counts, _, _ = planted(3000, "text")
    encoder = DoubleHashConfig(rows=1 + 100 + 500, private_rows=100).fit(counts)
    ids = encoder.transform(counts.values)
    one = ids[:, 1] == -1
    assert sorted(ids[one, 0].tolist()) == list(range(1, 101))
    assert counts.counts[one].min() >= counts.counts[~one].max()
    two = ids[~one]
    assert (two[:, 0] == two[:, 1]).mean() < 0.01
    assert len({tuple(each) for each in two.tolist()}) > 0.98 * len(two)
    assert set(two.ravel().tolist()) == set(range(101, 601))


def test_bands_divide_the_values() -> None:
    counts, _, _ = planted(100, "text")
    order = np.argsort(-counts.counts, kind="stable")
    hot = FrequencyBandConfig(values=10).fit(counts).transform(counts.values)
    cold = FrequencyBandConfig(first=10, hashed_rows=3).fit(counts).transform(counts.values)
    assert (hot > 0).sum() == 10
    assert ((hot > 0) ^ (cold > 0)).all()
    assert counts.counts[hot > 0].min() >= counts.counts[order[9]]
    assert set(FrequencyBandConfig(first=10, hashed_rows=3).fit(counts).transform(pa.array(["new", "newer"]))) <= set(
        range(91, 94)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compose": "residual", "clusterings": 1}, "only codes with a helper have them; compose is residual"),
        ({"clusterings": 4, "proxy_passes": 4}, "received 4 for 4 proxy_passes; the proxy must learn after the last"),
    ],
)
def test_clusterings_are_of_helpers_and_before_the_last_pass(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        ClusteredCodesConfig(rows=20, **settings)


def test_a_map_of_ten_million_values(tmp_path: Path) -> None:
    measured = measure(10_000_000)
    assert measured["compact_bytes"] < 1.5
    assert measured["plain_bytes"] == 12
    assert measured["peak_gib"] < 8


@pytest.mark.parametrize("form", ["plain", "compact"])
def test_the_seed_is_that_of_all_hashes(form: str) -> None:
    counts, proxy, _ = planted(400)
    strangers = pa.array(np.arange(5000, 5400))
    found = []
    for seed in (0, 1):
        config = ClusteredCodesConfig.model_validate(
            {"rows": 1 + 50 + 200, "unseen_rows": 50, "map": form, "code_bits": 3, "check_bits": 8, "seed": seed}
        )
        encoder, ids = config.fit_with_proxy(counts, proxy)
        restored = MappedEncoder.from_state(*encoder.to_state())
        assert np.array_equal(restored.transform(counts.values), ids)
        found.append((ids[:, 1], restored.transform(strangers)[:, 0]))
    for first, second in zip(*found, strict=True):
        assert (first == second).mean() < 0.1
    with pytest.raises(pydantic.ValidationError, match="seed"):
        ClusteredCodesConfig(rows=20, seed=-1)
