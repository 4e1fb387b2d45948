"""Defaults that `ziggurat init` chooses by the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ziggurat.cli.drafts.defaults import learnable, model_lines
from ziggurat.cli.drafts.recurrence import PairOfIds, pair_of_ids
from ziggurat.cli.init import draft_config
from ziggurat.data.inference.roles import infer
from ziggurat.data.readers.source_files import resolve_files
from ziggurat.training.experiment import parse_experiment


@pytest.mark.parametrize(("missing", "curves"), [(0.0, True), (0.1, True), (0.5, False)])
def test_curves_are_for_numbers_that_do_not_become_buckets(missing: float, *, curves: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=2_000).round(3)
    values[random.random(2_000) < missing] = np.nan
    frame = pl.DataFrame({"x": pl.Series(values).fill_nan(None), "click": random.integers(0, 2, 2_000)})
    frame.write_csv(tmp_path / "log.csv")
    text = draft_config(tmp_path / "log.csv")
    assert ("numeric_bins" in text) is curves
    assert ("bucketise" in text) is not curves


@pytest.mark.parametrize(
    ("rows", "features", "model", "dim"),
    [
        (20_000, 2, "{name: deepfm}", 16),
        (70_000, 2, "{name: wukong, rank: null}", 16),
        (70_000, 40, "{name: wukong}", 16),
        (260_000, 2, "{name: wukong, rank: null}", 32),
    ],
)
def test_model_and_width_follow_rows_and_features(
    rows: int, features: int, model: str, dim: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    columns = {f"id_{k}": random.integers(0, 9, rows) for k in range(features)}
    pl.DataFrame(columns | {"click": random.integers(0, 2, rows)}).write_parquet(tmp_path / "log.parquet")
    text = draft_config(tmp_path / "log.parquet")
    assert f"model: {model} " in text
    assert f"\n  dim: {dim}\n" in text


@pytest.mark.parametrize(("rows", "every"), [(10**7, 976), (10**8, 5_000), (10**9, 24_414)])
def test_a_large_log_is_judged_within_its_first_epoch_at_less_than_the_cost_of_training(
    rows: int, every: int, tmp_path: Path
) -> None:
    pl.DataFrame({"item": [1, 2, 3, 4] * 50, "click": [0, 1, 1, 0] * 50}).write_csv(tmp_path / "log.csv")
    found = infer(resolve_files(["log.csv"], tmp_path, [".csv"]))
    large = replace(found, sample=replace(found.sample, total_rows=rows))
    text = "\n".join(model_lines(large, learnable(large)))
    assert f"\n  evaluate_every: {every}  #" in text
    evaluations = 0.8 * rows / 4096 / every
    assert evaluations > 1
    assert evaluations * 0.1 * rows <= 0.8 * rows * 1.01


@pytest.mark.parametrize(("numbers", "model"), [(100, "{name: dcn_v2}"), (101, "{name: dcn_v2, rank: 64}")])
def test_the_cross_layers_of_many_numbers_have_a_rank(numbers: int, model: str) -> None:
    random = np.random.default_rng(0)
    frame = pl.DataFrame({f"x{k}": random.normal(size=50) for k in range(numbers)} | {"click": [0, 1] * 25})
    assert f"model: {model} " in draft_config(frame)


def test_more_than_a_thousand_numbers_are_not_embedded_along_curves(tmp_path: Path) -> None:
    names = [f"x{k}" for k in range(1_001)]
    pl.DataFrame({name: [0.5, 1.5, 2.5, 3.5] * 10 for name in names} | {"click": [0, 1] * 20}).write_csv(
        tmp_path / "log.csv"
    )
    found = infer(resolve_files(["log.csv"], tmp_path, [".csv"]))
    assert "  # numeric_bins: 64  # left out" in "\n".join(model_lines(found, learnable(found)))
    fewer = replace(found, features=found.features[:1_000])
    assert "\n  numeric_bins: 64" in "\n".join(model_lines(fewer, learnable(fewer)))


@pytest.mark.parametrize(("positives", "model"), [(700, "deepfm"), (2_000, "wukong")])
def test_few_positives_of_many_rows_get_a_small_model(positives: int, model: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    clicks = (np.arange(70_000) < positives).astype(int)
    frame = pl.DataFrame({"item_id": random.integers(0, 9, 70_000), "click": random.permutation(clicks)})
    frame.write_parquet(tmp_path / "log.parquet")
    text = draft_config(tmp_path / "log.parquet")
    assert f"model: {{name: {model}" in text
    assert ("fewer than 1,000 of them with the label's rarer value" in text) is (model == "deepfm")


@pytest.mark.parametrize(
    ("rows", "users", "model", "l2"),
    [
        (9_000, 300, "{name: deepfm}", None),
        (20_000, 300, "{name: deepfm, deep: {dropout: 0.2}}", 0.03),
        (100_000, 300, "{name: wukong, rank: null}", 0.003),
        (100_000, 3_000, "{name: deepfm, deep: {dropout: 0.2}}", 0.03),
        (260_000, 10_000, "{name: wukong, rank: null}", 0.003),
    ],
)
def test_pairs_that_do_not_recur_are_not_learned_by_heart(
    rows: int, users: int, model: str, l2: float | None, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    columns = {"user_id": random.integers(0, users, rows), "item_id": random.integers(0, 900, rows)}
    columns |= {"town": columns["user_id"] % 50, "click": random.integers(0, 2, rows)}
    pl.DataFrame(columns).write_parquet(tmp_path / "log.parquet")
    text = draft_config(tmp_path / "log.parquet")
    assert f"model: {model} " in text
    assert ("\n  l2:" in text) is (l2 is not None)
    assert f"\n  l2: {l2}  #" in text or l2 is None
    assert "kind: crossed" not in text


@pytest.mark.parametrize(("noise", "crossed"), [(0.0, True), (0.7, False)])
def test_pairs_that_tell_the_label_get_vectors_of_their_own(noise: float, *, crossed: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows, likes = 80_000, random.integers(0, 2, (300, 90))
    user, item = random.integers(0, 300, rows), random.integers(0, 90, rows)
    click = np.where(random.random(rows) < noise, random.integers(0, 2, rows), likes[user, item])
    pl.DataFrame({"user_id": user, "item_id": item, "click": click}).write_parquet(tmp_path / "log.parquet")
    text = draft_config(tmp_path / "log.parquet")
    line = "\n  - {name: user_id_x_item_id, kind: crossed, columns: [user_id, item_id]}  # "
    assert (line in text) is crossed
    parse_experiment(text.encode(), tmp_path / "exp.yaml")


def test_recurring_pairs_are_counted_for_the_two_ids_that_do_not_follow_from_each_other(tmp_path: Path) -> None:
    user, item = np.divmod(np.arange(20_000), 100)
    frame = pl.DataFrame({"user_id": user, "name": user, "item_id": item, "click": item % 2})

    def pair(log: pl.DataFrame) -> PairOfIds | None:
        log.write_csv(tmp_path / "log.csv")
        return pair_of_ids(infer(resolve_files(["log.csv"], tmp_path, [".csv"]), "click"))

    def shown(found: PairOfIds | None) -> tuple[tuple[str, str], float, float]:
        assert found is not None
        return found.columns, found.recurring, found.tells

    columns = ("user_id", "item_id")
    assert shown(pair(frame)) == (columns, 0.0, pytest.approx(-1.0))  # items alone tell all
    twice = pl.concat([frame, frame])
    assert shown(pair(twice)) == (columns, 0.5, pytest.approx(0.0))
    assert pair(frame.drop("item_id", "name")) is None
    told = twice.with_columns(click=(pl.col("user_id") * 7 + pl.col("item_id")) % 2)
    assert shown(pair(told)) == (columns, 0.5, pytest.approx(1.0, abs=0.02))
    random = np.random.default_rng(0).integers(0, 2, twice.height)
    found = pair(twice.with_columns(click=pl.Series(random)))
    assert found is not None
    assert abs(found.tells) < 0.03


def _mostly_unlabelled(rows: int, labelled: int) -> pl.DataFrame:
    random = np.random.default_rng(0)
    clicks = pl.Series(random.integers(0, 2, rows)).to_frame("click")
    return clicks.select(
        user_id=pl.Series(random.integers(0, 300, rows)),
        item_id=pl.Series(random.integers(0, 200, rows)),
        click=pl.when(pl.Series(random.permutation(rows)) < labelled).then("click"),
    )


def test_rows_without_a_label_teach_nothing(tmp_path: Path) -> None:
    """The defaults are those of the rows that have one."""
    for rows, labelled in ((100_000, 5_000), (600_000, 1_200)):
        frame = _mostly_unlabelled(rows, labelled)
        frame.write_csv(tmp_path / "log.csv")
        text = draft_config(tmp_path / "log.csv")
        frame.drop_nulls().write_csv(tmp_path / "labelled.csv")
        plain = draft_config(tmp_path / "labelled.csv")
        assert "on_bad_row: quarantine" in text
        batch = int(text.partition("batch_size: ")[2].split()[0])
        assert batch <= labelled * 0.8 / 4
        begun, ends = "\nembeddings:", "\nevaluation:"
        assert text.partition(begun)[2].partition(ends)[0] == plain.partition(begun)[2].partition(ends)[0]
