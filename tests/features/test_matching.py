"""Matched rows of two fits of a table represent the same value or the same role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ziggurat.core.errors import DataError
from ziggurat.features.config import FeatureConfig, Targets
from ziggurat.features.encoders.encoder import Encoder
from ziggurat.features.encoders.hashed import HashEncoder
from ziggurat.features.encoders.identity import IdentityEncoder
from ziggurat.features.encoders.vocabulary import VocabularyEncoder
from ziggurat.features.matching import FittedTables, difference, match_rows, match_vocabularies
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.numeric.steps import Bucketise, Clip, Fill
from ziggurat.features.transform import Transform

FEATURE: TypeAdapter[FeatureConfig] = TypeAdapter(FeatureConfig)
LISTS = st.lists(st.integers(-50, 50), unique=True, max_size=40)
TEXT_LISTS = st.lists(st.text(max_size=4), unique=True, max_size=20)


def numbers(values: list[int], oov_rows: int = 1) -> VocabularyEncoder:
    return VocabularyEncoder(pa.array(values, pa.int64()), oov_rows)


def test_rows_match_by_value_and_role() -> None:
    there = numbers([30, 10, 20])  # missing, unknown, 30, 10, 20
    here = numbers([10, 40, 30])  # missing, unknown, 10, 40, 30
    match = match_vocabularies(there, here)
    assert match.rows_R is not None
    assert match.rows_R.tolist() == [0, 1, 3, -1, 2]
    assert (match.size, match.size_there, match.matched, match.note) == (5, 5, 4, None)
    assert match.of(np.array([4, 3, 0])).tolist() == [2, -1, 0]


@pytest.mark.parametrize(
    ("there", "here", "rows"),
    [
        (1, 1, [1]), (2, 2, [1, 2]), (1, 3, [1, 1, 1]), (2, 4, [1, 2, 1, 2]), (0, 2, [0, 0]), (3, 0, []),
        (2, 1, [-1]), (2, 3, [-1, -1, -1]),
    ],
)  # fmt: skip
def test_rows_of_unknown_values_match(there: int, here: int, rows: list[int]) -> None:
    match = match_vocabularies(numbers([5, 6], there), numbers([6, 5], here))
    assert match.rows_R is not None
    assert match.rows_R.tolist() == [0, *rows, 1 + there + 1, 1 + there]
    assert match.matched == int((match.rows_R >= 0).sum())
    text = f"rows of unknown values start from scratch: {there} there, {here} here"
    assert match.note == (text if -1 in rows else None)


@settings(deadline=None)
@given(LISTS, LISTS, st.integers(0, 4), st.integers(0, 4), st.lists(st.integers(-60, 60), max_size=30))
def test_every_value_looks_up_the_row_that_it_looked_up_there(
    theirs: list[int], ours: list[int], oov_there: int, oov_here: int, values: list[int]
) -> None:
    """A value that looks up a matched row here looked up that row there, unless only one vocabulary knows the value."""
    there, here = numbers(theirs, oov_there), numbers(ours, oov_here)
    match = match_vocabularies(there, here)
    found = match.of(here.transform(pa.array(values, pa.int64())))
    for value, row, old in zip(values, found, there.transform(pa.array(values, pa.int64())), strict=True):
        if (value in theirs) == (value in ours) and (value in theirs or match.note is None):
            assert row == old or oov_here == 0
        elif value in ours:
            assert row == -1


@settings(deadline=None)
@given(TEXT_LISTS, TEXT_LISTS)
def test_text_is_matched_by_value(theirs: list[str], ours: list[str]) -> None:
    match = match_vocabularies(
        VocabularyEncoder(pa.array(theirs, pa.string()), 1), VocabularyEncoder(pa.array(ours, pa.string()), 1)
    )
    rows = match.of(np.arange(match.size))
    place = {text: 2 + number for number, text in enumerate(theirs)}
    assert rows.tolist() == [0, 1, *(place.get(text, -1) for text in ours)]
    assert match.matched == int((rows >= 0).sum())


def fitted(folder: Path, features: list[dict[str, Any]], parts: dict[str, Encoder | NumericChain]) -> FittedTables:
    configs = [FEATURE.validate_python(each) for each in features]
    chains = {name: part for name, part in parts.items() if isinstance(part, NumericChain)}
    encoders = {name: part for name, part in parts.items() if not isinstance(part, NumericChain)}
    Transform(configs, Targets(labels=()), chains, encoders).save(folder)
    return FittedTables(folder, configs)


def one(folder: Path, part: Encoder | NumericChain, kind: str = "integer") -> FittedTables:
    if isinstance(part, NumericChain):
        return fitted(folder, [{"name": "x", "kind": "numeric", "transforms": [BUCKETS]}], {"x": part})
    encoder: dict[str, Any] = {
        VocabularyEncoder: {"name": "vocabulary"}, HashEncoder: {"name": "hash", "rows": 2},
        IdentityEncoder: {"name": "identity", "rows": 1},
    }[type(part)]  # fmt: skip
    return fitted(folder, [{"name": "x", "kind": "categorical", "type": kind, "encoder": encoder}], {"x": part})


BUCKETS = {"name": "bucketise", "bins": 4}


def chain(*edges: float, low: float | None = None) -> NumericChain:
    steps = (Fill(0.0), *((Clip(low, None),) if low is not None else ()), Bucketise(edges))
    return NumericChain(steps, False)


@pytest.mark.parametrize(
    ("there", "here", "problem"),
    [
        (HashEncoder(100, 0), HashEncoder(100, 0), None),
        (HashEncoder(1000, 0), HashEncoder(2000, 0), "its hash differs: rows 1,000 there, 2,000 here"),
        (HashEncoder(9, 1), HashEncoder(9, 2), "its hash differs: seed 1 there, 2 here"),
        (HashEncoder(9, 0), IdentityEncoder(9), "its encoder is hash there, identity here"),
        (IdentityEncoder(9), numbers([1]), "its encoder is identity there, vocabulary here"),
        (numbers([1]), chain(1.0), "its encoder is vocabulary there, bucketise here"),
        (chain(1.0, 2.0), chain(1.0, 2.0), None),
        (
            chain(1.0, 2.5),
            chain(1.0, 2.0),
            "its buckets differ: fill, 2 boundaries (1, 2.5) there, fill, 2 boundaries (1, 2) here",
        ),
        (
            chain(1.0),
            chain(*map(float, range(9)), low=0.5),
            "its buckets differ: fill, 1 boundaries (1) there, fill, clip, 9 boundaries (0, 1, 2, …, 8) here",
        ),
        (IdentityEncoder(5), IdentityEncoder(9), None),
    ],
)
def test_differences_between_encoders_are_described(
    tmp_path: Path, there: Encoder | NumericChain, here: Encoder | NumericChain, problem: str | None
) -> None:
    assert difference("x", one(tmp_path / "there", there), one(tmp_path / "here", here)) == problem


def test_integers_and_texts_are_different_ids(tmp_path: Path) -> None:
    there = one(tmp_path / "there", VocabularyEncoder(pa.array(["1"]), 1), "text")
    found = difference("x", there, one(tmp_path / "here", numbers([1])))
    assert found == "its ids are of type text there, integer here"
    hashed = [one(tmp_path / kind, HashEncoder(9, 0), kind) for kind in ("text", "integer")]
    assert difference("x", *hashed) == found


@pytest.mark.parametrize(
    ("there", "here", "matched"),
    [(HashEncoder(7, 3), HashEncoder(7, 3), 7), (IdentityEncoder(5), IdentityEncoder(9), 5), (IdentityEncoder(9),
    IdentityEncoder(5), 5),
     (chain(1.0, 2.0), chain(1.0, 2.0), 4)],
)  # fmt: skip
def test_equal_hashes_identities_and_buckets_match_by_row_number(
    tmp_path: Path, there: Any, here: Any, matched: int
) -> None:
    match = match_rows("x", one(tmp_path / "there", there), one(tmp_path / "here", here))
    assert (match.matched, match.rows_R) == (matched, None)
    assert match.of(np.array([0, matched - 1])).tolist() == [0, matched - 1]
    assert match.of(np.array([matched])).tolist() == [-1]


def test_vocabularies_are_loaded_from_their_folders(tmp_path: Path) -> None:
    there, here = one(tmp_path / "there", numbers([3, 4], 2)), one(tmp_path / "here", numbers([4, 3], 2))
    assert match_rows("x", there, here).of(np.arange(5)).tolist() == [0, 1, 2, 4, 3]
    assert match_rows("x", there, there).rows_R is None


def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    there = one(tmp_path / "there", numbers([3]))
    (tmp_path / "there/table.x.json").unlink()
    with pytest.raises(DataError, match=r"there/table\.x\.json: is missing"):
        match_rows("x", there, there)
    (tmp_path / "there/transform.json").unlink()
    with pytest.raises(DataError, match=r"there/transform\.json: not found"):
        FittedTables(tmp_path / "there", [FEATURE.validate_python({"name": "x", "kind": "categorical"})])
