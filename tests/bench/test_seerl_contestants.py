"""What the trainings of the benchmark seerl are, which episodes choose and judge, and which figures come of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from bench.quality import seerl
from bench.quality.seerl_tasks import (
    CHOOSE_FROM,
    CYCLES,
    EPISODES_OF_A_SEED,
    JUDGE_FROM,
    MEMBERS,
    METHODS,
    TASKS,
    WEIGHTS,
    Episodes,
    Task,
    discard,
    folder_of,
    trained,
)
from ziggurat.policies import training
from ziggurat.policies.agents import play as playing
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.training import save_points

EPISODES = Episodes(choose=2, judge=3)
SEED = 4
CHOOSES = list(range(CHOOSE_FROM + SEED * EPISODES_OF_A_SEED, CHOOSE_FROM + SEED * EPISODES_OF_A_SEED + 2))
JUDGES = list(range(JUDGE_FROM + SEED * EPISODES_OF_A_SEED, JUDGE_FROM + SEED * EPISODES_OF_A_SEED + 3))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_all_contestants_begin_new_episodes_after_equal_steps(task: Task) -> None:
    gaps: set[int] = set()
    for schedule, steps, cycles in (
        ("cyclical", task.steps, CYCLES),
        ("constant", task.steps, CYCLES),
        ("constant", task.steps // MEMBERS, 1),
        ("cyclical", task.steps * 3 // 2, 1),
    ):
        config = PoliciesConfig.model_validate(task.config(0, schedule, steps, cycles, EPISODES))  # pyright: ignore[reportArgumentType]
        points = save_points(config.training)
        assert points[-1] == steps
        gaps |= set(np.diff([0, *points]).tolist()[:-1])
    assert gaps == {-(-task.steps // CYCLES)}


Policies = tuple[bytes, ...]
"""The weights of each member."""


def weights(member: Any) -> bytes:
    return b"".join(each.numpy().tobytes() for each in member._policy.state_dict().values())


class Watched:
    """What was trained and played: configs, and (members, rule, seeds, mean return, steps)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.configs: list[PoliciesConfig] = []
        self.played: list[tuple[Policies, str, list[int], float, int]] = []
        train, play = training.train, playing.play

        def watched_train(config: PoliciesConfig, folder: Path) -> Any:
            self.configs.append(config)
            return train(config, folder)

        def watched_play(task: Any, act: Any, seeds: Any, **rest: Any) -> Any:
            found = play(task, act, seeds, **rest)
            policy = getattr(act, "__self__", None)
            members = () if policy is None else tuple(map(weights, policy.members))
            rule = "random" if policy is None else policy.rule
            self.played.append((members, rule, list(seeds), float(np.mean(found.returns)), found.steps))
            return found

        monkeypatch.setattr(training, "train", watched_train)
        monkeypatch.setattr(playing, "play", watched_play)

    def chose(self) -> list[tuple[Policies, str, list[int], float, int]]:
        return [each for each in self.played if each[2] == CHOOSES]

    def judged(self) -> list[tuple[Policies, str, list[int], float, int]]:
        return [each for each in self.played if each[2] == JUDGES]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.mark.parametrize("method", ["seerl", "plain"])
def test_one_training_leaves_snapshots_that_are_chosen_and_judged(
    method: str, tmp_path: Path, watched: Watched
) -> None:
    outcome = trained(tmp_path, "cartpole", SEED, method, EPISODES, True)
    [config] = watched.configs
    assert config.training.schedule == ("cyclical" if method == "seerl" else "constant")
    assert (config.training.steps, config.training.cycles, config.training.seed) == (384, CYCLES, SEED)
    assert len(watched.chose()) + len(watched.judged()) == len(watched.played)
    assert outcome["selection"] == sum(steps for *_, steps in watched.chose())
    chose = {members[0]: mean for members, _, _, mean, _ in watched.chose() if len(members) == 1}
    judged = {members[0]: mean for members, _, _, mean, _ in watched.judged() if len(members) == 1}
    assert chose.keys() == judged.keys()
    assert len(chose) == CYCLES
    assert outcome["snapshots"] == [judged[each] for each in chose]
    assert outcome["last"] == outcome["snapshots"][-1]
    assert outcome["best"] == judged[max(chose, key=chose.__getitem__)]
    best = max(watched.chose(), key=lambda each: (each[3], len(each[0])))  # of equal ones an ensemble comes first
    assert (len(outcome["members"]), outcome["rule"]) == (len(best[0]), best[1])
    assert outcome["ensemble"] == next(mean for *what, _, mean, _ in watched.judged() if what == list(best[:2]))
    assert outcome["random"] == next(mean for members, _, _, mean, _ in watched.judged() if not members)
    assert [each["weight"] for each in outcome.get("sweep", ())] == (list(WEIGHTS) if method == "seerl" else [])
    assert {len(each["members"]) for each in outcome.get("sweep", ())} <= {MEMBERS}


