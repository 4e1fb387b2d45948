"""Generated logs: equal configs give equal bytes, labels follow the planted structure, no partial files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from tests.small_disk import small_disk
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.synthetic.chunk import CHUNK_ROWS, ChunkMaker
from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, LabelColumn, ManyColumn, NumericColumn
from ziggurat.data.synthetic.generate import generate, truth_file
from ziggurat.data.synthetic.sampling import Purpose, permute_ids, random_bits, ranks, zipf_ranks
from ziggurat.data.synthetic.shapes import SHAPES, criteo_shape, demo_shape
from ziggurat.data.synthetic.truth import Planted, Tally, sigmoid

GOLDEN = {
    ("demo", "csv"): "92e8bc534233b1bfe4e576e0c4ab889f0fe243229c537be5ad1fe90458ec8089",
    ("criteo", "csv"): "0c266b1d903e0e3eb0ba8d31ec940473c24d1a7e7d2d148020e52ff118f7b5fa",
    ("demo", "jsonl"): "21e31986ab4616ffe6b17528bab20e9a0f91fc763ea6d001340a7bcc5367d232",
}


@pytest.mark.parametrize(("shape", "kind"), GOLDEN)
def test_golden_bytes(shape: str, kind: str, tmp_path: Path) -> None:
    out = tmp_path / f"log.{kind}"
    generate(SHAPES[shape](500, 7).model_copy(update={"format": kind}), out)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == GOLDEN[shape, kind]


def test_threads_do_not_change_the_bytes_and_seeds_do(tmp_path: Path) -> None:
    rows = 2 * CHUNK_ROWS + 77
    config = GeneratorConfig(
        rows=rows,
        labels=(LabelColumn(name="y"),),
        categorical=(CategoricalColumn(name="a", cardinality=50),),
        many=(ManyColumn(name="m", cardinality=9),),
    )
    truths = [generate(config, tmp_path / f"{threads}.csv", threads=threads) for threads in (1, 3)]
    one, three = ((tmp_path / f"{threads}.csv").read_bytes() for threads in (1, 3))
    assert one == three
    assert truths[0] == truths[1] == json.loads((tmp_path / "1.truth.json").read_text())
    assert one.count(b"\n") == rows + 1
    generate(config.model_copy(update={"seed": 1}), tmp_path / "other.csv")
    assert (tmp_path / "other.csv").read_bytes() != one


def test_a_longer_log_begins_with_the_shorter() -> None:
    short, long = (ChunkMaker(demo_shape(rows, 3)).make(0).table for rows in (100, 5_000))
    assert long.slice(0, 100).equals(short)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0, 1.4])
def test_the_zipf_exponent_is_recovered(exponent: float) -> None:
    config = GeneratorConfig(
        rows=4 * CHUNK_ROWS,
        labels=(LabelColumn(name="y"),),
        categorical=(CategoricalColumn(name="a", cardinality=1_000, exponent=exponent),),
    )
    maker = ChunkMaker(config)
    ids = np.concatenate([maker.make(chunk).table["a"].to_numpy() for chunk in range(4)])
    counts = np.bincount(ids, minlength=1_000)[permute_ids(np.arange(1_000), 1_000)]
    chances = np.arange(1, 1_001) ** -exponent
    expected = len(ids) * chances / chances.sum()
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    slope = np.polyfit(np.log(np.arange(1, 101)), np.log(counts[:100]), 1, w=np.sqrt(expected[:100]))[0]
    assert slope == pytest.approx(-exponent, abs=0.04)


def test_zipf_beyond_the_exact_ranks() -> None:
    """Checks shares of ranks below, at and above 65,536, where an integral replaces the sum."""
    cardinality, exponent = 1_000_000, 0.9
    draws = ranks(zipf_ranks(cardinality, exponent), random_bits(400_000, 0, Purpose.VALUES, 0, 0), cardinality)
    chances = np.arange(1, cardinality + 1) ** -exponent
    for low, high in ((0, 10), (10, 60_000), (60_000, 70_000), (70_000, 500_000), (500_000, cardinality)):
        share = ((draws >= low) & (draws < high)).mean()
        assert share == pytest.approx(chances[low:high].sum() / chances.sum(), rel=0.02), (low, high)


def test_criteo_columns_look_like_the_raw_logs(tmp_path: Path) -> None:
    out = tmp_path / "log.tsv"
    generate(criteo_shape(20_000, 1), out)
    names = [f"column_{k}" for k in range(1, 41)]
    frame = pl.read_csv(out, separator="\t", has_header=False, infer_schema=False, new_columns=names)
    assert frame.columns == names
    assert set(frame["column_1"]) == {"0", "1"}
    assert frame["column_1"].cast(pl.Int64).mean() == pytest.approx(0.256, abs=0.015)
    for k in range(2, 15):
        assert frame[f"column_{k}"].drop_nulls().cast(pl.Int64).min() == -1  # pyright: ignore
    for k in range(15, 41):
        assert frame[f"column_{k}"].drop_nulls().str.contains("^[0-9a-f]{8}$").all()
    assert frame["column_13"].null_count() / 20_000 == pytest.approx(0.77, abs=0.02)
    assert frame["column_34"].null_count() / 20_000 == pytest.approx(0.44, abs=0.02)
    assert frame["column_17"].n_unique() > 5_000
    assert frame["column_23"].n_unique() == 3


def test_numbers_are_log_normal_with_the_share_of_missing() -> None:
    config = GeneratorConfig(
        rows=CHUNK_ROWS,
        labels=(LabelColumn(name="y"),),
        numeric=(NumericColumn(name="x", median=20, spread=1.5, lowest=-3, missing=0.25),),
    )
    values = ChunkMaker(config).make(0).table["x"]
    assert values.null_count / CHUNK_ROWS == pytest.approx(0.25, abs=0.01)
    logs = np.log((values.drop_null().to_numpy() + 3) / 20)
    assert logs.mean() == pytest.approx(0, abs=0.03)
    assert logs.std() == pytest.approx(1.5, abs=0.03)


def test_bags_and_sequences(tmp_path: Path) -> None:
    config = GeneratorConfig(
        rows=30_000,
        labels=(LabelColumn(name="y"),),
        categorical=(CategoricalColumn(name="item", cardinality=30, style="text"),),
        many=(
            ManyColumn(name="seen", cardinality=30, style="text", ids_of="item", shortest=0, longest=3, delimiter=" "),
            ManyColumn(name="tags", cardinality=70_000, style="text", shortest=2, longest=2),
        ),
        format="parquet",
    )
    generate(config, tmp_path / "log.parquet")
    frame = pl.read_parquet(tmp_path / "log.parquet")
    shares = frame["seen"].list.len().value_counts(normalize=True).sort("seen")["proportion"]
    np.testing.assert_allclose(shares, [0.25] * 4, atol=0.012)
    assert set(frame["seen"].explode().drop_nulls()) == set(frame["item"]) == {f"item_{k}" for k in range(30)}
    assert frame["tags"].list.len().unique().to_list() == [2]
    generate(config.model_copy(update={"format": "csv"}), tmp_path / "log.csv")
    text = pl.read_csv(tmp_path / "log.csv", infer_schema=False)
    assert text["seen"].fill_null("").to_list() == [" ".join(ids) for ids in frame["seen"]]
    assert text["tags"].to_list() == ["|".join(ids) for ids in frame["tags"]]


def test_times_never_decrease() -> None:
    maker = ChunkMaker(demo_shape(2 * CHUNK_ROWS, 0))
    times = np.concatenate([maker.make(chunk).table["timestamp"].to_numpy() for chunk in (0, 1)])
    assert (np.diff(times) >= 0).all()
    assert times[-1] - times[0] == pytest.approx(CHUNK_ROWS, rel=0.001)


def test_bayes_figures_agree_with_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 1.5, 40_000)
    labels = (generator.random(40_000) < sigmoid(logits)).astype(np.int64)
    total = Tally()
    for part in np.array_split(np.arange(40_000), 3):
        total.add(Tally.of(logits[part], labels[part]))
    figures = total.figures()
    assert figures["realised_log_loss"] == pytest.approx(log_loss(labels, sigmoid(logits)), abs=1e-9)
    # The Bayes figures are expectations over labels: weight each row as a positive by p and a negative by 1 - p.
    both = np.concatenate([np.ones(40_000), np.zeros(40_000)])
    weights = np.concatenate([sigmoid(logits), 1 - sigmoid(logits)])
    twice = np.concatenate([logits, logits])
    assert figures["bayes_auc"] == pytest.approx(roc_auc_score(both, twice, sample_weight=weights), abs=1e-6)
    expected = log_loss(both, sigmoid(twice), sample_weight=weights)
    assert figures["bayes_log_loss"] == pytest.approx(expected, abs=1e-9)


def test_labels_follow_the_planted_structure(tmp_path: Path) -> None:
    """A linear model on one-hot ids misses the Bayes AUC; with the planted pair as a feature, it comes close."""
    config = GeneratorConfig(
        rows=60_000,
        labels=(LabelColumn(name="y", rate=0.3, first_order=0.5, second_order=2.0),),
        categorical=tuple(CategoricalColumn(name=n, cardinality=8, exponent=0.2) for n in "ab"),
        pairs=(("a", "b"),),
        format="parquet",
    )
    truth = generate(config, tmp_path / "log.parquet")["labels"]["y"]
    frame = pl.read_parquet(tmp_path / "log.parquet")
    assert truth["rate"] == pytest.approx(0.3, abs=0.01) == pytest.approx(frame["y"].mean(), abs=0.01)
    singles = frame.select("a", "b").cast(pl.String).to_dummies().to_numpy()
    crossed = frame.select(pl.concat_str("a", "b", separator="x")).to_dummies().to_numpy()
    labels = frame["y"].to_numpy()
    half = len(labels) // 2

    def held_out_auc(inputs: np.ndarray) -> float:
        model = LogisticRegression(max_iter=200).fit(inputs[:half], labels[:half])
        return float(roc_auc_score(labels[half:], model.decision_function(inputs[half:])))

    assert held_out_auc(singles) < truth["bayes_auc"] - 0.03
    assert held_out_auc(crossed) == pytest.approx(truth["bayes_auc"], abs=0.008)


def test_interactions_of_many_columns_by_hand() -> None:
    """Four angles: Σ over two dims of Π √2 cos or sin, and a product of two cosines of differences; 0 where missing."""
    names = ("a", "b", "c", "d")
    config = GeneratorConfig(
        rows=2_000,
        labels=(LabelColumn(name="y", first_order=0, high_order=1.5),),
        categorical=tuple(CategoricalColumn(name=name, cardinality=5, exponent=0.0) for name in names),
        products=(names,),
        likenesses=(names,),
    )
    planted = Planted(config)
    random = np.random.default_rng(0)
    ids = {name: random.integers(-1, 5, 2_000) for name in names}
    logits = planted.logits({c.name: planted.of_ids(c, ids[c.name]) for c in config.categorical})[0]
    latents = {name: planted.latents[name].astype(np.float64)[ids[name] + 1] for name in names}
    angles = {name: np.arctan2(latent[:, 1], latent[:, 0]) for name, latent in latents.items()}
    product = sum(np.prod([np.sqrt(2) * part(angle) for angle in angles.values()], axis=0) for part in (np.cos, np.sin))
    likeness = 2 * np.cos(angles["a"] - angles["b"]) * np.cos(angles["c"] - angles["d"])
    of_product, of_likeness = planted.weights_TW[0][-2:].astype(np.float64)
    expected = 1.5 * (of_product * product / np.sqrt(2) + of_likeness * likeness) / np.sqrt(2)
    missing = np.any([ids[name] < 0 for name in names], axis=0)
    np.testing.assert_allclose(logits, np.where(missing, 0, expected), rtol=2e-5, atol=1e-5)
    assert list(planted.describe()[0]["weights"]) == [*names, "a x b x c x d", "(a, b) x (c, d)"]


def test_a_numbers_effect_follows_from_the_visible_value() -> None:
    """The effect depends on the rounded, visible value only: equal visible values have equal effects."""
    column = NumericColumn(name="x", median=3, spread=1.0, integer=True, missing=0.2)
    config = GeneratorConfig(rows=10, labels=(LabelColumn(name="y"),), numeric=(column,))
    planted = Planted(config)
    values = np.array([0.0, 1.0, 1.0, np.nan, 50.0, np.nan])
    effect = planted.of_numbers(column, values).effect_B
    assert effect[1] == effect[2]
    assert effect[3] == effect[5]
    assert len(set(effect.tolist())) == 4


def test_ids_of_large_cardinality() -> None:
    cardinality = 3_000_000_019
    config = GeneratorConfig(
        rows=20_000,
        labels=(LabelColumn(name="y"),),
        categorical=(CategoricalColumn(name="a", cardinality=cardinality, exponent=0.0),),
    )
    ids = ChunkMaker(config).make(0).table["a"].to_numpy()
    assert ids.min() >= 0
    assert ids.max() < cardinality
    assert np.unique(ids).size > 19_990
    assert ids.mean() / cardinality == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows"),
        ({"pairs": [("a", "nope")]}, "'nope', which is no feature"),
        ({"products": [("a", "a", "a")]}, "give four columns or more"),
        ({"likenesses": [("a", "a", "a", "a", "a")]}, "give four columns, six or more"),
        ({"products": [("a", "a", "a", "b")]}, "'b', which is no feature"),
        ({"many": [{"name": "a", "cardinality": 3}]}, "two columns have the name 'a'"),
        ({"many": [{"name": "m", "cardinality": 3, "ids_of": "q"}]}, "ids_of names 'q'"),
        ({"many": [{"name": "m", "cardinality": 3, "shortest": 9}]}, "shortest 9 is above longest 8"),
        ({"categorical": [{"name": "a", "cardinality": 2**33, "style": "hex"}]}, "at most 2\\^32 ids"),
    ],
)
def test_impossible_configs_are_rejected(change: dict[str, object], message: str) -> None:
    values = {"rows": 5, "labels": [{"name": "y"}], "categorical": [{"name": "a", "cardinality": 3}], **change}
    with pytest.raises(ConfigError, match=message):
        parse_config(GeneratorConfig, values)


def test_a_users_own_file_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    out.write_text("precious")
    with pytest.raises(DataError, match="is not a generated log"):
        generate(demo_shape(10), out)
    assert out.read_text() == "precious"
    out.unlink()
    generate(demo_shape(10), out)
    generate(demo_shape(20), out)
    assert out.read_text().count("\n") == 21


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing_half_written(kill: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "log.csv"
    command = [sys.executable, "-m", "ziggurat", "generate", str(out), "--rows", "1000000000", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 60
        while not any(path.stat().st_size > 0 for path in tmp_path.iterdir()):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(run.pid, kill)
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 128 + kill
        assert f"stopped by {kill.name}" in errors
    assert list(tmp_path.iterdir()) == []


def test_the_truth_file_is_next_to_the_log() -> None:
    assert truth_file(Path("a/log.parquet")) == Path("a/log.truth.json")


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_a_full_disk_is_explained_and_nothing_is_left(kind: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        with pytest.raises(DataError, match="no space left on the device"):
            generate(demo_shape(200_000).model_copy(update={"format": kind}), disk / f"log.{kind}")
        assert list(disk.iterdir()) == []


def test_ids_of_a_kind_have_alike_effects() -> None:
    def effects(own: float) -> np.ndarray[Any, Any]:
        column = CategoricalColumn(name="item", cardinality=3000, kinds=7, own=own)
        config = GeneratorConfig(
            rows=1, labels=(LabelColumn(name="y"),), categorical=(column,), pairs=(("item", "item"),)
        )
        signal_B = Planted(config).of_ids(column, np.arange(3000))
        assert signal_B.latent_BL is not None
        return np.column_stack([signal_B.effect_B, signal_B.latent_BL])

    same, mixed, other = (effects(own) for own in (0.0, 0.2, 1.0))
    kinds, kind = np.unique(same, axis=0, return_inverse=True)
    assert len(kinds) == 7
    assert np.bincount(kind).min() > 300
    np.testing.assert_allclose(mixed, np.sqrt(0.8) * same + np.sqrt(0.2) * other, atol=1e-6)
