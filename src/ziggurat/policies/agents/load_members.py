"""Makes policies that act of the snapshots of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ziggurat.policies import run_folder
from ziggurat.policies.agents.agent_tensors import restore_agent
from ziggurat.policies.agents.environments import training_environments
from ziggurat.policies.agents.learner import make_agent
from ziggurat.policies.agents.member import Member
from ziggurat.policies.config import A2CConfig, DDPGConfig, PoliciesConfig, PPOConfig, TD3Config
from ziggurat.policies.run_folder import SnapshotRecord


def load_members(folder: Path, config: PoliciesConfig, snapshots: Sequence[SnapshotRecord]) -> list[Member]:
    """Returns the policy of each snapshot.

    Raises:
        RunFolderError: a snapshot is damaged, or of another algorithm than the config's.
    """
    return [_load(folder, config, each) for each in snapshots]


def _load(folder: Path, config: PoliciesConfig, snapshot: SnapshotRecord) -> Member:
    where, algorithm = run_folder.snapshot_path(folder, snapshot.cycle), config.algorithm
    if snapshot.algorithm != algorithm.name:
        raise run_folder.DAMAGE.of(
            where, f"is a snapshot of {snapshot.algorithm[:40]!r}, the run's is {algorithm.name}"
        )
    arrays = run_folder.read_snapshot(folder, snapshot)
    if not isinstance(algorithm, A2CConfig | PPOConfig):
        algorithm = algorithm.model_copy(update={"buffer_size": 1})  # nothing is learned any more
    envs = training_environments(config.task, 1, algorithm.gamma)
    if isinstance(algorithm, PPOConfig):
        algorithm = algorithm.model_copy(update={"n_steps": max(algorithm.n_steps, algorithm.batch_size)})
    agent = make_agent(algorithm, config.task, envs, config.training.rate, config.training.seed)
    restore_agent(agent, arrays, where, run_folder.DAMAGE)
    deviation = config.algorithm.noise if isinstance(config.algorithm, DDPGConfig | TD3Config) else 0.0
    member = Member(agent, config.ensemble.temperature, deviation)
    envs.close()
    return member