def test_independent_policies_share_the_steps(tmp_path: Path, watched: Watched) -> None:
    outcome = trained(tmp_path, "cartpole", SEED, "independent", EPISODES, True)
    assert [each.training.steps for each in watched.configs] == [384 // MEMBERS] * MEMBERS
    assert {each.training.schedule for each in watched.configs} == {"constant"}
    other = trained(tmp_path / "other", "cartpole", SEED + 1, "independent", EPISODES, True)
    assert len({each.training.seed for each in watched.configs}) == 2 * MEMBERS
    assert outcome["steps"] == other["steps"] == 384
    assert [len(set(members)) for members, *_ in watched.chose()] == [MEMBERS] * 3
    means = {rule: mean for _, rule, _, mean, _ in watched.chose()}
    assert outcome["rule"] == max(means, key=means.__getitem__)
    assert outcome["selection"] == sum(steps for *_, steps in watched.chose())
    [judged] = watched.judged()
    assert judged[:2] == (watched.chose()[0][0], outcome["rule"])
    assert outcome["ensemble"] == judged[3]


def test_the_annealed_policy_has_one_cycle_and_chooses_nothing(tmp_path: Path, watched: Watched) -> None:
    outcome = trained(tmp_path, "cartpole", SEED, "annealed", EPISODES, True, 448)
    [config] = watched.configs
    values = config.training
    assert (values.schedule, values.cycles, values.steps, values.seed) == ("cyclical", 1, 448, SEED)
    assert watched.chose() == []
    [judged] = watched.judged()
    assert outcome == {"steps": 448, "last": judged[3]}


def test_a_folder_is_gone_or_whole(tmp_path: Path) -> None:
    run = folder_of(tmp_path, "cartpole", 0, "seerl")
    (run / "snapshots").mkdir(parents=True)
    run.with_name(f".{run.name}.gone").mkdir()  # a deletion that was interrupted
    discard(run)
    assert list(tmp_path.iterdir()) == []
    discard(run)


def outcomes(values: dict[str, float]) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Outcomes of two tasks and two seeds, each contestant with a return of its own."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for column, task in enumerate(("one", "two")):
        for seed in range(2):
            scale = 10.0 ** (column + 1)
            value = {name: scale * (each + seed) for name, each in values.items()}
            sweep = [
                {"weight": weight, "mean": scale * (5 if weight < 10 else 3), "divergence": 1.0 if weight < 10 else 4.0,
                 "members": [1, 2, 3] if weight < 10 else [1, 2, 6]} for weight in WEIGHTS
            ]  # fmt: skip
            found[task, seed, "seerl"] = {
                "ensemble": value["ensemble"], "last": value["last"], "best": value["best"], "sweep": sweep,
                "random": scale * 2, "rule": "vote", "members": [1], "steps": 1, "selection": 11,
            }  # fmt: skip
            found[task, seed, "plain"] = {
                "last": value["plain"], "ensemble": value["plain_snapshots"], "best": -1e9, "random": -1e9, "steps": 2,
                "selection": 12,
            }  # fmt: skip
            found[task, seed, "independent"] = {"ensemble": value["independent"], "steps": 3, "selection": 13}
            found[task, seed, "annealed"] = {"last": value["annealed"], "steps": 4}
    return found


VALUES = {
    "ensemble": 7.0, "last": 4.0, "best": 6.0, "plain": 5.0, "plain_snapshots": 8.0, "independent": 3.0,
    "annealed": 9.0,
}  # fmt: skip


def test_each_contestant_has_its_own_return() -> None:
    found = outcomes(VALUES)
    assert seerl.contestants(found, "one", 0) == {name: 10 * each for name, each in VALUES.items()}
    assert tuple(seerl.contestants(found, "one", 0)) == seerl.CONTESTANTS
    assert {method for _, _, method in found} == set(METHODS)
    lines = [",".join(line) for line in seerl._lines(found, ["one"], 1)]  # pyright: ignore[reportPrivateUsage]
    assert lines == ["one,0,70,40,60,50,80,30,90,20,vote,1,1,2,3,4,11,12,13"]


def test_scores_are_zero_for_random_actions_and_one_for_the_best() -> None:
    scores, sweep, dots = seerl._scores(outcomes(VALUES), ["one", "two"], 2)  # pyright: ignore[reportPrivateUsage]
    for name, value in VALUES.items():  # the best of all is the annealed one with the second seed, 10
        expected = np.array([[(value + seed - 2) / 8] * 2 for seed in range(2)])
        np.testing.assert_allclose(scores[name], expected)
    np.testing.assert_allclose(sweep[0.0], np.full((2, 2), 3 / 8))
    np.testing.assert_allclose(sweep[100.0], np.full((2, 2), 1 / 8))
    assert dots == [(0.25, pytest.approx(1 / 8))] * 4 + [(1.0, pytest.approx(-1 / 8))] * 4


def test_runs_with_one_ensemble_have_no_dots_and_scores_need_someone_who_plays() -> None:
    found = outcomes(VALUES)
    for (_, _, method), each in found.items():
        if method == "seerl":
            each["sweep"] = [{**swept, "divergence": 1.0, "mean": 5.0} for swept in each["sweep"]]
    assert seerl._scores(found, ["one", "two"], 2)[2] == []  # pyright: ignore[reportPrivateUsage]
    idle = outcomes(dict.fromkeys(VALUES, 1.0))  # with the second seed as good as random actions
    with pytest.raises(ValueError, match="one: no policy is better than random actions"):
        seerl._scores(idle, ["one"], 2)  # pyright: ignore[reportPrivateUsage]
    assert seerl._scores(idle, ["one"], 2, may_be_random=True)[0]["last"][0, 0] == -10  # pyright: ignore[reportPrivateUsage]


def test_figures_compare_the_ensemble_with_each_rival_and_count_ties() -> None:
    scores, sweep, _ = seerl._scores(outcomes(VALUES), ["one", "two"], 2)  # pyright: ignore[reportPrivateUsage]
    scores["best"] = scores["ensemble"].copy()
    scores["plain"] = scores["ensemble"] + np.array([[0.5, -0.1], [-0.1, -0.1]])
    figures = {each.name: each for each in seerl._figures(scores, sweep, ["one", "two"])}  # pyright: ignore[reportPrivateUsage]
    assert figures["ensemble.iqm"].value == pytest.approx(5.5 / 8)
    assert figures["ahead_of_last"].value == pytest.approx(3 / 8)
    assert figures["ahead_of_annealed"].value == pytest.approx(-2 / 8)
    assert figures["ahead_of_annealed.low"].value == pytest.approx(-2 / 8)
    assert figures["tasks_not_behind_best"].value == 100.0
    assert figures["tasks_not_behind_plain"].value == 50.0
    assert "level: one, two" in figures["tasks_not_behind_best"].note
    assert "ahead: two; behind: one" in figures["tasks_not_behind_plain"].note
    assert figures["tasks_not_behind_annealed"].value == 0.0
    assert figures["lambda_10.ahead_of_0"].value == pytest.approx(-2 / 8)
    assert figures["lambda_10.ahead_of_100"].value == 0.0
    assert figures["ensemble.above_0.5"].value == 100.0
    assert figures["last.above_0.25"].value == 50.0
    assert seerl._subsets(outcomes(VALUES)).samples == (2.0,) * 4  # pyright: ignore[reportPrivateUsage]
    assert not seerl.SEERL.targets["lambda_10.ahead_of_100"].holds(0.0)
