"""Leaderboards: merging entries, drawing settings for a search, storing trials, and the resulting table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.benchmark import Context, Figure, Target, judge
from bench.catalogue import BENCHMARKS
from bench.plots import draw_board
from bench.quality import planted, search
from bench.quality.board import BOARDS, Entry, load_board, merged
from bench.quality.catalogue import DHEN_ENSEMBLE, below_lightgbm, best_pair, published_order
from bench.quality.quality import published_within
from bench.quality.search import draw, record
from bench.quality.stand_in import stand_in
from bench.quality.trials import Trial, judged, prepared, run_trials
from bench.system.scaling_law import FULL, MODELS, QUICK, experiment
from bench.tables import board_table
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError, DataError, EnvironmentMismatch
from ziggurat.training.experiment import Experiment

NAMES = sorted(path.stem for path in BOARDS.glob("*.yaml"))


def test_changes_merge_within_a_section_and_replace_one_of_another_name() -> None:
    base = {"model": {"name": "dnn", "hidden": [1]}, "training": {"epochs": 3, "seed": 1}}
    assert merged(base, {"training": {"epochs": 5}}) == {**base, "training": {"epochs": 5, "seed": 1}}
    assert merged(base, {"model": {"hidden": [2]}})["model"] == {"name": "dnn", "hidden": [2]}
    assert merged(base, {"model": {"name": "fm"}})["model"] == {"name": "fm"}
    assert base["training"]["epochs"] == 3


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_of_every_board_is_a_valid_experiment(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    for entry in board.entries.values():
        experiment = entry.experiment(tmp_path, 7)
        assert experiment.training.seed == 7
        assert experiment.data.folder == tmp_path
        for number in range(20 if entry.search else 0):
            entry.experiment(tmp_path, 0, draw(entry, number))


def test_changes_of_one_experiment_do_not_reach_the_next() -> None:
    entry = load_board("frappe").entry("wukong")
    before = entry.experiment(None, 0)
    changed = entry.experiment(None, 0, {"data.source.files": ["other.parquet"], "model.layers": 9})
    assert changed != before
    assert entry.experiment(None, 0) == before


def test_an_unknown_board_or_model_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="no such board"):
        load_board("nowhere")
    with pytest.raises(ConfigError, match="did you mean wukong"):
        load_board("frappe").entry("wukon")


def test_a_search_draws_the_same_for_the_same_number() -> None:
    entry = Entry("some", {}, search={"a": [1, 2, 3], "b": [4, 5]})
    assert [draw(entry, n) for n in range(9)] == [draw(entry, n) for n in range(9)]
    assert {draw(entry, n)["a"] for n in range(30)} == {1, 2, 3}
    with pytest.raises(ConfigError, match="declare the values"):
        draw(Entry("none", {}), 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("frappe wukong --trials 0", "received --first 0 and --trials 0"),
        ("frappe wukong --first -1", "received --first -1"),
        ("frappe deepfm", "board frappe: deepfm has no `search`\n.*take one that has: wukong; or declare the values"),
        ("census ple", "nowhere"),
    ],
)
def test_an_impossible_search_gives_the_reason(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search.main([*arguments.split(), "--data", str(tmp_path / "nowhere")]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_repeated_trial_replaces_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trials" / "board_model.jsonl"
    rows = [{"trial": n, "commit": "abc", "settings": {"lr": n}, "seconds": 1} for n in range(3)]
    for row in [*rows, {**rows[1], "seconds": 2}, {**rows[1], "commit": "def"}]:
        record(path, row)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert kept == [rows[0], {**rows[1], "seconds": 2}, rows[2], {**rows[1], "commit": "def"}]


def test_a_trial_of_several_tasks_has_figures_for_each() -> None:
    figures = {"income/auc": 0.9, "income/log_loss": 0.1, "income/rows": 7.0, "married/auc": 0.8, "married/ne": 0.3}
    assert judged(figures) == {"income/auc": 0.9, "income/log_loss": 0.1, "married/auc": 0.8}
    assert judged({"auc": 0.7, "log_loss": 0.5, "gauc": 0.6}) == {"auc": 0.7, "log_loss": 0.5}


def test_a_quick_run_takes_no_data(tmp_path: Path) -> None:
    board = BENCHMARKS["quality_frappe"]
    with pytest.raises(DataError, match="--quick trains on a stand-in") as refused:
        board.run(Context(True, tmp_path, tmp_path, print))
    assert "leave out one of the two" in str(refused.value)


def test_a_board_with_generated_data_rejects_data_and_generates_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="its data is generated, --data"):
        BENCHMARKS["dhen_planted"].run(Context(False, tmp_path, tmp_path, print))
    monkeypatch.setattr(planted, "FULL", QUICK)  # a log of fewer rows
    said: list[str] = []
    context = Context(False, None, tmp_path, said.append)
    folders = [planted.PLANTED.make(context) for _ in range(2)]
    assert folders[0] == folders[1]
    assert said == ["generating 6,000 rows"]
    [log] = folders[0].glob("*.parquet")
    entry = load_board("dhen_planted").entry("fm")
    dataset = prepared(entry.experiment(folders[0], 0, {"data.source.files": [log.name]}), tmp_path)
    assert sum(split["rows"] for split in dataset.manifest["splits"].values()) == QUICK.rows


def test_the_generated_board_has_the_data_and_settings_of_the_scaling_law() -> None:
    board = load_board("dhen_planted").entry("fm").experiment(Path(), 0)
    log = Path(board.data.source.files[0])
    assert log.name == f"scaling_law-{FULL.rows}.parquet"
    law = parse_config(Experiment, experiment(log, MODELS["wukong"], FULL))
    for section in ("features", "embeddings", "optimizer"):
        assert getattr(board, section) == getattr(law, section)
    assert (board.data.split, board.data.labels) == (law.data.split, law.data.labels)
    shared = {"seed", "threads", "log_every"}  # set for every board
    assert board.training.model_dump(exclude=shared) == law.training.model_dump(exclude=shared)


def test_a_trial_is_trained_once_and_a_failed_one_is_quoted(tmp_path: Path) -> None:
    entry, changes = load_board("frappe").entry("fm"), stand_in(tmp_path)
    trial = Trial("fm/0", entry.experiment(None, 0, changes))
    dataset = prepared(trial.experiment, tmp_path)
    said: list[str] = []
    [(_, first)] = run_trials([trial], dataset, tmp_path, said.append)
    assert first["steps"] == 5
    assert 0 < first["figures"]["test"]["click/auc"] < 1
    assert said[0].startswith("1/1 fm/0: ")
    [kept] = (tmp_path / "trials").glob("*.json")
    written = kept.stat().st_mtime_ns
    [(_, again)] = run_trials([trial], dataset, tmp_path, said.append)
    assert again == first == json.loads(kept.read_text())
    assert kept.stat().st_mtime_ns == written
    broken = Trial("broken", entry.experiment(None, 0, {**changes, "training.batch_size": 100_000}))
    with pytest.raises(EnvironmentMismatch, match=r"(?s)broken ended with status 1:.*exceeds the 2428 training rows"):
        list(run_trials([broken], dataset, tmp_path, said.append))


def test_targets_of_a_board_allow_the_tolerance() -> None:
    targets = published_within("frappe", "auc", 0.0015)
    assert targets["fm.auc"] == Target(0.9656)
    assert "dlrm.auc" not in targets


def described(
    model: str, name: str, samples: tuple[float, ...], target: str | None, note: str = ""
) -> dict[str, object]:
    figure = Figure(f"{model}.{name}", "", samples, note, "mean")
    return {**figure.to_json(), "target": target, "holds": None if target is None else True}


def test_the_table_of_a_board_has_a_line_per_model_with_mean_and_deviation(tmp_path: Path) -> None:
    figures = [
        described("fm", "auc", (0.5, 0.6, 0.7), "≥ 0.5", "published 0.55"),
        {**Figure("fm.flops", "", (1234.0,)).to_json(), "target": None, "holds": None},
        described("dnn", "auc", (0.8,), None),
    ]
    head, _, first, second = board_table(figures).splitlines()
    assert [cell.strip() for cell in head.split("|")[1:-1]] == ["model", "auc", "flops", "published", "target", ""]
    assert [cell.strip() for cell in first.split("|")[1:-1]] == [
        "fm", "0.60000 ± 0.1000", "1,234", "auc 0.55", "auc ≥ 0.5", "holds"
    ]  # fmt: skip
    assert [cell.strip() for cell in second.split("|")[1:-1]] == ["dnn", "0.80000", "", "", "", ""]
    for path in (tmp_path / "a.svg", tmp_path / "b.svg"):
        draw_board(path, figures)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_picture_of_a_board_of_rounds_has_the_figures_that_all_lines_have(tmp_path: Path) -> None:
    figures = [
        Figure(f"{name}.{key}", unit, samples).to_json()
        for name, samples in (("ddp", (1.0, 3.0)), ("fsdp", (2.0, 4.0)))
        for key, unit in (("seconds", "ms"), ("inter", "MB"))
    ]
    draw_board(tmp_path / "a.svg", [*figures, Figure("fsdp.vs_ddp", "x", (0.5,)).to_json()])
    draw_board(tmp_path / "b.svg", figures)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_figure_with_the_statistic_mean_is_judged_by_its_mean() -> None:
    skewed = (0.0, 0.0, 0.9)
    targets = {"x": Target(0.2)}
    assert judge(targets, (Figure("x", "", skewed, statistic="mean"),)).holds
    assert not judge(targets, (Figure("x", "", skewed),)).holds
    assert Figure.from_json(Figure("x", "", skewed, statistic="mean").to_json()).statistic == "mean"


def outcome(validation: float, test: float) -> dict[str, object]:
    return {"figures": {"validation": {"ne": validation}, "test": {"ne": test, "log_loss": test}}}


def test_the_compared_pair_is_selected_on_validation() -> None:
    outcomes = {
        "a": [outcome(0.5, 0.4), outcome(0.5, 0.4)],
        "b": [outcome(0.4, 0.5), outcome(0.4, 0.8)],
        "a+b": [outcome(0.3, 0.45), outcome(0.3, 0.6)],
        "a+c": [outcome(0.35, 0.1), outcome(0.35, 0.1)],
    }
    assert DHEN_ENSEMBLE.layout == "board"
    first, second = best_pair(outcomes)
    assert (first.name, second.name) == ("a+b over b.ne_gain", "best.ne_gain")
    assert first.samples == second.samples == pytest.approx((10.0, 25.0))


def test_the_ablation_is_in_percent_of_the_whole_models_loss() -> None:
    losses = {"whole": 0.1, "no_fm": 0.13, "no_shortcut": 0.11, "no_linear": 0.12, "no_linear_no_shortcut": 0.2}
    figures = {f.name: f.value for f in published_order({name: [outcome(0, loss)] for name, loss in losses.items()})}
    assert figures == pytest.approx({
        "no_fm.worse": 30, "no_shortcut.worse": 10, "no_linear.worse": 20, "no_linear_no_shortcut.worse": 100,
        "no_fm.above_next": 10,
    })  # fmt: skip


def test_models_are_compared_with_lightgbm_seed_by_seed() -> None:
    errors = {"fm": [0.9, 0.98], "lightgbm": [1.0, 1.0], "linear_regression": [1.1, 1.0]}
    outcomes = {name: [{"figures": {"test": {"rmse": each}}} for each in seeds] for name, seeds in errors.items()}
    figures = {figure.name: figure.samples for figure in below_lightgbm(outcomes)}
    assert figures["fm.below_lightgbm"] == pytest.approx((10, 2))
    assert figures["linear_regression.below_lightgbm"] == pytest.approx((-10, 0))
    assert len(figures) == 2


def test_a_board_with_baselines_has_their_figures(tmp_path: Path) -> None:
    result = BENCHMARKS["quality_movielens_ratings"].run(Context(True, None, tmp_path, lambda line: None))
    named = {figure.name for figure in result.figures}
    assert {"deepfm.rmse", "lightgbm.rmse", "lightgbm.mae", "linear_regression.rmse"} <= named
    assert not {"lightgbm.flops", "lightgbm.auc"} & named
