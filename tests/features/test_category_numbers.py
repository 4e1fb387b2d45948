"""Ids as numbers: the maps against hand-computed values and scikit-learn's encoders, saved exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

from ziggurat.core.config import Config, parse_config
from ziggurat.core.digests import FileChecksum
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.features.encoders.category_files import category_files, load_category, save_category
from ziggurat.features.encoders.category_numbers import (
    CategoryEncoding,
    CategoryMap,
    OrdinalEncoding,
    TargetEncoding,
    folds_of,
)
from ziggurat.features.encoders.encoder import ValueCounts
from ziggurat.features.encoders.target_means import TargetCounts
from ziggurat.features.encoders.vocabulary import VocabularyConfig

DRAWN = np.random.default_rng(2)
CITIES = np.array([f"c{each}" for each in DRAWN.zipf(1.5, 2_000) % 23])
CLICKS = DRAWN.binomial(1, 0.1 + 0.8 * (DRAWN.random(23)[[int(city[1:]) for city in CITIES]]))
AMOUNTS = 1e6 + DRAWN.normal(size=2_000) * 3 + CLICKS


class _Holder(Config):
    encoding: CategoryEncoding


def encoding(**values: Any) -> Any:
    return parse_config(_Holder, {"encoding": values}).encoding


def fitted(settings: Any, values: np.ndarray[Any, Any], labels: Any = None, weights: Any = None) -> CategoryMap:
    """Returns the map as preparation fits it on these rows, all of which are training rows."""
    distinct, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    known = pa.array(distinct.tolist())
    config = settings.ids
    encoder = config.fit(ValueCounts(known, counts) if isinstance(config, VocabularyConfig) else None)
    target = None
    if isinstance(settings, TargetEncoding):
        target = TargetCounts.empty(settings.folds, encoder.rows)
        folds = folds_of(np.arange(len(values)), settings.folds)
        weights = np.ones(len(values)) if weights is None else weights
        rows = encoder.transform(known)[codes]
        for part in (slice(0, 700), slice(700, 701), slice(701, None)):
            target.add(folds[part], rows[part], labels[part].astype(np.float64), weights[part])
    return CategoryMap.fit(settings, encoder, 0, target)


def encoded(found: CategoryMap, values: Any, folds: Any = None) -> np.ndarray[Any, Any]:
    array = pa.array(list(values))
    rows = found.rows_of(array.dictionary_encode().dictionary)
    codes = array.dictionary_encode().indices.fill_null(len(rows) - 1).to_numpy(zero_copy_only=False)
    return np.stack([found.apply(index, rows[codes], folds) for index in range(found.numbers_RN.shape[1])], axis=1)


@pytest.mark.parametrize("labels", [CLICKS, AMOUNTS], ids=["clicks", "amounts"])
@pytest.mark.parametrize("smooth", ["auto", 0.0, 20.0])
def test_a_target_encoding_equals_that_of_scikit_learn(labels: Any, smooth: Any) -> None:
    """On all rows; and for each fold, fitted by scikit-learn on the rows outside it."""
    settings = encoding(name="target", smooth=smooth, folds=4)
    found = fitted(settings, CITIES, labels)
    kind = "continuous" if labels is AMOUNTS else "binary"
    reference = TargetEncoder(smooth=smooth, target_type=kind).fit(CITIES[:, None], labels)
    fresh = [*np.unique(CITIES), "elsewhere"]
    expected = reference.transform(np.array(fresh)[:, None])
    np.testing.assert_allclose(encoded(found, fresh), expected, rtol=1e-9, atol=1e-12)
    folds = folds_of(np.arange(len(CITIES)), 4)
    of_others = encoded(found, CITIES, folds)
    for fold in range(4):
        inside = folds == fold
        reference.fit(CITIES[~inside][:, None], labels[~inside])
        expected = reference.transform(CITIES[inside][:, None])
        np.testing.assert_allclose(of_others[inside], expected, rtol=1e-9, atol=1e-12)


def test_rows_count_by_their_weight() -> None:
    weights = DRAWN.integers(0, 4, len(CITIES)).astype(np.float64)
    settings = encoding(name="target", smooth=5.0)
    whole = encoded(fitted(settings, CITIES, CLICKS, weights), np.unique(CITIES))[:, 0]
    mean = np.average(CLICKS, weights=weights)
    for city, found in zip(np.unique(CITIES), whole, strict=True):
        here = city == CITIES
        total = weights[here].sum()
        expected = ((weights * CLICKS)[here].sum() + 5.0 * mean) / (total + 5.0) if total else mean
        assert found == pytest.approx(expected, rel=1e-12)


def test_folds_do_not_depend_on_how_rows_are_divided() -> None:
    settings, labels = encoding(name="target"), AMOUNTS * np.pi
    found = fitted(settings, CITIES, labels)
    distinct, codes, counts = np.unique(CITIES, return_inverse=True, return_counts=True)
    rows = settings.ids.fit(ValueCounts(pa.array(distinct.tolist()), counts)).transform(pa.array(distinct.tolist()))
    target = TargetCounts.empty(5, len(distinct) + 2)
    target.add(folds_of(np.arange(2_000), 5), rows[codes], labels, np.ones(2_000))
    assert target.means(None).tobytes() == found.numbers_RN.tobytes()
    shares = np.bincount(folds_of(np.arange(100_000), 5)) / 100_000
    np.testing.assert_allclose(shares, 0.2, atol=0.01)


def test_one_hot_equals_that_of_scikit_learn_with_rare_ids_together() -> None:
    found = encoded(fitted(encoding(name="one_hot", categories=30, min_count=40), CITIES), [*CITIES, "elsewhere", None])
    assert found.shape == (2_002, 32)
    assert (found.sum(axis=1) == 1).all()
    assert found[-1, 0] == 1, "missing"
    assert found[-2, 1] == 1, "unknown"
    reference = OneHotEncoder(min_frequency=40, sparse_output=False, handle_unknown="infrequent_if_exist")
    expected = reference.fit_transform(CITIES[:, None])
    known = 2 + np.argsort(-expected[:, :-1].sum(axis=0), kind="stable")
    ours = found[:-2]
    np.testing.assert_array_equal(ours[:, 1], expected[:, -1])
    np.testing.assert_array_equal(ours[:, 2 : 2 + len(known)], expected[:, known - 2])
    assert not ours[:, 2 + len(known) :].any()
    few = encoded(fitted(encoding(name="one_hot", categories=2), CITIES), CITIES)
    assert few.shape == (2_000, 4)
    assert few[:, 1].sum() == sum(np.sort(np.unique(CITIES, return_counts=True)[1])[:-2])


def test_ordinals_equal_those_of_scikit_learn() -> None:
    reference = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    expected = reference.fit_transform(CITIES[:, None])
    found = fitted(OrdinalEncoding(), CITIES)
    np.testing.assert_array_equal(encoded(found, CITIES), expected)
    assert encoded(found, ["elsewhere", None]).tolist() == [[-1.0], [-2.0]]
    numbers = fitted(OrdinalEncoding(), np.array([10, 9, 9, -3, 200]))
    assert encoded(numbers, [9, 10, -3, 200]).tolist() == [[1.0], [2.0], [0.0], [3.0]], "by size, not by text"


def test_a_hash_is_that_of_the_hash_encoder() -> None:
    settings = encoding(name="hash", buckets=8, seed=3)
    found = encoded(fitted(settings, CITIES), [*CITIES, None])
    assert found.shape == (2_001, 9)
    rows = settings.ids.fit(None).transform(pa.array(CITIES.tolist()))
    np.testing.assert_array_equal(found.argmax(axis=1), [*rows, 0])


SETTINGS: list[dict[str, Any]] = [
    {"name": "target"},
    {"name": "one_hot", "categories": 5},
    {"name": "hash", "buckets": 4},
    {"name": "ordinal"},
]


@pytest.mark.parametrize("values", SETTINGS, ids=lambda each: each["name"])
def test_maps_are_saved_exactly(values: dict[str, Any], tmp_path: Path) -> None:
    settings = encoding(**values)
    found = fitted(settings, CITIES, CLICKS)
    figures = json.loads(json.dumps(save_category(tmp_path, "city", found)))
    files = category_files(tmp_path, ["city"])
    restored = load_category(tmp_path, "city", settings, figures, files)
    fresh, folds = [*CITIES, "elsewhere", None], np.append(folds_of(np.arange(2_000), 5), [-1, -1])
    for each in (None, folds):
        assert encoded(restored, fresh, each).tobytes() == encoded(found, fresh, each).tobytes()
    other = encoding(**(SETTINGS[1] if values["name"] != "one_hot" else SETTINGS[0]))
    with pytest.raises(DataError, match=r"not those of its encoder|not of the kind"):
        load_category(tmp_path, "city", other, figures, files)
    with pytest.raises(DataError, match="not those of its encoder"):
        load_category(tmp_path, "city", settings, {**figures, "missing_row": 10_000}, files)
    path = tmp_path / "encoded.city.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"encoded\.city\.safetensors"):
        load_category(tmp_path, "city", settings, figures, files)
    assert isinstance(files["encoded.city.safetensors"], FileChecksum)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"name": "target", "smooth": -1}, "smooth"),
        ({"name": "target", "folds": 1}, "greater than or equal to 2"),
        ({"name": "one_hot"}, "categories"),
        ({"name": "mean"}, "allowed: target, one_hot, hash, ordinal"),
    ],
)
def test_encodings_that_cannot_be(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        encoding(**values)
