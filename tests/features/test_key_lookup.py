"""Finding values among keys: both methods of the text index, dense and sparse integers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.features.encoders.key_lookup import IntegerIndex, TextIndex, blob_to_text, text_to_blob

INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20)


@settings(max_examples=100, deadline=None)
@given(st.lists(INT64, unique=True, max_size=30), st.lists(INT64, max_size=30))
def test_integers_are_found_at_their_positions(keys: list[int], wanted: list[int]) -> None:
    found = IntegerIndex(np.array(keys, np.int64)).find(pa.array([*keys, *wanted], pa.int64()))
    assert found.tolist() == [keys.index(v) if v in keys else -1 for v in [*keys, *wanted]]


def test_integer_extremes_around_a_dense_range() -> None:
    index = IntegerIndex(np.arange(-50, 50))
    assert index.find(pa.array([-50, 49, 50, -51, 2**63 - 1, -(2**63)])).tolist() == [0, 99, -1, -1, -1, -1]
    top = IntegerIndex(np.array([2**63 - 1, 2**63 - 2]))
    assert top.find(pa.array([2**63 - 2, 2**63 - 1, -(2**63)])).tolist() == [1, 0, -1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=20), unique=True, max_size=40), st.lists(st.text(max_size=20), max_size=5))
def test_both_methods_find_the_same_texts(keys: list[str], wanted: list[str]) -> None:
    index = TextIndex(pa.array(keys, pa.string()))
    values = [*keys, *wanted]
    expected = [keys.index(v) if v in keys else -1 for v in values]
    assert index.find(pa.array(values, pa.string())).tolist() == expected
    one_by_one = [int(index.find(pa.array([value]))[0]) for value in values]
    assert one_by_one == expected


def test_a_hash_collision_changes_the_seed_but_not_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    import ziggurat.features.encoders.key_lookup as lookup

    hash_text = lookup.hash_text
    # with seed 0 all values have the same hash, as in a real collision
    monkeypatch.setattr(lookup, "hash_text", lambda values, seed: hash_text(values, seed) * np.uint64(seed > 0))
    keys = [f"key {i}" for i in range(100)]
    index = TextIndex(pa.array(keys))
    assert [int(index.find(pa.array([key]))[0]) for key in keys] == list(range(100))
    assert index.find(pa.array(["none"])).tolist() == [-1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=10), max_size=20), st.integers(0, 4))
def test_blobs_of_slices_round_trip(keys: list[str], start: int) -> None:
    blob, offsets = text_to_blob(pa.array(keys, pa.string()).slice(start))
    assert blob.tobytes() == "".join(keys[start:]).encode()
    assert blob_to_text(blob, offsets).to_pylist() == keys[start:]
