"""What choosing and judging look at: which episodes, every λ, and only snapshots that are good enough."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from implanted_run import ALIKE, BAD, SURE, UNSURE, implanted

from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Silent
from ziggurat.core.sealed import write_sealed_json
from ziggurat.policies import run_folder
from ziggurat.policies.agents import play as playing
from ziggurat.policies.agents.member import Member
from ziggurat.policies.choosing import choose
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.judging import judge, read_selection
from ziggurat.policies.training import train
from ziggurat.report.policies.page import write_policies

FOUR = (SURE, ALIKE, UNSURE, BAD)


class Noted(Silent):
    """Keeps notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choice") / "run"
    implanted(folder, FOUR)
    return folder


def changed(folder: Path, **sections: Any) -> PoliciesConfig:
    values = run_folder.read_config(folder).model_dump(mode="json")
    return PoliciesConfig.model_validate({key: {**each, **sections.get(key, {})} if key in sections else each
                                          for key, each in values.items()})  # fmt: skip


def test_what_chooses_is_never_what_judges(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[list[int]] = []
    play = playing.play

    def watched(task: Any, act: Any, seeds: Any, **rest: Any) -> Any:
        played.append(list(seeds))
        return play(task, act, seeds, **rest)

    monkeypatch.setattr(playing, "play", watched)
    settings = changed(four, selection={"first_seed": 500, "diversity": (0.0, 1e6)}, evaluation={"first_seed": 900})
    found = choose(four, settings)
    chose, played[:] = list(played), []
    assert len(chose) == 4 + len(found.candidates) - 1  # the best snapshot alone has played already
    assert all(seeds == [500, 501, 502, 503] for seeds in chose)
    judge(four)
    assert len(played) >= 4 + 1
    assert all(seeds == [900, 901, 902] for seeds in played)


def test_every_weight_proposes_members_that_are_good_enough(four: Path) -> None:
    rule = {"ensemble": {"discrete": ("add",)}}

    def members(weights: tuple[float, ...], tolerance: float) -> list[tuple[int, ...]]:
        selection = {"diversity": weights, "tolerance": tolerance}
        *ensembles, alone = choose(four, changed(four, selection=selection, **rule)).candidates
        assert alone.members == (1,)
        return [each.members for each in ensembles]

    found = choose(four, changed(four, **rule))
    assert found.means[:3] == [30.0] * 3
    assert found.means[3] < 12
    assert members((0.0,), 0.5) == [(1, 2)]
    assert members((1e6,), 0.5) == [(1, 3)]  # the farthest of those that balance the pole
    assert members((1e6,), 1.0) == [(1, 4)]  # the farthest of all
    assert members((0.0, 1e6), 0.5) == [(1, 2), (1, 3)]
    assert members((1e6, 0.0), 0.5) == [(1, 3), (1, 2)]


def test_a_sweep_plays_the_members_of_each_weight(four: Path) -> None:
    choose(four, changed(four, selection={"diversity": (0.0,), "tolerance": 0.5}))
    judged = judge(four, changed(four, evaluation={"sweep": (0.0, 1e6)}))
    assert [each.members for each in judged.sweep] == [(1, 2), (1, 4)]  # every snapshot takes part, by default
    assert judged.sweep[0].divergence < judged.sweep[1].divergence
    assert judged.sweep[0].mean > judged.sweep[1].mean
    judged = judge(four, changed(four, evaluation={"sweep": (0.0, 1e6), "sweep_tolerance": 0.5}))
    assert [each.members for each in judged.sweep] == [(1, 2), (1, 3)]


def test_members_stay_chosen_as_they_were_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    implanted(folder, FOUR)
    found = choose(folder, changed(folder, selection={"members": 3, "tolerance": 0.5}))
    assert (found.size, found.ensemble.members) == (3, (1, 2, 3))
    noted = Noted()
    train(changed(folder, selection={"members": 2}, evaluation={"sweep": (0.0,)}), folder, progress=noted)
    assert len(noted.notes) == 1
    assert "members were chosen with selection.members 3, the config has 2" in noted.notes[0]
    assert read_selection(folder) == found
    judged = judge(folder)
    assert judged.ensemble.members == judged.sweep[0].members == (1, 2, 3)
    again = Noted()
    choose(folder)
    train(run_folder.read_config(folder), folder, progress=again)
    assert again.notes == []


def test_a_choice_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    implanted(folder, FOUR)
    found = choose(folder, changed(folder, selection={"members": 3}))
    values = asdict(found)
    del values["size"]
    write_sealed_json(folder / run_folder.SELECTION_FILE, {"version": run_folder.VERSION, **values})
    assert read_selection(folder) == replace(found, size=0)
    assert {len(each.members) for each in judge(folder).sweep} == {3}


def test_divergences_have_equal_shares_of_all_episodes(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last snapshot's episodes are shorter than its share."""
    seen: list[np.ndarray] = []
    played: list[set[bytes]] = []
    act, play = Member.actions, playing.play

    def watched_actions(self: Member, observations: np.ndarray) -> Any:
        seen.append(observations)
        return act(self, observations)

    def watched_play(*arguments: Any, **rest: Any) -> Any:
        found = play(*arguments, **rest)
        if found.observations is not None:
            played.append({each.tobytes() for each in found.observations})
            seen.clear()
        return found

    monkeypatch.setattr(Member, "actions", watched_actions)
    monkeypatch.setattr(playing, "play", watched_play)
    found = choose(four, changed(four, selection={"states": 200}))
    share = int(sum(found.returns[3]))  # a reward for each step
    assert share < 200 / 4
    states = seen[0]  # after all snapshots have played
    assert all((each == states).all() for each in seen[:4])
    assert len(states) == 4 * share
    for number, episodes in enumerate(played):
        assert {each.tobytes() for each in states[number * share :][:share]} <= episodes


def test_a_run_without_a_sweep_is_drawn(four: Path) -> None:
    choose(four)
    judge(four, changed(four, evaluation={"sweep": (0.0, 1.0)}))
    with_sweep = write_policies(four).read_text(encoding="utf-8")
    assert judge(four, changed(four, evaluation={"sweep": ()})).sweep == ()
    without = write_policies(four).read_text(encoding="utf-8")
    assert "Return over the diversity of the members" in without
    assert "Return over λ" in with_sweep
    assert "Return over λ" not in without


def test_the_best_snapshot_alone_is_a_candidate(tmp_path: Path) -> None:
    """A good policy with two bad ones is worse than alone: its votes are outnumbered."""
    implanted(tmp_path / "run", [BAD, BAD, SURE], selection={"members": 3, "tolerance": 1.0})
    found = choose(tmp_path / "run")
    assert found.ensemble.members == (3,) == (found.best,)
    assert found.ensemble.returns == found.returns[2]
    assert found.candidates[0].members == (1, 2, 3)
    assert found.candidates[0].mean < found.ensemble.mean
    judged = judge(tmp_path / "run")
    assert judged.ensemble.members == (3,)
    assert judged.ensemble.mean == judged.best_snapshot.mean
    assert {each.members for each in judged.sweep} == {(1, 2, 3)}


@pytest.mark.parametrize("best", range(-4, 6))
def test_what_brought_most_is_chosen(four: Path, best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of snapshots and ensembles whose returns are made up; a negative place is that of a snapshot from the end."""
    order = [("snapshot", place) for place in range(4)] + [("ensemble", place) for place in range(6)]
    wanted = ("snapshot", 4 + best) if best < 0 else ("ensemble", best)
    played: list[tuple[tuple[Member, ...], str]] = []
    play = playing.play

    def made_up(task: Any, act: Any, seeds: Any, **rest: Any) -> Any:
        found = play(task, act, seeds, **rest)
        place = len(played)
        played.append((act.__self__.members, act.__self__.rule))
        mean = 10.0 if order[place] == wanted else 2.0 if place == 1 else 1.0 - place / 100
        return replace(found, returns=[mean] * len(seeds))

    monkeypatch.setattr(playing, "play", made_up)
    rules = {"discrete": ("vote", "add", "multiply")}
    settings = changed(four, selection={"diversity": (0.0, 1e6), "tolerance": 1.0, "members": 2}, ensemble=rules)
    found = choose(four, settings)
    assert len(played) == len(order)
    assert len({each.members for each in found.candidates[:-1]}) == 2
    by_snapshot = [members[0] for members, _ in played[:4]]
    members, rule = played[order.index(wanted)]
    assert found.ensemble.members == tuple(by_snapshot.index(each) + 1 for each in members)
    assert found.ensemble.rule == rule
    assert found.ensemble.mean == 10.0


def test_the_record_of_what_was_trained_is_kept(four: Path) -> None:
    known = run_folder.read_config(four)
    other = known.model_copy(update={"task": known.task.model_copy(update={"max_steps": 10})})
    with pytest.raises(RunFolderError, match=r"was trained with task.max_steps 30, the config has 10"):
        choose(four, other)
    choose(four)
    with pytest.raises(RunFolderError, match=r"was trained with task.max_steps 30, the config has 10"):
        judge(four, other)
    fewer = known.model_copy(update={"selection": known.selection.model_copy(update={"members": 1})})
    judge(four, fewer)
    assert run_folder.read_config(four) == known
