"""The config of a run of policies: the task, the algorithm, the cycles, how members are chosen and judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from ziggurat.core.config import Config
from ziggurat.policies.continuous_rules import ContinuousRule
from ziggurat.policies.discrete_rules import DiscreteRule

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class AtariConfig(Config):
    """The preprocessing of Atari games, that of Machado et al. (arXiv 1709.06009) unless it says otherwise."""

    observations: Literal["ram", "pixels"] = "ram"
    """ram: the 128 bytes of the console's memory, divided by 255; pixels: the brightness of the greater of the last two
    frames, averaged down to 84 × 84."""
    frame_skip: Count = 4
    """Frames for which an action is repeated."""
    sticky: Share = 0.25
    """Probability that the console repeats the last action instead of the new one, in each frame."""
    stack: Count = 4
    """Observations that are stacked, the latest last."""
    clip_rewards: bool = True
    """Train on the signs of the rewards; returns are always counted in the game's points."""
    full_action_space: bool = False
    """All 18 actions instead of those that the game uses."""


class TaskConfig(Config):
    """An environment of Gymnasium."""

    env: str
    """The id, such as CartPole-v1, HalfCheetah-v5 or ALE/Breakout-v5."""
    max_steps: Count | None = None
    """Steps after which an episode is cut off; default: the environment's own limit."""
    normalise: bool = False
    """Standardise observations and rewards by running statistics; each snapshot keeps those of its time."""
    atari: AtariConfig = AtariConfig()
    """For ids that begin with ALE/."""

    @pydantic.field_validator("env")
    @classmethod
    def _is_registered_id(cls, value: str) -> str:
        if ":" in value or not value.strip():
            raise ValueError("an id of a registered environment is allowed, without a module to import")
        return value

    @property
    def is_atari(self) -> bool:
        return self.env.startswith("ALE/")


class OnPolicy(Config):
    """Settings that A2C and PPO share."""

    hidden: tuple[Count, ...] = (64, 64)
    """Widths of the hidden layers of policy and value, after the convolutions where observations are pixels."""
    gamma: Share = 0.99
    gae_lambda: Share = 0.95
    ent_coef: NotNegative = 0.0
    vf_coef: NotNegative = 0.5
    max_grad_norm: Positive = 0.5


class A2CConfig(OnPolicy):
    """Advantage actor-critic (arXiv 1602.01783)."""

    name: Literal["a2c"] = "a2c"

    n_steps: Count = 5
    """Steps of each environment between updates."""
    gae_lambda: Share = 1.0


class PPOConfig(OnPolicy):
    """Proximal policy optimisation (arXiv 1707.06347)."""

    name: Literal["ppo"] = "ppo"

    n_steps: Annotated[int, Field(ge=2)] = 256
    """Steps of each environment between updates."""
    batch_size: Annotated[int, Field(ge=2)] = 64
    n_epochs: Count = 10
    clip_range: Positive = 0.2


class OffPolicy(Config):
    """Settings that the algorithms with a replay buffer share."""

    hidden: tuple[Count, ...] = (64, 64)
    gamma: Share = 0.99
    buffer_size: Count = 100_000
    """Transitions kept; all of them are stored with the training state."""
    learning_starts: int = Field(default=1000, ge=0)
    """Steps with random actions before the first update."""
    batch_size: Count = 256
    tau: Share = 0.005
    train_freq: Count = 1
    """Steps of each environment between updates."""
    gradient_steps: Count = 1
    """Updates each time."""


class DQNConfig(OffPolicy):
    """Deep Q-learning (Mnih et al. 2015)."""

    name: Literal["dqn"] = "dqn"

    batch_size: Count = 32
    tau: Share = 1.0
    train_freq: Count = 4
    target_update: Count = 1000
    """Steps between copies of the network into the target network."""
    exploration_share: Share = 0.1
    """Share of the training over which the share of random actions falls from 1."""
    exploration_end: Share = 0.05
    """The share of random actions from then on."""


class NoisyConfig(OffPolicy):
    """Settings that DDPG and TD3 share."""

    noise: NotNegative = 0.1
    """Standard deviation of the exploration, in shares of half the range of the actions; it is also the one with which
    divergences between these deterministic policies are computed, where it is above 0."""


class DDPGConfig(NoisyConfig):
    """Deep deterministic policy gradient (arXiv 1509.02971)."""

    name: Literal["ddpg"] = "ddpg"


class TD3Config(NoisyConfig):
    """Twin delayed deterministic policy gradient (arXiv 1802.09477)."""

    name: Literal["td3"] = "td3"

    policy_delay: Count = 2


class SACConfig(OffPolicy):
    """Soft actor-critic (arXiv 1801.01290), with a learned temperature."""

    name: Literal["sac"] = "sac"


AlgorithmConfig = Annotated[
    A2CConfig | PPOConfig | DQNConfig | DDPGConfig | TD3Config | SACConfig, Field(discriminator="name")
]


