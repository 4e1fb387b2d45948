"""The proxy: its gradients, what it learns, its cache, and preparations with encoders that ask for it."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file

from tests.features.feature_kit import Experiment, experiment, write_csv
from ziggurat.core.errors import ConfigError
from ziggurat.core.files import FolderInUse, locked_folder
from ziggurat.core.progress import Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.split import TEST, TRAIN, VALIDATION
from ziggurat.features.encoders.compressed.mapped import MappedEncoder
from ziggurat.features.matching import FittedTables, difference, match_rows
from ziggurat.features.preparation import fitted as fitted_module
from ziggurat.features.preparation.prepare import prepare
from ziggurat.features.preparation.proxy import cache as cache_module
from ziggurat.features.preparation.proxy import composed, training
from ziggurat.features.preparation.proxy import rows as rows_module
from ziggurat.features.preparation.proxy.cache import cache_folder, lock_of, prune
from ziggurat.features.preparation.proxy.factorisation import NO_ROW, Factorisation, Rows, logit_coordinates
from ziggurat.features.saved_transform import SavedTransform

KINDS, USERS, ITEMS = 3, 60, 90
LEARNED = {"name": "learned_hash", "rows": 2 + KINDS, "proxy_dim": 4}
CLUSTERED = {
    "name": "clustered_codes", "compose": "helper", "rows": 2 + 2 * 12, "proxy_dim": 4, "clusterings": 6
}  # fmt: skip
"""Codes that are found while the proxy trains."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Returns the folder of a log in which users and items are of three kinds, which decide the label."""
    random = np.random.default_rng(0)
    users, items = random.integers(0, USERS, 4000), random.integers(0, ITEMS, 4000)
    rate = np.where(users % KINDS == items % KINDS, 0.95, 0.05)
    clicks = (random.random(4000) < rate).astype(int)
    columns = {"user": users.tolist(), "item": [f"i{each}" for each in items], "price": random.random(4000).tolist()}
    write_csv(tmp_path / "log.csv", {**columns, "click": clicks.tolist()})
    return tmp_path


def _experiment(
    log: Path, encoder: dict[str, Any] | None = None, user_type: str = "integer", **data: Any
) -> Experiment:
    features = [
        {"name": "user", "kind": "categorical", "type": user_type, "encoder": encoder or LEARNED},
        {"name": "item", "kind": "categorical", "encoder": LEARNED},
        {"name": "price", "kind": "numeric"},
    ]
    split = {"name": "random", "validation": 0.1, "test": 0.1}
    return experiment(features, **{"folder": str(log), "split": split, **data})


def _prepared(log: Path, name: str, configs: Experiment | None = None) -> Path:
    configs = configs or _experiment(log)
    return prepare(configs.data, configs.features, log / name)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "encoders").iterdir())}


def test_the_step_follows_the_gradient() -> None:
    random = np.random.default_rng(0)
    rows = Rows(
        np.array([0, 1, 3, 0, 2, 2, 3, 4, 0]),
        np.array([1, 1, 1, 1, 0.5, 0.5, 1, 1, 1], np.float32),
        np.array([0, 3, 8]),
        np.array([1, 0, 1], np.float32),
        np.array([1, 2, 1], np.float32),
    )
    shared = np.array([[0, NO_ROW], [1, 2], [1, 3], [4, NO_ROW], [3, 2]])
    for logistic, rows_VC in itertools.product((True, False), (None, shared)):
        weights, squares = random.standard_normal((5, 4)).astype(np.float32), np.zeros((5, 4), np.float32)
        model = Factorisation(weights, squares, logistic, rows_VC)
        before = model.weights_RE.copy()
        numeric = np.zeros((5, 4))
        for place in np.ndindex(5, 4):
            for sign in (1, -1):
                model.weights_RE = before.copy()
                model.weights_RE[place] += sign * 1e-2
                numeric[place] += sign * float((model.losses(rows) * rows.importance_B).sum()) / 2e-2
        model.weights_RE = before.copy()
        model.step(rows, rate=0.0, decay=0.0)
        np.testing.assert_allclose(np.sqrt(model.squares_RE), np.abs(numeric), rtol=0.02, atol=0.01)
        model.squares_RE[:] = 1
        model.step(rows, rate=1e-3, decay=0.0)
        assert (np.sign(before - model.weights_RE) == np.sign(numeric))[np.abs(numeric) > 0.05].all()


