"""The contract of all encoders: bounds, determinism, saved state, unknown and extreme values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.core.errors import DataError
from ziggurat.core.files import write_json
from ziggurat.core.parts import built_in
from ziggurat.extension_testing import check_encoder
from ziggurat.features.encoders.compressed.frequency import (
    DoubleHashConfig,
    FrequencyBandConfig,
    FrequencyHashConfig,
)
from ziggurat.features.encoders.compressed.learned_hash import ClusteredCodesConfig, LearnedHashConfig, LshConfig
from ziggurat.features.encoders.compressed.quotient_remainder import QuotientRemainderConfig
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings, ValueCounts
from ziggurat.features.encoders.encoders import EncoderConfig
from ziggurat.features.encoders.files import load_encoder, save_encoder
from ziggurat.features.encoders.hashed import HashConfig, HashEncoder
from ziggurat.features.encoders.identity import IdentityConfig, IdentityEncoder
from ziggurat.features.encoders.round_trip import made_up_vectors
from ziggurat.features.encoders.vocabulary import VocabularyConfig, VocabularyEncoder

INTEGERS = pa.array([3, -7, 2**63 - 1, -(2**63), 0, 12], pa.int64())
TEXTS = pa.array(["a", "", "ünï", "12", "longer than eight bytes", "b"])
COUNTS = np.array([5, 2, 2, 9, 0, 1])
HASH_GOLDEN_TEXT = [917, 304, 271]
HASH_GOLDEN_INTEGER = [271, 818, 297]
UNSEEN = {"integer": pa.array([99, -99, 4], pa.int64()), "text": pa.array(["zzz", "A", "longer than eight bytez"])}


def counts_of(kind: str) -> ValueCounts:
    return ValueCounts(INTEGERS if kind == "integer" else TEXTS, COUNTS)


def vocabulary(kind: str, **settings: int) -> VocabularyEncoder:
    return VocabularyEncoder.fit(VocabularyConfig.model_validate(settings), counts_of(kind))


def learned(config: EncoderSettings, kind: str) -> Encoder:
    """Returns an encoder that is fitted with made-up vectors in place of a proxy's."""
    values = counts_of(kind).values
    assert config.proxy is not None
    return config.fit_with_proxy(counts_of(kind), made_up_vectors(values, config.proxy.dim))[0]


COMPRESSED: list[EncoderSettings] = [
    FrequencyHashConfig(rows=6, private_rows=2),
    FrequencyBandConfig(first=1, values=2),
    FrequencyBandConfig(first=2, hashed_rows=3),
    DoubleHashConfig(rows=6, private_rows=1),
    QuotientRemainderConfig(rows=5),
]
LEARNED: list[EncoderSettings] = [
    LearnedHashConfig(rows=6, private_rows=2),
    LearnedHashConfig(rows=6, private_rows=1, map="compact", code_bits=1),
    LearnedHashConfig(rows=6, mapped_values=2, unseen_rows=2),
    LshConfig(rows=6, proxy_dim=4),
    ClusteredCodesConfig(rows=7, private_rows=1),
    ClusteredCodesConfig(rows=7, compose="residual"),
    ClusteredCodesConfig(rows=7, compose="product", map="compact", code_bits=2),
]


MEMBERS: list[tuple[str, Encoder, pa.Array]] = [
    (f"{name}-{kind}", encoder, pa.concat_arrays([counts_of(kind).values, UNSEEN[kind]]))
    for kind in ("integer", "text")
    for name, encoder in (
        ("vocabulary", vocabulary(kind)),
        ("vocabulary-oov5", vocabulary(kind, oov_rows=5)),
        ("vocabulary-oov0", vocabulary(kind, oov_rows=0)),
        ("vocabulary-rare", vocabulary(kind, min_count=100)),
        ("vocabulary-top2", vocabulary(kind, max_size=2)),
        ("hash", HashEncoder(rows=7, seed=3)),
        ("hash-large", HashEncoder(rows=2**33, seed=0)),
        *((f"{each.title}{number}", each.fit(counts_of(kind))) for number, each in enumerate(COMPRESSED)),
        *((f"{each.title}{number}", learned(each, kind)) for number, each in enumerate(LEARNED)),
    )
] + [("identity", IdentityEncoder(13), pa.array([0, 12, 5], pa.int64()))]


def test_every_built_in_encoder_is_a_member() -> None:
    """A new encoder joins the contract by a line in MEMBERS, since its settings may have no defaults."""
    assert {kind.encoder_class() for kind in built_in(EncoderConfig, EncoderSettings)} == {type(m[1]) for m in MEMBERS}


@pytest.mark.parametrize("kind", ["integer", "text"])
@pytest.mark.parametrize(
    "config",
    [
        VocabularyConfig(),
        VocabularyConfig(oov_rows=5, min_count=2),
        VocabularyConfig(oov_rows=0, max_size=2),
        HashConfig(rows=7, seed=3),
        HashConfig(rows=2**33),
    ],
    ids=lambda config: f"{config.name}-{config.model_dump_json(exclude_unset=True)}",
)
def test_it_keeps_the_contract_of_parts_from_outside(config: EncoderSettings, kind: str) -> None:
    check_encoder(config, counts_of(kind).values, COUNTS.tolist())


@pytest.mark.parametrize(
    ("config", "kind"),
    [(config, ("integer", "text")[number % 2]) for number, config in enumerate(COMPRESSED + LEARNED)],
    ids=lambda each: each if isinstance(each, str) else each.title,
)
def test_compressed_ones_keep_the_contract_of_parts_from_outside(config: EncoderSettings, kind: str) -> None:
    check_encoder(config, counts_of(kind).values, COUNTS.tolist())


