"""The study by itself: what it asks for after a kill, and which trials it ends; nothing is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from ziggurat.core.errors import RunFolderError
from ziggurat.search.dimension import Choice, Interval
from ziggurat.search.space import Space
from ziggurat.search.study import RANDOM_TRIALS, Study

SPACE: Space = {"optimizer.lr": Interval(1e-4, 1e-1, log=True), "embeddings.dim": Choice((8, 16, 32))}
OWN = {"optimizer.lr": 1e-3, "embeddings.dim": 16}


def _study(path: Path, seed: int = 0, higher: bool = False) -> Study:
    return Study(path, SPACE, OWN, higher_is_better=higher, first_share=250, seed=seed)


def _loss(settings: dict[str, float]) -> float:
    return abs(settings["optimizer.lr"] - 0.02) + 0.01 * (settings["embeddings.dim"] != 32)


def _complete(study: Study, number: int) -> None:
    study.end(number, "complete", _loss(study.settings(number)))


def test_a_study_that_is_opened_again_asks_for_the_same_settings(tmp_path: Path) -> None:
    trials = RANDOM_TRIALS + 4
    whole = _study(tmp_path / "whole")
    for _ in range(trials):
        _complete(whole, whole.ask())
    for place in range(trials):
        study = _study(tmp_path / "parts")
        number = study.ask()
        asked = study.settings(number)
        reopened = _study(tmp_path / "parts")  # as after a kill
        assert reopened.unfinished() == [place]
        assert reopened.settings(number) == asked
        _complete(reopened, number)
    settings = [each.settings for each in _study(tmp_path / "parts").records()]
    assert settings == [each.settings for each in whole.records()]
    assert settings[0] == OWN
    assert len({str(each) for each in settings}) == trials
    other = _study(tmp_path / "other", seed=1)
    other.ask()
    number = other.ask()
    assert other.settings(number) != settings[1]


def test_a_kill_before_the_settings_were_chosen_loses_no_trial(tmp_path: Path) -> None:
    study = _study(tmp_path / "journal")
    study.ask()
    study = _study(tmp_path / "journal")
    assert study.records() == []
    assert study.unfinished() == [0]
    assert study.settings(0) == OWN


def test_a_trial_that_is_worse_than_two_thirds_is_ended(tmp_path: Path) -> None:
    for higher in (False, True):
        sign = -1 if higher else 1
        study = _study(tmp_path / f"journal-{higher}", higher=higher)
        answers: list[bool] = []
        for value in (0.9, 0.5, 0.6, 0.7, 0.4):
            number = study.ask()
            study.settings(number)
            assert not study.report(number, 100, sign * value)  # before the first rung nobody is compared
            answers.append(study.report(number, 250, sign * value))
        # the config is never ended, and none of the first that reach the rung
        assert answers == [False, False, False, True, False]
        assert study.report(3, 500, sign * 0.7) is False  # between two rungs nobody is compared
        study.end(3, "pruned")
        record = study.record(3)
        assert record.state == "pruned"
        assert record.value is None
        assert [share for share, _ in record.history] == [100, 250, 500]


def test_the_best_value_so_far_counts_and_undefined_ones_do_not(tmp_path: Path) -> None:
    study = _study(tmp_path / "journal")
    study.settings(study.ask())
    for share, value in ((100, 0.6), (200, 0.5), (300, 0.7), (300, 0.1), (400, float("nan"))):
        study.report(0, share, value)
    assert study.record(0).history == ((100, 0.6), (200, 0.5), (300, 0.5))


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    study = _study(tmp_path / "journal")
    _complete(study, study.ask())
    lines = (tmp_path / "journal").read_text().splitlines()
    (tmp_path / "journal").write_text("\n".join([lines[0], lines[1][:9], *lines[2:]]) + "\n")
    with pytest.raises(RunFolderError, match=r"journal: is damaged .*\n  hint: restore it from a copy"):
        _study(tmp_path / "journal")


def test_the_config_is_the_first_trial_even_outside_of_the_space(tmp_path: Path) -> None:
    own = {"optimizer.lr": 0.5, "embeddings.dim": 12}
    study = Study(tmp_path / "journal", SPACE, own, higher_is_better=False, first_share=250, seed=0)
    assert study.settings(study.ask()) == own
    study.end(0, "complete", 1.0)
    _complete(study, study.ask())
    best = study.best()
    assert best is not None
    assert best.number == 1
    assert set(best.settings) == set(SPACE)


def test_importances_do_without_a_config_outside_of_the_space(tmp_path: Path) -> None:
    own = {"optimizer.lr": 0.5, "embeddings.dim": 16}
    study = Study(tmp_path / "journal", SPACE, own, higher_is_better=False, first_share=250, seed=0)
    for _ in range(20):
        number = study.ask()
        study.end(number, "complete", _loss(study.settings(number)))
    importances = study.importances()
    assert importances.keys() == SPACE.keys()
    assert max(importances, key=lambda key: importances[key]) == "optimizer.lr"


def test_importances_rank_the_key_that_decides_first(tmp_path: Path) -> None:
    study = _study(tmp_path / "journal")
    assert study.importances() == {}
    for _ in range(20):
        number = study.ask()
        study.end(number, "complete", float(study.settings(number)["embeddings.dim"]))
    assert max(study.importances().items(), key=lambda each: each[1])[0] == "embeddings.dim"