def test_a_preparation_waits_for_the_proxy_that_another_trains(log: Path) -> None:
    """The other one holds the folder until this one has said that it waits, and leaves it as it was."""
    _prepared(log, "first")
    (folder,) = cache_folder().iterdir()
    shutil.rmtree(folder)
    held, go = threading.Event(), threading.Event()

    def other() -> None:
        with locked_folder(lock_of(folder), "training"):
            held.set()
            go.wait()

    class Waiting(Silent):
        def note(self, text: str) -> None:
            if text.startswith("waiting: "):
                go.set()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    configs = _experiment(log)
    second = prepare(configs.data, configs.features, log / "second", Waiting())
    thread.join()
    assert go.is_set()
    assert _files(second) == _files(log / "first")


def test_proxies_that_are_held_are_not_deleted(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other preparations delete what they can while this one fits its tables of two proxies, one of them old."""
    monkeypatch.setattr(cache_module, "MOST_BYTES", 0)
    fit_table, held = fitted_module.fit_table, set[Path]()

    def pruned(*arguments: Any, **options: Any) -> Any:
        prune()
        held.update(cache_folder().iterdir())
        return fit_table(*arguments, **options)

    monkeypatch.setattr(fitted_module, "fit_table", pruned)
    _prepared(log, "data", _experiment(log, {**LEARNED, "proxy_dim": 5}))
    assert len(held) == 2
    with locked_folder(lock_of(first := min(held)), "fitting", shared=True):
        (first / "pass-00001.safetensors").symlink_to("gone")  # as if it were deleted just now
        prune()
        assert list(cache_folder().iterdir()) == [first]
    lock = (lock_of(first) / "lock").stat().st_ino
    prune()
    assert not list(cache_folder().iterdir())
    assert (lock_of(first) / "lock").stat().st_ino == lock  # others may wait for it
    with (
        locked_folder(lock_of(first), "training"),
        pytest.raises(FolderInUse, match="another process is fitting"),
        locked_folder(lock_of(first), "fitting", shared=True),
    ):
        pass


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_distances_are_changes_of_logits(share: float) -> None:
    """Also of a value in a list, which counts by its share of it."""
    random = np.random.default_rng(1)
    model = Factorisation(random.standard_normal((8, 4)).astype(np.float32), np.zeros((8, 4), np.float32), True)
    others = random.integers(3, 8, 500)
    swapped = [
        Rows(
            np.stack([np.zeros(500, np.int64), np.full(500, value), others], axis=1).ravel(),
            np.tile(np.array([1, share, 1], np.float32), 500),
            3 * np.arange(500),
            np.zeros(500, np.float32),
            np.ones(500, np.float32),
        )
        for value in (1, 2)
    ]
    change = ((model.sums(swapped[0])[2] - model.sums(swapped[1])[2]) ** 2).mean()
    (vectors_ND,) = logit_coordinates(model, [swapped[0]], [range(1, 3)])
    assert ((vectors_ND[0] - vectors_ND[1]) ** 2).sum() == pytest.approx(change, rel=1e-4)
    divided = [swapped[0].slice(start, start + 200) for start in range(0, 500, 200)]
    np.testing.assert_allclose(logit_coordinates(model, divided, [range(1, 3)])[0], vectors_ND, rtol=1e-5)


def test_vectors_are_those_of_the_best_pass(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass is the best one of four."""
    losses = iter([2.0, 1.0, 3.0, 4.0, 2.0, 1.0])
    monkeypatch.setattr(training, "_loss", lambda *arguments: next(losses))
    _prepared(log, "four")
    two = {**LEARNED, "proxy_passes": 2}
    configs = _experiment(log, two)
    both = (configs.features[0], configs.features[1].model_copy(update={"encoder": configs.features[0].encoder}))
    _prepared(log, "two", configs.model_copy(update={"features": (*both, configs.features[2])}))
    assert next(losses, None) is None
    first, second = (load_file(each) for each in cache_folder().glob("*/vectors.safetensors"))
    for table in ("user", "item"):
        np.testing.assert_array_equal(first[table], second[table])


def test_values_of_one_kind_share_rows(log: Path) -> None:
    folder = _prepared(log, "data")
    saved = SavedTransform.open(folder / "encoders")
    for table, count in (("user", USERS), ("item", ITEMS)):
        encoder = saved.encoder(table)
        assert isinstance(encoder, MappedEncoder)
        values = np.arange(count)
        ids = encoder.transform(pa.array(values) if table == "user" else pa.array([f"i{each}" for each in values]))
        assert len(set(zip(ids.tolist(), (values % KINDS).tolist(), strict=True))) == KINDS
    assert saved.map_bytes().keys() == {"user", "item"}
    statistics = Dataset(folder).statistics()
    assert statistics.tables["user"].accesses.sum() == statistics.rows["train"]


@pytest.mark.parametrize("encoder", [LEARNED, CLUSTERED], ids=["a row each", "shared rows"])
def test_all_training_rows_tell_what_a_table_is_worth(
    log: Path, monkeypatch: pytest.MonkeyPatch, encoder: dict[str, Any]
) -> None:
    """The user is missing in the rows of the first pools, and decides the label of the others."""
    random = np.random.default_rng(1)
    late = random.integers(0, USERS, 3000)
    items = [f"i{each}" for each in random.integers(0, ITEMS, 4000)]
    clicks = [*random.integers(0, 2, 1000).tolist(), *(late % KINDS == 0).astype(int).tolist()]
    columns = {"user": [None] * 1000 + late.tolist(), "item": items, "price": [0.5] * 4000, "click": clicks}
    write_csv(log / "log.csv", columns)
    monkeypatch.setattr(rows_module, "POOL_ROWS", 500)
    told: list[int] = []

    def coordinates(model: Factorisation, pools: Iterable[Rows], tables: Sequence[range]) -> Any:
        read = list(pools)
        told.append(sum(map(len, read)))
        return logit_coordinates(model, read, tables)

    for module in (training, composed):
        monkeypatch.setattr(module, "logit_coordinates", coordinates)
    saved = SavedTransform.open(_prepared(log, "data", _experiment(log, encoder)) / "encoders").encoder("user")
    assert set(told) == {Dataset(log / "data").statistics().rows["train"]}
    assert len(told) == (1 if encoder is LEARNED else 2 + CLUSTERED["clusterings"])
    proxies = [training._finished(folder) for folder in cache_folder().iterdir()]
    importance = next(each.importance for each in proxies if each is not None and "user" in each.importance)
    assert importance["user"] > 10 * importance["item"] > 0
    clusters = saved.transform(pa.array(np.arange(USERS))).reshape(USERS, -1)[:, 0]
    ones = np.bincount(clusters[::KINDS], minlength=saved.rows)
    others = np.bincount(np.delete(clusters, np.s_[::KINDS]), minlength=saved.rows)
    assert np.minimum(ones, others).sum() <= 0.05 * USERS


@pytest.mark.parametrize(("weight", "trials"), [(True, True), (False, True), (True, False)])
def test_rows_weigh_by_their_weights_and_trials(
    log: Path, monkeypatch: pytest.MonkeyPatch, weight: bool, trials: bool
) -> None:
    random = np.random.default_rng(3)
    weights, shown = random.integers(0, 9, 800) * weight + (not weight), random.choice([0, 1, 1000], 800)
    users = random.integers(0, USERS, 800)
    clicks = random.binomial(shown, 0.5) if trials else random.integers(0, 2, 800)
    columns = {"user": users, "item": users, "price": random.random(800), "click": clicks, "shown": shown, "w": weights}
    write_csv(log / "log.csv", {name: column.tolist() for name, column in columns.items()})
    soft = {"name": "rate", "kind": "soft", "positives": "click", "trials": "shown"}
    read: list[Rows] = []
    train = training._train

    def training_of(numbered: rows_module.ProxyRows, *others: Any) -> Any:
        read.extend(pool for split in (TRAIN, VALIDATION, TEST) for pool in numbered.pools(split))
        return train(numbered, *others)

    monkeypatch.setattr(training, "_train", training_of)
    settings: dict[str, Any] = {"weight": "w"} if weight else {}
    _prepared(log, "data", _experiment(log, labels=[soft if trials else {"name": "click"}], **settings))
    found = np.concatenate([pool.importance_B for pool in read])
    expected = weights * (shown if trials else 1)
    assert read[0].importance_B.mean() == pytest.approx(1)
    np.testing.assert_allclose(np.sort(found) * expected.sum() / found.sum(), np.sort(expected), rtol=1e-4)


def test_the_map_does_not_depend_on_how_rows_are_divided(
    log: Path, cache: Path, request: pytest.FixtureRequest
) -> None:
    whole = _files(_prepared(log, "whole"))
    cache.rename(log / "first")
    request.getfixturevalue("small_blocks")
    assert _files(_prepared(log, "divided")) == whole


def test_codes_that_are_found_while_training_tell_kinds_apart(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy has twelve rows of clusters and twelve by hash for sixty users."""

    def purity(name: str) -> float:
        encoder = SavedTransform.open(_prepared(log, name, _experiment(log, CLUSTERED)) / "encoders").encoder("user")
        users = np.arange(USERS)
        clusters = encoder.transform(pa.array(users))[:, 0]
        counts = np.zeros((encoder.rows, KINDS))
        np.add.at(counts, (clusters, users % KINDS), 1)
        return counts.max(axis=1).sum() / USERS

    clustered = purity("clustered")
    shutil.rmtree(cache_folder())
    monkeypatch.setattr(training, "cluster_all", lambda *arguments: None)
    assert clustered > 0.9 > 0.8 > purity("drawn")


@pytest.mark.parametrize("encoder", [LEARNED, CLUSTERED], ids=["a row each", "shared rows"])
def test_a_stopped_proxy_resumes_after_its_last_pass(
    log: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, encoder: dict[str, Any]
) -> None:
    whole = _files(_prepared(log, "whole", _experiment(log, encoder)))
    cache.rename(log / "first")
    taken: list[int] = []
    saving = training._save_pass

    def stop(*arguments: Any) -> None:
        saving(*arguments)
        taken.append(1)
        if len(taken) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_save_pass", stop)
    with pytest.raises(KeyboardInterrupt):
        _prepared(log, "stopped", _experiment(log, encoder))
    assert _files(_prepared(log, "stopped", _experiment(log, encoder))) == whole


def test_another_ratio_takes_the_proxy_from_the_cache(log: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _prepared(log, "data")
    monkeypatch.delattr(training, "_train")
    other = _prepared(log, "other", _experiment(log, {**LEARNED, "rows": 8, "private_rows": 2}))
    assert Dataset(other).schema.rows["user"] == 8
    (vectors,) = cache.glob("ziggurat/proxies/*/vectors.safetensors")
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"\0")
    with pytest.raises(NameError, match="_train"):  # what is damaged is not used
        _prepared(log, "again", _experiment(log, {**LEARNED, "rows": 9}))


def test_a_continued_map_keeps_rows(log: Path) -> None:
    first = _prepared(log, "first")
    configs = _experiment(log, {**LEARNED, "keep": str(first), "seed": 5})
    second = SavedTransform.open(_prepared(log, "second", configs) / "encoders").encoder("user")
    assert isinstance(second, MappedEncoder)
    assert second.drift["kept_values"] > 0.9
    wrong = _experiment(log, {**LEARNED, "keep": str(first), "rows": 9})
    with pytest.raises(ConfigError, match="rows are divided otherwise"):
        _prepared(log, "third", wrong)
    texts = _experiment(log, {**LEARNED, "keep": str(first)}, "text")
    with pytest.raises(ConfigError, match=r"table 'user': keep: its ids are integer in .*first/encoders, text here"):
        _prepared(log, "fourth", texts)


def test_labels_made_while_training_teach_no_proxy(log: Path) -> None:
    configs = _experiment(
        log,
        negatives={"name": "in_batch", "user": "user", "item": "item"},
        labels=[{"name": "click", "observed": True}],
    )
    with pytest.raises(ConfigError, match="in_batch negatives are made while training"):
        _prepared(log, "data", configs)


def test_rows_of_a_continued_map_are_matched(log: Path) -> None:
    first = _prepared(log, "first")
    continued = _experiment(log, {**LEARNED, "keep": str(first), "seed": 5})
    second = _prepared(log, "second", continued)
    there = FittedTables(first / "encoders", _experiment(log).features)
    here = FittedTables(second / "encoders", continued.features)
    assert difference("user", there, here) is None
    match = match_rows("user", there, here)
    assert match.rows_R is None
    assert match.matched == match.size == 2 + KINDS
    compact = [
        _experiment(log, {**LEARNED, "map": "compact", "code_bits": 2, "seed": seed, "rows": 2 + KINDS + seed})
        for seed in (0, 1)
    ]
    theirs, ours = (
        FittedTables(_prepared(log, f"compact{number}", each) / "encoders", each.features)
        for number, each in enumerate(compact)
    )
    found = difference("user", theirs, ours)
    assert found == "its clusters were not learned from those there: fit it with `keep`, or with map: plain"


@pytest.mark.parametrize("codes", [1, 2])
def test_several_rows_a_value_are_bags_and_are_counted(log: Path, codes: int) -> None:
    encoder = {"name": "double_hash", "rows": 9, "private_rows": 1} if codes == 2 else {"name": "hash", "rows": 9}
    dataset = Dataset(_prepared(log, "data", _experiment(log, encoder)))
    feature, statistics = dataset.statistics().features["user"], dataset.statistics()
    counts = statistics.tables["user"].accesses
    if codes == 1:
        assert dataset.schema.categorical == ("user", "item")
        assert (feature.mean_pooling, feature.max_pooling) == (1.0, 1)
        return
    assert (dataset.schema.categorical, dataset.schema.bags) == (("item",), ("user",))
    rows = statistics.rows["train"]
    assert counts.sum() == 2 * rows - counts[1]  # the private value has one row
    assert feature.mean_pooling == pytest.approx(counts.sum() / rows)
    assert feature.max_pooling == 2
    lengths = [len(each) for each in dataset.split("train").read(0).column("user").to_pylist()]
    assert sorted(set(lengths)) == [1, 2]
    assert lengths.count(1) == counts[1]


@pytest.mark.parametrize("form", ["plain", "compact"])
@pytest.mark.parametrize("more", [{}, {"name": "clustered_codes", "compose": "residual"}], ids=["one row", "two rows"])
def test_rows_of_rare_values_do_not_tell_their_labels(tmp_path: Path, more: dict[str, Any], form: str) -> None:
    """A value of one row has a vector that says that row's label: clusters of these would hold one label each."""
    draw = np.random.default_rng(0)
    users, clicks = draw.integers(0, 3000, 4000), (draw.random(4000) < 0.3).astype(int)
    items = [f"i{each}" for each in draw.integers(0, 5, 4000)]
    write_csv(
        tmp_path / "log.csv",
        {"user": users.tolist(), "item": items, "price": draw.random(4000).tolist(), "click": clicks.tolist()},
    )
    explained = dict[int, float]()
    for least in (1, 10):
        encoder = {**LEARNED, **more, "rows": 400, "map": form, "min_count": least}
        folder = _prepared(tmp_path, f"data{least}", _experiment(tmp_path, encoder))
        rows = (
            SavedTransform.open(folder / "encoders").encoder("user").transform(pa.array(users)).reshape(4000, -1)[:, 0]
        )
        rates = np.bincount(rows, clicks) / np.maximum(1, np.bincount(rows))
        explained[least] = float(np.var(rates[rows]) / np.var(clicks))
    assert explained[1] > 0.3  # this log would show it
    assert explained[10] < 0.05
