"""A learned policy that places tables on devices one after the other.

Tables are placed in the order of their predicted cost, the costliest first. For each table, a small network scores
every device from the table's embedding, the sum of the embeddings that the device holds, and the cost and memory of the
device with the table. Devices without enough memory are excluded. One network scores any number of devices and tables,
so a policy trained on small tasks can be used on larger ones (AutoShard, arXiv 2208.06399, section 3.3; DreamShard,
2210.02023, section 3.2).

It is trained by REINFORCE: several episodes of a task, rewards normalised by their mean and standard deviation, and an
entropy bonus. The reward is minus the predicted time of the slowest device divided by an even share of the time, minus
a penalty for exceeding memory. Our policy starts as a soft form of "the device that costs least" (a learned factor
times the device's cost with the table), so no episode is wasted on placements that any rule beats.

Shape legend: P episodes at once, N items, D devices, E embedding width, Q inputs of the scoring network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ziggurat.core.errors import DataError, shorten
from ziggurat.planning.autoshard.cost_network import EMBEDDING
from ziggurat.planning.autoshard.task import Floats, Ints, Task
from ziggurat.planning.autoshard.weights import Weights, load_weights, save_weights

SCALARS = 8
INPUTS = SCALARS + 2 * EMBEDDING
HIDDEN = 64
ENTROPY, LR = 1e-3, 5e-4
GREED = 20.0
"""Initial weight of a device's cost in its logit; the cost is in units of an even share."""
_SHAPES = {"mlp.0.weight": (HIDDEN, INPUTS), "mlp.0.bias": (HIDDEN,), "mlp.2.weight": (1, HIDDEN), "greed": ()}
_HINT = "leave it out for the policy that comes with ziggurat"


@dataclass(frozen=True, slots=True)
class Episodes:
    """Several placements of one task.

    Attributes:
        device_PN: the device of each item.
        reward_P: the reward of each episode.
        inputs: the scoring network's inputs at every step (N, P, D, Q), the allowed devices (N, P, D) and the choices
            (N, P); None unless the episodes are for training.
    """

    device_PN: Ints
    reward_P: Floats
    inputs: tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_], Ints] | None


