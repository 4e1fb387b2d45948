"""Searches of pipelines: no leak, no over-fit choice, equal budgets, the same bits after SIGKILL and in processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ziggurat.core.errors import ConfigError, EnvironmentMismatch, RunFolderError
from ziggurat.core.progress import Silent
from ziggurat.search.pipelines.campaign import Campaign
from ziggurat.search.pipelines.choosing import ahead, best_searched, is_shared, judge, reserved
from ziggurat.search.pipelines.clustering.config import PolicyConfig
from ziggurat.search.pipelines.downstream import LogisticRegressionTask
from ziggurat.search.pipelines.evaluation import AnyPipeline, Evaluator, divided, simplified
from ziggurat.search.pipelines.found import FoundPipelines, Trial
from ziggurat.search.pipelines.methods.proposals import standard
from ziggurat.search.pipelines.methods.simple import shared
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline, possible, simplest, why_masked
from ziggurat.search.pipelines.records import RECORDS_FILE, Records
from ziggurat.search.pipelines.search import METHODS, judged_by_folds, search_pipelines
from ziggurat.search.pipelines.table import Table
from ziggurat.search.pipelines.workers import Workers

TASK = LogisticRegressionTask(folds=3)


def make_table(rows: int = 240, seed: int = 0) -> Table:
    """A table of which one column is linear in the label, one curved and one skewed, with a category."""
    random = np.random.default_rng(seed)
    linear, curved, noise = random.normal(size=(3, rows))
    colour = random.integers(0, 4, rows)
    logit = linear + 2 * curved**2 - 2 + (colour == 2)
    labels = random.random(rows) < 1 / (1 + np.exp(-logit))
    holes = np.where(random.random(rows) < 0.1, np.nan, linear)
    columns = {"linear": holes, "curved": curved, "noise": np.exp(2 * noise), "colour": [f"c{each}" for each in colour]}
    return Table.of(columns, labels)


TABLE = make_table()


def same(left: FoundPipelines, right: FoundPipelines) -> bool:
    trials = [
        [(each.origin, each.pipelines, each.repeat, each.scores) for each in found.trials] for found in (left, right)
    ]
    return (
        trials[0] == trials[1]
        and left.pipelines == right.pipelines
        and left.clusters == right.clusters
        and left.episodes == right.episodes
        and left.score == right.score
        and np.array_equal(left.coordinates, right.coordinates)
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_to_the_budget_and_begins_with_standard_scaling(method: str) -> None:
    found = search_pipelines(TABLE, TASK, method=method, budget=14, seed=1)  # pyright: ignore[reportArgumentType]
    assert found.evaluations == len(found.trials) == (1 if method == "standard" else 14)
    assert found.trials[0].origin == "standard"
    keys = {(str(each.pipelines), each.repeat) for each in found.trials}
    assert len(keys) == len(found.trials)
    assert found.score >= found.standard


def test_learnt_clusters_find_the_curve() -> None:
    found = search_pipelines(TABLE, TASK, method="cluster", budget=40, seed=0)
    assert found.score > found.standard + 0.05
    curved = found.pipelines["curved"]
    assert isinstance(curved, NumericPipeline)
    assert curved.discretiser != "none"
    assert {each.origin for each in found.trials} == {"standard", "warm", "screened", "episode", "improved", "finalist"}
    assert [each.number for each in found.episodes] == list(range(len(found.episodes)))
    assert found.coordinates.shape == (4, 2)


def test_what_is_fitted_sees_training_rows_alone() -> None:
    rows = 90
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, rows)
    columns = {"number": random.normal(size=rows), "text": [f"t{each}" for each in random.integers(0, 9, rows)]}
    flipped, changed = labels.copy(), {**columns}
    evaluator = Evaluator(Table.of(columns, labels), TASK, 0)
    fold = evaluator.folds(0)[0]
    flipped[fold[1]] = 1 - flipped[fold[1]]
    changed["number"] = columns["number"].copy()
    changed["number"][fold[1]] += 100
    others = [Evaluator(Table.of(columns, flipped), TASK, 0), Evaluator(Table.of(changed, labels), TASK, 0)]
    for column in evaluator.table.columns:
        for pipeline in possible(column.kind, has_missing=True):
            train, _ = evaluator.block(column, pipeline, fold)
            for other in others:
                found, _ = other.block(other.table.column(column.name), pipeline, fold)
                np.testing.assert_array_equal(found, train)


def test_a_planted_leak_is_not_used() -> None:
    """Each row has an id of its own: the mean label of an id is the label, unless it is fitted on other rows."""
    rows = 200
    random = np.random.default_rng(0)
    table = Table.of(
        {"id": [f"r{each}" for each in range(rows)], "x": random.normal(size=rows)}, random.random(rows) < 0.5
    )
    evaluator = Evaluator(table, TASK, 0)
    leaky = {"id": CategoricalPipeline(encoder="target"), "x": NumericPipeline()}
    fold = evaluator.folds(0)[0]
    train, _ = evaluator.block(table.column("id"), leaky["id"], fold)
    assert abs(float(np.corrcoef(train[:, 0], table.labels[fold[0]])[0, 1])) < 0.25
    assert evaluator.evaluate(leaky).score < 0.6


def test_the_best_of_many_is_too_good_and_is_judged_again() -> None:
    scores: list[tuple[float, float, float]] = []
    for seed in range(6):
        random = np.random.default_rng(seed)
        table = Table.of({f"x{i}": random.normal(size=100) ** 3 for i in range(4)}, random.integers(0, 2, 100))
        found = search_pipelines(table, TASK, method="per_feature", budget=40, seed=0)
        naive = best_searched(found.trials)
        fresh = [each.score for each in found.trials if each.repeat and each.pipelines == naive.pipelines]
        scores.append((naive.score, float(np.mean(fresh)), found.score))
    chosen, again, told = (float(np.mean(each)) for each in zip(*scores, strict=True))
    assert again < chosen - 0.05  # of labels that nothing tells
    assert again <= told < chosen - 0.03


def test_a_search_that_was_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    policy = PolicyConfig(pretraining=20)
    script = (
        "from pathlib import Path; from tests.search.pipelines.test_pipeline_search import *\n"
        f"search_pipelines(TABLE, TASK, budget=26, folder=Path({str(folder)!r}), policy=PolicyConfig(pretraining=20))"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[3]) as process:
        lines = folder / RECORDS_FILE
        while process.poll() is None and not (lines.exists() and lines.read_bytes().count(b"\n") >= 10):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    done = lines.read_bytes().count(b"\n")
    assert 10 <= done < 26
    lines.write_bytes(lines.read_bytes() + b'{"key": "torn')
    resumed = search_pipelines(TABLE, TASK, budget=26, folder=folder, policy=policy)
    whole = search_pipelines(TABLE, TASK, budget=26, policy=policy)
    assert same(resumed, whole)
    assert lines.read_bytes().count(b"\n") == 26
    with pytest.raises(RunFolderError, match="another seed"):
        search_pipelines(TABLE, TASK, budget=26, folder=folder, seed=1, policy=policy)
    lines.write_bytes(lines.read_bytes().replace(b"random", b"rondam", 1).replace(b"warm", b"worm", 1))
    with pytest.raises(RunFolderError, match="line"):
        search_pipelines(TABLE, TASK, budget=26, folder=folder, policy=policy)


def test_several_processes_find_the_same() -> None:
    alone = search_pipelines(TABLE, TASK, method="shared", budget=10)
    assert same(search_pipelines(TABLE, TASK, method="shared", budget=10, jobs=2), alone)


def test_a_time_limit_keeps_what_was_evaluated() -> None:
    found = search_pipelines(TABLE, TASK, method="shared", budget=10_000, hours=1 / 3600)
    assert not found.finished
    assert 1 <= found.evaluations < 10_000
    assert found.pipelines


def test_finalists_are_judged_on_fresh_folds_where_time_ended_the_search() -> None:
    found = search_pipelines(TABLE, TASK, method="shared", budget=10_000, hours=6 / 3600)
    assert not found.finished
    fresh = [each for each in found.trials if each.repeat]
    assert {each.origin for each in fresh} == {"finalist"}
    assert found.trials[0].pipelines in [each.pipelines for each in fresh]
    assert found.pipelines in [each.pipelines for each in fresh]


def test_finalists_that_were_judged_decide_if_the_judgement_is_cut_short() -> None:
    table = make_table(120)
    for most, judged in ((11, 1), (13, 3)):
        with Workers(table, TASK, 0, 1) as workers:
            limit = 10
            campaign = Campaign(table, workers, Records(None), lambda: workers_done(campaign) >= limit, Silent())  # noqa: B023
            campaign.run(shared(table, 0, 5), 10)
            limit = most
            chosen, is_finished = judge(campaign, 22)
        assert not is_finished
        assert len(campaign.trials) == most
        fresh = [each for each in campaign.trials if each.repeat == 1]
        assert len(fresh) == judged
        assert chosen.pipelines in [each.pipelines for each in fresh]


def workers_done(campaign: Campaign) -> int:
    return len(campaign.records)


def test_a_process_that_is_killed_is_named() -> None:
    with Workers(TABLE, TASK, 0, 2) as workers:
        asked = [(standard(TABLE).pipelines, repeat) for repeat in range(40)]
        results = workers.results(asked, lambda: False)
        next(results)
        child = multiprocessing.active_children()[0]
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentMismatch, match="a process that evaluates pipelines was killed"):
            list(results)


def test_a_process_that_is_killed_while_it_sends_a_result_holds_up_nothing() -> None:
    ended: list[str] = []

    def search() -> None:
        with pytest.raises(EnvironmentMismatch) as raised, Workers(TABLE, TASK, 0, 2) as workers:
            pool = workers._pool
            assert pool is not None
            pool._result_queue._wlock.acquire()  # as the killed process would hold it
            known = set(multiprocessing.active_children())
            asked = [(standard(TABLE).pipelines, repeat) for repeat in range(40)]
            results = workers.results(asked, lambda: bool(kill(known)))
            list(results)
        ended.append(str(raised.value))

    def kill(known: set[Any]) -> None:
        own = [each for each in multiprocessing.active_children() if each not in known]
        if len(own) == 2:
            time.sleep(5)  # by then the other one waits for the lock
            own[0].kill()

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    thread.join(120)
    assert ended, "the search waits for a process that waits for the lock of the killed one"
    assert "was killed" in ended[0]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty and holds no search of pipelines"):
        search_pipelines(TABLE, TASK, method="standard", budget=1, folder=tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_seeds_are_those_of_numpy() -> None:
    found = search_pipelines(make_table(60), TASK, method="shared", budget=2, seed=2**32 - 1)
    assert found.evaluations == 2
    with pytest.raises(ConfigError, match=r"(?s)seed: received 4294967296.*give 0 to 4,294,967,295"):
        search_pipelines(TABLE, TASK, method="shared", budget=2, seed=2**32)


def test_missing_categories_that_have_a_place_of_their_own_are_not_imputed() -> None:
    for encoder, kept in (("one_hot", "category"), ("hash", "category"), ("target", "most_frequent")):
        pipeline = CategoricalPipeline(imputer="most_frequent", encoder=encoder)  # pyright: ignore[reportArgumentType]
        found = simplest(pipeline, has_missing=True, missing_is_own=True)
        assert isinstance(found, CategoricalPipeline)
        assert found.imputer == kept
        assert simplest(pipeline, has_missing=True) == pipeline


def test_masked_combinations_say_why_and_what_they_are() -> None:
    masked = NumericPipeline(scaler="standard", discretiser="spline")
    assert "linear" in why_masked(masked)
    assert masked not in possible("numeric", has_missing=True)
    assert simplest(masked, has_missing=True) == NumericPipeline(scaler="none", discretiser="spline")
    assert "keeps the order" in why_masked(NumericPipeline(scaler="log", discretiser="quantile_bins"))
    ranks = NumericPipeline(scaler="quantile_uniform", discretiser="uniform_bins", imputer="mean")
    assert simplest(ranks, has_missing=False) == NumericPipeline(scaler="none", discretiser="quantile_bins")
    assert len(possible("numeric", has_missing=False)) == 9 + 4 + 1 + 5 + 5


def test_blocks_are_made_once() -> None:
    evaluator = Evaluator(TABLE, TASK, 0)
    first = simplified(TABLE, standard(TABLE).pipelines)
    evaluator.evaluate(first)
    assert (evaluator.cache.hits, evaluator.cache.misses) == (0, 12)
    second = {**first, "noise": NumericPipeline(scaler="log")}
    evaluator.evaluate(second)
    assert (evaluator.cache.hits, evaluator.cache.misses) == (9, 15)


def test_descriptors_and_screen_see_the_training_rows_of_one_fold() -> None:
    judged = judged_by_folds(TABLE, TASK, 3, 1, "cluster", 10, None)
    rows = divided(TABLE, TASK.folds, 3, 0)[0][0]
    np.testing.assert_array_equal(judged.rows, rows)
    assert len(rows) == len(TABLE.labels) * 2 // 3
    assert judged.scores == 3


def trial(number: int, origin: str, pipelines: dict[str, AnyPipeline]) -> Trial:
    return Trial(number, origin, simplified(TABLE, pipelines), 0, (0.5, 0.5, 0.5), 0.0, "")


def test_what_columns_share_is_chosen_before_what_is_as_good_but_not_shared() -> None:
    first = standard(TABLE).pipelines
    shared_one = {
        **first,
        **dict.fromkeys(("linear", "curved", "noise"), NumericPipeline(imputer="mean", scaler="power")),
    }
    single = {**shared_one, "noise": NumericPipeline(scaler="log")}
    assert is_shared(simplified(TABLE, shared_one), TABLE.columns)  # though two of the columns have no holes to fill
    assert not is_shared(simplified(TABLE, single), TABLE.columns)
    running = [trial(0, "standard", first), trial(1, "warm", shared_one), trial(2, "improved", single)]
    noise = [0.0, 0.01, -0.01, 0.012, -0.012, 0.0]
    fresh = {
        0: [0.7 + each for each in noise],
        1: [0.8 + each for each in reversed(noise)],
        2: [0.801 + each for each in noise],
    }
    assert ahead(running, fresh, TABLE.columns) is running[1]
    assert ahead([running[0], running[2]], fresh, TABLE.columns) is running[2]
    fresh[2] = [0.9 + each for each in noise]
    assert ahead(running, fresh, TABLE.columns) is running[2]


def test_one_difference_does_not_beat_standard_scaling() -> None:
    running = [trial(0, "standard", standard(TABLE).pipelines), trial(1, "warm", standard(TABLE).pipelines)]
    assert ahead(running, {0: [0.7], 1: [0.9]}, TABLE.columns) is running[0]
    assert ahead(running, {0: [0.7, 0.7], 1: [0.9, 0.91]}, TABLE.columns) is running[1]
    assert [reserved(budget, 1) for budget in (7, 8, 15, 16, 40, 100)] == [0, 4, 4, 4, 10, 12]
    assert [reserved(budget, 5) for budget in (7, 8, 15, 16, 40, 100)] == [0, 2, 2, 4, 10, 12]


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="one of cluster, kmeans"):
        search_pipelines(TABLE, TASK, method="best")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="1 labels are missing"):
        Table.of({"a": [1.0, 2.0]}, [None, 1])
    with pytest.raises(ConfigError, match="is not numeric"):
        Table.of({"a": ["x", "y"]}, [0, 1], {"a": "numeric"})