class TrainingConfig(Config):
    """How long is trained, and with which rate."""

    steps: Count = 100_000
    """T: steps of all environments together."""
    cycles: Count = 5
    """M: cycles of the rate, each of which leaves a snapshot at its end."""
    schedule: Literal["cyclical", "constant"] = "cyclical"
    """constant: the same rate throughout, with snapshots at the same steps; plain training, to compare with."""
    rate: Annotated[float, Field(gt=0, le=1000)] = 3e-4
    """α₀: the rate at the start of each cycle, or the constant one."""
    environments: Count = 4
    """Environments that are stepped in turn."""
    save_every: Count | None = None
    """Steps between saved states, from which training resumes; default: it resumes from the ends of cycles alone. At
    each of them all environments start new episodes with seeds of their own, whether or not training was interrupted
    there, and leave others unplayed: it should be several times the longest episode, in each environment."""
    seed: int = Field(default=0, ge=0, lt=2**31)

    @pydantic.model_validator(mode="after")
    def _cycles_fit(self) -> TrainingConfig:
        if self.cycles > self.steps:
            raise ValueError(f"cycles: {self.cycles} cycles of {self.steps} steps in all; use fewer cycles")
        return self


class SelectionConfig(Config):
    """How members are chosen among the snapshots."""

    members: Count = 3
    """m: size of the ensemble."""
    diversity: tuple[NotNegative, ...] = Field(default=(1.0,), min_length=1)
    """λ. Of several, the one whose ensemble does best in the selection's episodes is taken, the first of equal ones."""
    tolerance: Share = 0.5
    """δ, as a share of the range from the worst to the best snapshot's return: only snapshots within it of the best one
    can be members."""
    episodes: Count = 10
    """Episodes of each snapshot, and of each candidate ensemble."""
    states: Count = 512
    """States that divergences are computed on, drawn from the snapshots' episodes in equal shares."""
    first_seed: int = Field(default=1_000_000, ge=0, lt=2**31)
    """Seed of the first episode; the next ones have the following numbers."""


class EnsembleConfig(Config):
    """How members act together."""

    discrete: tuple[DiscreteRule, ...] = Field(default=("vote", "add", "multiply"), min_length=1)
    """Rules to choose from, in the selection's episodes, for discrete actions."""
    continuous: tuple[ContinuousRule, ...] = Field(default=("mean", "bins", "density", "elimination"), min_length=1)
    """The same for continuous actions."""
    temperature: Positive = 1.0
    """What DQN's values are divided by to make probabilities of them."""
    drawn: bool | None = None
    """Draw discrete actions from the members' probabilities instead of taking the most favoured ones. Default: for A2C
    and PPO on Atari games, where policies that never vary get caught (docs/decisions/0079)."""

    @pydantic.field_validator("discrete", "continuous")
    @classmethod
    def _are_different(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(value))


class EvaluationConfig(Config):
    """The episodes that decide nothing."""

    episodes: Count = 30
    """Episodes of each policy."""
    first_seed: int = Field(default=2_000_000, ge=0, lt=2**31)
    """Seed of the first episode; the next ones have the following numbers."""
    sweep: tuple[NotNegative, ...] = (0.0, 0.3, 1.0, 3.0, 10.0, 100.0)
    """Values of λ whose ensembles are played as well, to be drawn; none of them is chosen. They are sorted, without
    repetitions."""
    sweep_tolerance: Share = 1.0
    """δ of these ensembles, as a share of the range of the snapshots' returns in the selection's episodes; 1 lets every
    snapshot take part, so that λ alone decides."""

    @pydantic.field_validator("sweep")
    @classmethod
    def _rises(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sorted(set(value)))


class PoliciesConfig(Config):
    """A run of policies."""

    name: str = Field(default="policies", pattern=r"^[A-Za-z0-9._-]{1,80}$")
    task: TaskConfig
    algorithm: AlgorithmConfig = PPOConfig()
    training: TrainingConfig = TrainingConfig()
    selection: SelectionConfig = SelectionConfig()
    ensemble: EnsembleConfig = EnsembleConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def is_drawn(self) -> bool:
        """Whether discrete actions are drawn instead of the most favoured ones."""
        if self.ensemble.drawn is not None:
            return self.ensemble.drawn
        return self.task.is_atari and isinstance(self.algorithm, A2CConfig | PPOConfig)

    @pydantic.model_validator(mode="after")
    def _snapshots_are_enough(self) -> PoliciesConfig:
        members, cycles = self.selection.members, self.training.cycles
        if members > cycles:
            raise ValueError(
                f"selection.members: {members} of the snapshots of {cycles} cycles; give {cycles} or fewer, or more "
                "training.cycles"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _seeds_are_apart(self) -> PoliciesConfig:
        chosen, judged = self.selection, self.evaluation
        if (
            chosen.first_seed < judged.first_seed + judged.episodes
            and judged.first_seed < chosen.first_seed + chosen.episodes
        ):
            raise ValueError(
                f"evaluation.first_seed: its {judged.episodes} episodes from {judged.first_seed} on overlap with the "
                f"{chosen.episodes} of selection from {chosen.first_seed} on; give seeds that are apart"
            )
        return self


def differences(
    known: PoliciesConfig, config: PoliciesConfig, sections: Sequence[str]
) -> Iterator[tuple[str, object, object]]:
    """Yields the name of each key of these sections whose value changed, with the value before and now."""
    for section in sections:
        theirs, mine = (getattr(each, section).model_dump(mode="json") for each in (known, config))
        for key in dict.fromkeys((*mine, *theirs)):
            if mine.get(key) != theirs.get(key):
                yield f"{section}.{key}", theirs.get(key), mine.get(key)
