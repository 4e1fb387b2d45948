"""Runs of policies: training to the bit however it is interrupted, selection, evaluation, the page and the commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError, DivergedError, RunFolderError
from ziggurat.core.files import FolderInUse, locked_folder
from ziggurat.policies import run_folder
from ziggurat.policies.choosing import choose
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.judging import judge
from ziggurat.policies.training import train

pytest.importorskip("stable_baselines3")

SMALL: dict[str, dict[str, Any]] = {
    "a2c": {"n_steps": 8},
    "ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 2},
    "dqn": {"learning_starts": 40, "buffer_size": 100, "target_update": 30, "exploration_share": 0.9},
    "ddpg": {"learning_starts": 40, "buffer_size": 100, "batch_size": 16},
    "td3": {"learning_starts": 40, "buffer_size": 400, "batch_size": 16},
    "sac": {"learning_starts": 40, "buffer_size": 400, "batch_size": 16},
}


def config(algorithm: str = "ppo", **sections: Any) -> PoliciesConfig:
    is_continuous = algorithm in ("ddpg", "td3", "sac")
    values: dict[str, Any] = {
        "task": {"env": "Pendulum-v1" if is_continuous else "CartPole-v1", "max_steps": 30},
        "algorithm": {"name": algorithm, "hidden": (8,), **SMALL[algorithm]},
        "training": {"steps": 200, "cycles": 2, "rate": 1e-3, "environments": 2, "save_every": 40},
        "selection": {"members": 2, "episodes": 3, "states": 30, "tolerance": 1.0},
        "evaluation": {"episodes": 3, "sweep": (0.0, 10.0)},
    }
    return PoliciesConfig.model_validate({key: {**values.get(key, {}), **sections.get(key, {})} for key in values})


def stop_after(steps: int) -> Callable[[], signal.Signals | None]:
    asked = [0]

    def stop() -> signal.Signals | None:
        asked[0] += 1
        return signal.SIGTERM if asked[0] > steps else None

    return stop


def snapshots(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    return {each.name: load_file(each) for each in sorted((folder / "snapshots").glob("*.safetensors"))}


@pytest.mark.parametrize("algorithm", SMALL)
def test_training_resumes_to_the_bit(algorithm: str, tmp_path: Path) -> None:
    settings = config(algorithm, task={"normalise": algorithm in ("ppo", "td3")})
    whole = train(settings, tmp_path / "whole")
    assert (whole.snapshots, whole.signal) == (2, None)
    assert whole.steps >= 200
    stops = 0
    for after in (70, 100, 10_000):
        trained = train(settings, tmp_path / "parts", stop=stop_after(after))
        stops += trained.signal == signal.SIGTERM
    assert stops == 1 or stops == 2
    mine, theirs = snapshots(tmp_path / "whole"), snapshots(tmp_path / "parts")
    assert list(mine) == list(theirs) == ["cycle-001.safetensors", "cycle-002.safetensors"]
    for name, arrays in mine.items():
        assert arrays.keys() == theirs[name].keys()
        for key, values in arrays.items():
            assert values.tobytes() == theirs[name][key].tobytes(), (name, key)
        assert any("optimizer" in key and "avg" in key for key in arrays)
    one, other = (run_folder.read_record(tmp_path / each) for each in ("whole", "parts"))
    assert one is not None
    assert other is not None
    assert one.episodes == other.episodes
    assert one.agent == other.agent
    assert one.replay == other.replay
    before, after = mine.values()
    assert any((before[key] != after[key]).any() for key in before if key.startswith("policy/"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "run"
    train(config(training={"steps": 300, "cycles": 3, "save_every": None}), folder)
    choose(folder)
    judge(folder)
    return folder


def test_selection_and_evaluation_play_different_episodes_and_repeat(finished: Path, tmp_path: Path) -> None:
    first, judged = choose(finished), judge(finished)
    again, judged_again = choose(finished), judge(finished)
    assert (first, judged) == (again, judged_again)
    assert first.cycles == (1, 2, 3)
    assert first.ensemble.mean == max(each.mean for each in first.candidates)
    assert len(first.candidates) == 3 + 1  # one λ with three rules, and the best snapshot alone
    assert np.array(first.divergence).T.tolist() == np.array(first.divergence).tolist()
    assert judged.ensemble.members == first.ensemble.members
    assert [each.members for each in judged.snapshots] == [(1,), (2,), (3,)]
    assert judged.best_snapshot.members == (first.best,)
    assert len(judged.sweep) == 2
    with pytest.raises(ValueError, match="overlap"):
        config(evaluation={"first_seed": 1_000_002})
    with pytest.raises(RunFolderError, match="no members are chosen yet"):
        train(config(), tmp_path / "run")
        judge(tmp_path / "run")


def test_what_was_chosen_is_not_judged_by_the_episodes_that_chose_it(finished: Path) -> None:
    choose(finished)
    own = run_folder.read_config(finished)
    first = own.selection.first_seed
    for section, changes, message in (
        ("evaluation", {"first_seed": first + 2}, r"overlap with those from 1000000 to 1000002"),
        ("ensemble", {"temperature": 2.0}, r"ensemble\.temperature: received 2; the members were chosen with 1"),
    ):
        values = own.model_dump(mode="json")
        values["selection"]["first_seed"] = 5_000_000  # as if the config had been written anew
        values[section] |= changes
        with pytest.raises(ConfigError, match=message):
            judge(finished, PoliciesConfig.model_validate(values))


def test_another_choice_takes_the_film_of_the_last_one_along(finished: Path) -> None:
    judge_files = [finished / name for name in (run_folder.EVALUATION_FILE, run_folder.FILM_FILE)]
    for each in judge_files:
        each.touch()
    choose(finished)
    assert not any(each.exists() for each in judge_files)
    judge(finished)


@pytest.mark.parametrize("cycle", [2, 3])
def test_a_run_that_lacks_a_snapshot_is_refused(finished: Path, tmp_path: Path, cycle: int) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "snapshots" / f"cycle-00{cycle}.json").unlink()
    with pytest.raises(RunFolderError, match=f"the snapshot of cycle {cycle} is missing"):
        choose(copy)


def test_an_episode_may_be_longer_than_the_environment_is_registered_with() -> None:
    from ziggurat.policies.agents.environments import make_environment
    from ziggurat.policies.config import TaskConfig

    for steps in (700, 30):
        environment = make_environment(TaskConfig(env="CartPole-v1", max_steps=steps))
        assert environment.get_wrapper_attr("_max_episode_steps") == steps


def test_a_run_of_continuous_actions_is_chosen_judged_and_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(config("td3", training={"steps": 120}), folder)
    found = choose(folder)
    assert {each.rule for each in found.candidates} == {"mean", "bins", "density", "elimination"}
    judge(folder)
    result = CliRunner().invoke(app, ["policies", "report", str(folder)], catch_exceptions=False)
    page = Path(result.stdout.strip()).read_text(encoding="utf-8")
    assert page.count("<h2>") == 5
    for heading in ("Training", "Selection", "Evaluation", "Diversity", "An episode"):
        assert f"<h2>{heading}</h2>" in page
    assert "img-src data:" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)


@pytest.mark.parametrize("algorithm", ["ddpg", "td3"])
def test_exploration_has_the_deviation_of_the_config(algorithm: str) -> None:
    """In shares of half the range, which is that of the scaled actions that stable-baselines3 adds noise to."""
    from ziggurat.policies.agents.environments import training_environments
    from ziggurat.policies.agents.learner import make_agent

    settings = config(algorithm)
    own = settings.algorithm.model_copy(update={"noise": 0.3})
    envs = training_environments(settings.task, 2, 0.99)
    noise = make_agent(own, settings.task, envs, 1e-3, 0).action_noise  # pyright: ignore[reportAttributeAccessIssue]
    np.random.seed(0)
    drawn = np.array([noise() for _ in range(4000)])
    assert drawn.std() == pytest.approx(0.3, rel=0.05)
    assert abs(drawn.mean()) < 0.03


def test_the_callback_works_in_a_plain_training() -> None:
    from stable_baselines3 import A2C

    from ziggurat.policies.agents.ensemble_policy import EnsemblePolicy
    from ziggurat.policies.agents.member import Member
    from ziggurat.policies.agents.snapshot_callback import SnapshotCallback
    from ziggurat.policies.schedule import CyclicalRate

    rate, seen, rates = CyclicalRate(0.01, 100, 4), [], []
    agent = A2C("MlpPolicy", "CartPole-v1", n_steps=5, seed=0, device="cpu", policy_kwargs={"net_arch": [4]})

    def keep(cycle: int, model: Any) -> None:
        seen.append((cycle, model.num_timesteps))
        rates.append(model.policy.optimizer.param_groups[0]["lr"])

    agent.learn(100, callback=SnapshotCallback(100, 4, rate.rate, keep))
    assert seen == [(1, 25), (2, 50), (3, 75), (4, 100)]
    assert rates == pytest.approx([rate.rate(21)] * 4)  # the first step of the rollout that ends the cycle
    members = [Member(agent), Member(agent)]
    observations = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    expected, _ = agent.predict(observations, deterministic=True)
    for rule in ("vote", "add", "multiply"):
        assert EnsemblePolicy(members, rule).predict(observations)[0].tolist() == expected.tolist()
    with pytest.raises(ConfigError, match="does not suit discrete actions"):
        EnsemblePolicy(members, "mean")


@pytest.mark.parametrize("algorithm", ["ppo", "td3", "sac"])
def test_members_act_as_the_agent_that_they_were_saved_from(algorithm: str, tmp_path: Path) -> None:
    """A deterministic prediction of stable-baselines3, and that of a snapshot that was written and read."""
    from ziggurat.policies.agents.agent_tensors import restore_agent
    from ziggurat.policies.agents.environments import training_environments
    from ziggurat.policies.agents.learner import make_agent
    from ziggurat.policies.agents.load_members import load_members

    settings = config(algorithm, task={"env": "Pendulum-v1", "normalise": algorithm == "ppo"})
    train(settings, tmp_path)
    records = run_folder.read_snapshots(tmp_path)
    member = load_members(tmp_path, settings, records)[1]
    envs = training_environments(settings.task, 2, settings.algorithm.gamma)
    agent = make_agent(settings.algorithm, settings.task, envs, 1e-3, 0)
    restore_agent(agent, run_folder.read_snapshot(tmp_path, records[1]), tmp_path, run_folder.DAMAGE)
    arrays = run_folder.read_snapshot(tmp_path, records[1])
    momenta = sorted(name for name in arrays if name.endswith("/exp_avg"))
    without = {name: each for name, each in arrays.items() if name != momenta[0]}
    with pytest.raises(RunFolderError, match=f"has no array {momenta[0]}, which its other parameters have"):
        restore_agent(agent, without, tmp_path, run_folder.DAMAGE)
    observations = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    seen = envs.normalize_obs(observations) if algorithm == "ppo" else observations  # pyright: ignore[reportAttributeAccessIssue]
    expected, _ = agent.predict(seen, deterministic=True)
    actions = member.actions(observations)
    np.testing.assert_allclose(actions.action_ND, expected, rtol=1e-5, atol=1e-6)  # pyright: ignore[reportAttributeAccessIssue]


def test_damaged_and_foreign_folders_are_refused(finished: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    snapshot = folder / "snapshots" / "cycle-002.safetensors"
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunFolderError, match=r"cycle-002\.safetensors: is damaged"):
        choose(folder)
    arrays = load_file(finished / "snapshots" / "cycle-002.safetensors")
    key = next(each for each in arrays if each.endswith("action_net.weight"))
    save_file({**arrays, key: np.zeros((3, 3), np.float32)}, snapshot)
    run_folder.write_snapshot(folder, 2, 200, "ppo", load_file(snapshot))
    with pytest.raises(RunFolderError, match="expected float32 of shape"):
        choose(folder)
    run_folder.write_snapshot(folder, 2, 200, "ppo", {**arrays, "more": np.zeros(1)})
    with pytest.raises(RunFolderError, match="unknown array 'more'"):
        choose(folder)
    with pytest.raises(RunFolderError, match=r"trained with training\.steps 300, the config has 200"):
        train(config(training={"cycles": 3, "save_every": None}), folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(RunFolderError, match="is not empty"):
        train(config(), tmp_path / "other")
    with locked_folder(folder, "resting"), pytest.raises(FolderInUse, match="another process"):
        choose(folder)


@pytest.mark.parametrize(
    ("task", "algorithm", "problem"),
    [
        ({"env": "CartPol-v1"}, {"name": "ppo"}, "task.env: CartPol-v1"),
        ({"env": "CartPole-v1"}, {"name": "sac"}, "sac cannot act in CartPole-v1, whose actions are discrete"),
        ({"env": "Pendulum-v1"}, {"name": "dqn"}, "dqn cannot act in Pendulum-v1, whose actions are continuous"),
        ({"env": "FrozenLake-v1"}, {"name": "ppo"}, "has the observations Discrete"),
        ({"env": "os:system"}, {"name": "ppo"}, "without a module to import"),
        ({"env": "CartPole-v1"}, {"name": "ppo", "n_steps": 4, "batch_size": 64}, "16 steps are made between updates"),
    ],
)
def test_impossible_configs_are_named(
    task: dict[str, Any], algorithm: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, ValueError), match=re.escape(problem)):
        train(PoliciesConfig.model_validate({"task": task, "algorithm": algorithm}), tmp_path / "run")


def test_the_commands_stop_resume_choose_and_judge(tmp_path: Path) -> None:
    path, run = tmp_path / "small.yaml", tmp_path / "run"
    path.write_text(
        "name: small\ntask: {env: CartPole-v1, max_steps: 30}\n"
        "algorithm: {name: a2c, hidden: [8]}\n"
        "training: {steps: 3000, cycles: 2, save_every: 300}\n"
        "selection: {members: 2, episodes: 3, tolerance: 1}\nevaluation: {episodes: 3}\n"
    )
    command = [sys.executable, "-m", "ziggurat", "policies", "train", str(path), "--run", str(run)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None and not (run / "state").is_dir():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "of 3,000 steps are saved. Run the same command to resume." in said
    invoke = lambda *line: CliRunner(env={"COLUMNS": "200"}).invoke(app, ["policies", *map(str, line)])  # noqa: E731
    assert "steps are trained" in str(invoke("select", run).exception)
    assert "2 snapshots, 3,000 steps" in invoke("train", path, "--run", run).stdout
    assert "chosen: cycles 1, 2, " in invoke("select", run).stdout
    assert "3 episodes that decided nothing" in invoke("evaluate", run).stdout
    assert run_folder.read_config(run).selection.members == 2
    changed = invoke("select", run, "--set", "selection.members=1")
    assert re.search(r"chosen: cycles [12], ", changed.stdout)
    assert not (run / "evaluation.json").exists()
    refused = invoke("select", run, "--set", "training.steps=5")
    assert "only selection, ensemble, evaluation can be changed here" in str(refused.exception)


def test_importing_needs_no_extra_and_using_it_says_how_to_install_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "import ziggurat, ziggurat.policies.judging, ziggurat.report.policies.page\n"
        "from ziggurat.policies.config import PoliciesConfig\n"
        "try: ziggurat.train_policies(PoliciesConfig.model_validate({'task': {'env': 'CartPole-v1'}}), sys.argv[1])\n"
        "except ziggurat.EnvironmentMismatch as error: print(error.problem, '|', error.hint)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "stable_baselines3 is not installed | pip install 'ziggurat[rl]'" in done.stdout
    assert not (tmp_path / "run").exists()


def test_a_policy_that_diverges_is_told(tmp_path: Path) -> None:
    config = PoliciesConfig.model_validate(
        {
            "task": {"env": "Pendulum-v1"},
            "algorithm": {"name": "ppo", "n_steps": 64},
            "training": {"steps": 3000, "cycles": 2, "rate": 1000.0, "environments": 2, "schedule": "constant"},
            "selection": {"members": 1},
        }
    )
    with pytest.raises(DivergedError, match=r"training\.rate is 1000"):
        train(config, tmp_path / "run")