class Policy:
    """Scores devices for a table.

    Args:
        weights: the weights of the scoring network.
        origin: how the policy was trained.
    """

    def __init__(self, weights: Weights, origin: dict[str, Any]) -> None:
        self.weights, self.origin = weights, origin

    @classmethod
    def untrained(cls, seed: int = 0) -> Policy:
        """Returns the policy that training starts from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(_arrays(_Scorer()), {})

    def save(self, path: Path) -> None:
        """Writes the weights to ``path``, and the origin also to a ``.json`` file of the same name."""
        save_weights(path, self.weights, self.origin)

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Loads a policy saved by :meth:`save`.

        Raises:
            DataError: the file is damaged, or of a version that this ziggurat does not know.
        """
        weights, origin = load_weights(path, _HINT, _SHAPES)
        if type(origin.get("rounds", 0)) is not int:
            raise DataError(f"{path}: rounds: received {shorten(origin['rounds'])}, expected a whole number", _HINT)
        return cls(weights, origin)

    def place(self, task: Task, episodes: int, draw: np.random.Generator | None, *, learning: bool = False) -> Episodes:
        """Returns ``episodes`` placements of the task.

        Args:
            task: the assignment problem.
            episodes: number of placements.
            draw: generator by which devices are drawn with the policy's probabilities; None takes the likeliest each
                time.
            learning: keeps the network's inputs for training, some hundred bytes for each table and device of an
                episode.
        """
        order = np.argsort(-task.single_N, kind="stable")
        rollout = _Rollout(task, episodes, order)
        seen: list[npt.NDArray[np.float32]] = []
        allowed: list[npt.NDArray[np.bool_]] = []
        for item in order:
            inputs_PDQ, legal_PD = rollout.observe(int(item))
            logits_PD = self.logits(inputs_PDQ, legal_PD)
            if draw is not None:
                logits_PD = logits_PD + draw.gumbel(size=logits_PD.shape)
            rollout.assign(int(item), logits_PD.argmax(1))
            if learning:
                seen.append(inputs_PDQ)
                allowed.append(legal_PD)
        inputs = (np.stack(seen), np.stack(allowed), rollout.device_PN[:, order].T) if learning else None
        return Episodes(rollout.device_PN, rollout.rewards(), inputs)

    def logits(self, inputs: npt.NDArray[np.float32], legal: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
        """Returns the logit of each device, (…, D), of the scoring network's inputs (…, D, Q); −∞ where not allowed."""
        weights = self.weights
        hidden = np.maximum(inputs @ weights["mlp.0.weight"].T + weights["mlp.0.bias"], 0)
        found = (hidden @ weights["mlp.2.weight"].T)[..., 0] - weights["greed"] * inputs[..., 0]
        return np.where(legal, found, -np.inf)


class _Rollout:
    """Episodes in progress."""

    def __init__(self, task: Task, episodes: int, order: Ints) -> None:
        self.task = task
        self.sums_PDE = np.repeat(task.sums_DE[None], episodes, 0)
        self.exchange_PD = np.repeat(task.exchange_D[None], episodes, 0)
        self.free_PD = np.repeat(task.free_D[None], episodes, 0)
        self.loads_PD = task.network.seconds(self.sums_PDE) + self.exchange_PD
        self.device_PN = np.zeros((episodes, task.items), np.int64)
        self.single_N = task.single_N
        self.even = max((self.single_N.sum() + self.loads_PD[0].sum()) / task.devices, 1e-12)
        self.left, self.bytes_left = self.single_N.sum(), task.bytes_N.sum()
        self.total, self.total_free = self.left, max(task.free_D.sum(), 1.0)

    def observe(self, item: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Returns the network's inputs for each device, and which devices are allowed.

        Allowed are the devices with enough memory for the item; if there are none, those with most free memory.
        """
        task = self.task
        after_PDE = self.sums_PDE + task.embedded_NE[item]
        self.after_PD = task.network.seconds(after_PDE) + self.exchange_PD + task.exchange_N[item]
        left_PD = self.free_PD - task.bytes_N[item]
        legal_PD = left_PD >= 0
        stuck_P = ~legal_PD.any(1)
        legal_PD[stuck_P] = left_PD[stuck_P] == left_PD[stuck_P].max(1, keepdims=True)
        ones_PD = np.ones_like(self.loads_PD)
        free = np.maximum(task.free_D, 1.0)
        scalars = [
            self.after_PD / self.even,
            self.loads_PD / self.even,
            (self.after_PD - self.after_PD.min(1, keepdims=True)) / self.even,
            self.single_N[item] / self.even * ones_PD,
            self.free_PD / free,
            task.bytes_N[item] / free * ones_PD,
            self.left / max(self.total, 1e-12) * ones_PD,
            self.bytes_left / self.total_free * ones_PD,
        ]
        embedded_PDE = np.broadcast_to(np.log1p(task.embedded_NE[item]), self.sums_PDE.shape)
        inputs_PDQ = np.concatenate([np.stack(scalars, -1), embedded_PDE, np.log1p(self.sums_PDE)], -1)
        return inputs_PDQ.astype(np.float32), legal_PD

    def assign(self, item: int, device_P: Ints) -> None:
        rows = np.arange(len(device_P))
        self.sums_PDE[rows, device_P] += self.task.embedded_NE[item]
        self.exchange_PD[rows, device_P] += self.task.exchange_N[item]
        self.free_PD[rows, device_P] -= self.task.bytes_N[item]
        self.loads_PD[rows, device_P] = self.after_PD[rows, device_P]
        self.device_PN[:, item] = device_P
        self.left -= self.single_N[item]
        self.bytes_left -= self.task.bytes_N[item]

    def rewards(self) -> Floats:
        overflow_P = np.maximum(-self.free_PD, 0).sum(1) / self.total_free
        return -self.loads_PD.max(1) / self.even - 10 * overflow_P


class _Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        last = nn.Linear(HIDDEN, 1, bias=False)
        self.mlp = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), last)
        self.greed = nn.Parameter(torch.tensor(GREED))
        nn.init.zeros_(last.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.mlp(inputs)[..., 0] - self.greed * inputs[..., 0]


class Learner:
    """Trains a policy, task after task.

    Args:
        policy: the policy to start from.
        seed: seed for the episodes.
    """

    def __init__(self, policy: Policy, seed: int = 0) -> None:
        self._scorer = _Scorer()
        self._scorer.load_state_dict({name: torch.from_numpy(np.array(w)) for name, w in policy.weights.items()})
        self._optimizer = torch.optim.Adam(self._scorer.parameters(), LR)
        self._draw = np.random.default_rng(seed)

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate of the following updates; it is :data:`LR` otherwise."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    @property
    def policy(self) -> Policy:
        return Policy(_arrays(self._scorer), {})

    def learn(
        self, tasks: Sequence[Task], episodes: int, on_task: Callable[[float], None] = lambda reward: None
    ) -> None:
        """Updates the policy once from ``episodes`` of each task; ``on_task`` is called with each mean reward."""
        for task in tasks:
            played = self.policy.place(task, episodes, self._draw, learning=True)
            reward_P = torch.from_numpy(played.reward_P).float()
            advantage_P = (reward_P - reward_P.mean()) / (reward_P.std() + 1e-6)
            assert played.inputs is not None
            inputs, allowed, choices = (torch.from_numpy(each) for each in played.inputs)
            logits = self._scorer(inputs).masked_fill(~allowed, -torch.inf)
            chances = logits.log_softmax(-1)
            chosen = chances.gather(-1, choices[..., None])[..., 0]
            entropy = -(chances.exp() * chances.masked_fill(~allowed, 0.0)).sum(-1)
            loss = -(advantage_P * chosen.mean(0)).mean() - ENTROPY * entropy.mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            on_task(float(reward_P.mean()))


def _arrays(module: nn.Module) -> Weights:
    return {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}
