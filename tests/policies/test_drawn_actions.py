"""Actions that are drawn instead of the most favoured ones: by which probabilities, when, and that they repeat."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from implanted_run import SURE, UNSURE, implanted

from ziggurat.core.errors import ConfigError
from ziggurat.policies import run_folder
from ziggurat.policies.agents.ensemble_policy import EnsemblePolicy
from ziggurat.policies.agents.load_members import load_members
from ziggurat.policies.choosing import choose, rules_of
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.discrete_rules import DiscreteRule, drawn_action
from ziggurat.policies.judging import judge, read_selection
from ziggurat.policies.training import train
from ziggurat.report.policies.page import write_policies

RULES: tuple[DiscreteRule, ...] = ("vote", "add", "multiply")
POLICIES = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
STATES = 40_000


def by_votes(p: np.ndarray) -> np.ndarray:
    """The probability of each action when each policy draws a vote, by going through all votes."""
    found = np.zeros(p.shape[1])
    for votes in itertools.product(range(p.shape[1]), repeat=len(p)):
        counts = np.bincount(votes, minlength=p.shape[1])
        tied = np.flatnonzero(counts == counts.max())
        found[tied[p.sum(0)[tied].argmax()]] += np.prod([p[k, vote] for k, vote in enumerate(votes)])
    return found


REFERENCES = {
    "vote": by_votes,
    "add": lambda p: p.mean(0),
    "multiply": lambda p: np.prod(p, 0) ** (1 / len(p)) / (np.prod(p, 0) ** (1 / len(p))).sum(),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("policies", [1, 2, 3])
def test_actions_have_the_probabilities_of_the_rule(rule: DiscreteRule, policies: int) -> None:
    p = POLICIES[:policies]
    log_MNA = np.repeat(np.log(p)[:, None], STATES, 1)
    draws = np.random.default_rng(0).random((policies, STATES))
    found = np.bincount(drawn_action(rule, log_MNA, draws), minlength=3) / STATES
    expected = REFERENCES[rule](p)
    assert expected.sum() == pytest.approx(1)
    deviation = np.sqrt(expected * (1 - expected) / STATES)
    assert (np.abs(found - expected) < 4 * deviation).all(), (found, expected)


def test_all_rules_draw_alike_of_one_policy_and_never_what_is_impossible() -> None:
    draw = np.random.default_rng(1)
    logits = draw.normal(0, 3, (1, 500, 5))
    logits[..., 2] = -np.inf
    log_MNA = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    draws = draw.random((1, 500))
    draws[0, :2] = 0.0, np.nextafter(1.0, 0.0)
    found = [drawn_action(rule, log_MNA, draws).tolist() for rule in RULES]
    assert found[0] == found[1] == found[2]
    assert set(found[0]) == {0, 1, 3, 4}


def test_a_seed_repeats_draws_and_predict_draws_when_asked(tmp_path: Path) -> None:
    config = implanted(tmp_path, [UNSURE / 10, UNSURE / 20])
    members = load_members(tmp_path, config, run_folder.read_snapshots(tmp_path))
    observations = np.tile(np.float32([[0, 0, 0.5, 0.5]]), (200, 1))
    likeliest = EnsemblePolicy(members, "add").act(observations)
    assert set(likeliest.tolist()) == {1}

    def drawn(seed: int | None) -> list[int]:
        return EnsemblePolicy(members, "add", drawn=True, seed=seed).act(observations).tolist()

    assert set(drawn(3)) == {0, 1}
    assert drawn(3) == drawn(3) != drawn(4)
    assert drawn(None) != drawn(None)
    policy = EnsemblePolicy(members, "add", drawn=True, seed=0)
    assert policy.predict(observations)[0].tolist() == likeliest.tolist()
    assert set(policy.predict(observations, deterministic=False)[0].tolist()) == {0, 1}


def config(env: str, algorithm: str, **ensemble: object) -> PoliciesConfig:
    values = {"task": {"env": env}, "algorithm": {"name": algorithm}, "ensemble": ensemble}
    return PoliciesConfig.model_validate(values)


def test_the_default_draws_what_actors_do_in_atari_games() -> None:
    assert config("ALE/Boxing-v5", "ppo").is_drawn
    assert config("ALE/Boxing-v5", "a2c").is_drawn
    assert not config("ALE/Boxing-v5", "dqn").is_drawn
    assert not config("CartPole-v1", "ppo").is_drawn
    assert not config("ALE/Boxing-v5", "ppo", drawn=False).is_drawn
    assert config("CartPole-v1", "ppo", drawn=True).is_drawn


def test_a_choice_is_judged_as_it_was_made(tmp_path: Path) -> None:
    settings = implanted(tmp_path, [SURE, UNSURE / 40, UNSURE / 50], ensemble={"drawn": True, "discrete": ["add"]})
    found = choose(tmp_path, settings)
    assert found.drawn
    assert found.means[0] == 30.0  # so sure that draws change nothing
    assert found.means[1] < 30.0  # the likeliest action would balance the pole as well
    judged = judge(tmp_path)
    assert judged.snapshots[1].mean < 30.0 == judged.snapshots[0].mean
    assert (choose(tmp_path), judge(tmp_path)) == (found, judged)
    assert "drawn from the probabilities" in write_policies(tmp_path).read_text(encoding="utf-8")
    other = settings.model_copy(update={"ensemble": settings.ensemble.model_copy(update={"drawn": False})})
    with pytest.raises(
        ConfigError, match=r"ensemble\.drawn: received False; the members were chosen with actions drawn"
    ):
        judge(tmp_path, other)
    assert choose(tmp_path, other).means[1] == 30.0
    assert read_selection(tmp_path) != found
    assert judge(tmp_path).snapshots[1].mean == 30.0


def test_continuous_actions_are_never_drawn(tmp_path: Path) -> None:
    from gymnasium import spaces

    settings = config("Pendulum-v1", "ppo", drawn=True)
    with pytest.raises(ConfigError, match=r"ensemble\.drawn: Pendulum-v1 has continuous actions"):
        rules_of(settings, spaces.Box(-1, 1, (1,)))
    assert rules_of(config("Pendulum-v1", "ppo"), spaces.Box(-1, 1, (1,))) == settings.ensemble.continuous
    values = {
        "algorithm": {"name": "ppo", "n_steps": 16, "batch_size": 16, "hidden": (4,)},
        "training": {"steps": 64, "cycles": 2, "environments": 2},
        "selection": {"members": 2},
    }
    settings = PoliciesConfig.model_validate({**settings.model_dump(), **values})
    train(settings, tmp_path / "run")
    with pytest.raises(ConfigError, match="never drawn"):
        choose(tmp_path / "run")