def test_the_identity_keeps_the_contract_of_parts_from_outside() -> None:
    check_encoder(IdentityConfig(rows=1000), [0, 12, 5])


@pytest.fixture(params=MEMBERS, ids=[name for name, _, _ in MEMBERS])
def member(request: pytest.FixtureRequest) -> tuple[Encoder, pa.Array]:
    _, encoder, values = request.param
    return encoder, values


def test_ids_are_within_the_table(member: tuple[Encoder, pa.Array]) -> None:
    encoder, values = member
    ids = encoder.transform(values)
    assert ids.dtype == np.int64
    assert len(ids) == len(values)
    assert (ids if ids.ndim == 1 else ids.max(axis=1)).min() >= 0
    assert ids.max() < encoder.rows


def test_an_id_depends_only_on_the_value(member: tuple[Encoder, pa.Array]) -> None:
    encoder, values = member
    ids = encoder.transform(values)
    order = np.random.default_rng(1).permutation(len(values))
    np.testing.assert_array_equal(encoder.transform(values.take(pa.array(order))), ids[order])
    one_by_one = [encoder.transform(values.slice(i, 1))[0].tolist() for i in range(len(values))]
    assert one_by_one == ids.tolist()
    assert len(encoder.transform(values.slice(0, 0))) == 0


def test_state_is_saved_and_loaded(member: tuple[Encoder, pa.Array], tmp_path: Path) -> None:
    encoder, values = member
    save_encoder(tmp_path, "t", encoder)
    loaded = load_encoder(tmp_path, "t")
    assert type(loaded) is type(encoder)
    assert (loaded.rows, loaded.unknown_rows) == (encoder.rows, encoder.unknown_rows)
    np.testing.assert_array_equal(loaded.transform(values), encoder.transform(values))
    again = tmp_path / "again"
    save_encoder(again, "t", loaded)
    for file in sorted(tmp_path.glob("table.*")):
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_another_version_is_rejected(member: tuple[Encoder, pa.Array], tmp_path: Path) -> None:
    save_encoder(tmp_path, "t", member[0])
    figures, _ = member[0].to_state()
    write_json(tmp_path / "table.t.json", {**figures, "version": 99})
    with pytest.raises(DataError, match=r"version 99, but this ziggurat reads versions? 1"):
        load_encoder(tmp_path, "t")


def test_a_missing_encoder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"table\.user\.json: not found"):
        load_encoder(tmp_path, "user")


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_vocabulary_orders_by_count_then_value(kind: str) -> None:
    fitted = vocabulary(kind)
    expected = [-(2**63), 3, -7, 2**63 - 1, 12] if kind == "integer" else ["12", "a", "", "ünï", "b"]
    assert fitted.keys.to_pylist() == expected
    assert fitted.rows == 2 + 5
    assert fitted.transform(fitted.keys).tolist() == [2, 3, 4, 5, 6]
    assert fitted.transform(UNSEEN[kind]).tolist() == [1, 1, 1]


def test_values_that_training_rows_lack_are_unknown() -> None:
    assert vocabulary("integer").transform(pa.array([0])).tolist() == [1]  # counted 0 times


def test_unknown_values_share_the_out_of_vocabulary_rows() -> None:
    fitted = vocabulary("text", oov_rows=4)
    ids = fitted.transform(pa.array([f"new {i}" for i in range(400)]))
    assert set(ids.tolist()) == {1, 2, 3, 4}
    assert vocabulary("text", oov_rows=0).transform(UNSEEN["text"]).tolist() == [0, 0, 0]


def test_min_count_and_max_size() -> None:
    assert vocabulary("text", min_count=2).keys.to_pylist() == ["12", "a", "", "ünï"]
    assert vocabulary("text", min_count=2, max_size=1).keys.to_pylist() == ["12"]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=12), st.integers(0, 4), max_size=30),
    st.randoms(),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_vocabulary_does_not_depend_on_the_order_of_its_counts(
    counts: dict[str, int], shuffler: object, min_count: int, oov_rows: int
) -> None:
    config = VocabularyConfig(min_count=min_count, oov_rows=oov_rows)
    shuffled = list(counts.items())
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]
    fits = [
        VocabularyEncoder.fit_with_ids(
            config, ValueCounts(pa.array([k for k, _ in items], pa.string()), np.array([v for _, v in items], np.int64))
        )
        for items in (list(counts.items()), shuffled)
    ]
    assert fits[0][0].keys.equals(fits[1][0].keys)
    expected = sorted((k for k, v in counts.items() if v >= min_count), key=lambda k: (-counts[k], k.encode()))
    assert fits[0][0].keys.to_pylist() == expected
    for (fitted, ids), items in zip(fits, (list(counts.items()), shuffled), strict=True):
        values = pa.array([k for k, _ in items], pa.string())
        np.testing.assert_array_equal(ids, fitted.transform(values))


def test_hash_ids_match_golden_values() -> None:
    encoder = HashEncoder(rows=1000, seed=0)
    assert encoder.transform(pa.array(["68fd1e64", "a", ""])).tolist() == HASH_GOLDEN_TEXT
    assert encoder.transform(pa.array([0, 1, -1])).tolist() == HASH_GOLDEN_INTEGER
    assert 0 not in encoder.transform(pa.array(np.arange(10_000)))


def test_identity_keeps_ids() -> None:
    assert IdentityEncoder(5).transform(pa.array([4, 0, 2])).tolist() == [4, 0, 2]
