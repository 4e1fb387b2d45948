"""The policy: a column's cluster is drawn from its soft assignment, and good rewards make what was drawn likelier.

With several cycles the step size falls and rises, and the snapshots at the ends of the cycles decide together which
cluster a column is in, as the ensembles of one training of SEERL do (:mod:`ziggurat.policies`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ziggurat.policies.discrete_rules import discrete_action
from ziggurat.policies.schedule import CyclicalRate
from ziggurat.search.pipelines.clustering.config import PolicyConfig
from ziggurat.search.pipelines.clustering.network import (
    ClusteringNetwork,
    entropy,
    kl_loss,
    plane,
    policy_loss,
    reconstruction_loss,
    target_assignment,
)
from ziggurat.search.pipelines.found import Episode
from ziggurat.search.pipelines.table import Floats, Ints


class ClusterPolicy:
    """Draws an assignment of D columns to clusters, and learns from its reward.

    The difference of reward and baseline is divided by its moving root mean square: scores differ by thousandths in one
    table and by tenths in another, and the loss has terms beside it. This is ours.

    Args:
        descriptors: (D, K), standardised.
        config: how it learns.
        seed: seeds weights, k-means and draws.
        episodes: how many are planned; they are divided into the cycles. Further ones repeat them.
    """

    def __init__(self, descriptors: Floats, config: PolicyConfig, seed: int, episodes: int) -> None:
        self.config = config
        self._x = torch.from_numpy(np.ascontiguousarray(descriptors, np.float64))
        clusters = min(config.clusters, len(descriptors))
        self.network = ClusteringNetwork(descriptors.shape[1], clusters, seed)
        self.pretraining = self.network.pretrain(self._x, steps=config.pretraining, seed=seed)
        self._optimizer = torch.optim.Adam(self.network.parameters(), config.learning_rate)
        self._random = np.random.default_rng([seed, 3])
        self._baseline: float | None = None
        self._square = 0.0
        self._episodes = 0
        cycles = config.cycles
        self._rate = CyclicalRate(config.learning_rate, max(episodes, cycles), cycles) if cycles > 1 else None
        self._snapshots: list[Tensor] = []

    @torch.no_grad()
    def probabilities(self) -> Floats:
        """Returns q, (D, C)."""
        return self.network(self._x)[0].numpy()

    def draw(self) -> Ints:
        """Returns a_D: the cluster of each column, drawn from its probabilities."""
        cumulative = self.probabilities().cumsum(axis=1)
        draws = self._random.random((len(cumulative), 1)) * cumulative[:, -1:]
        return (draws > cumulative).sum(axis=1).astype(np.int64)

    def likeliest(self) -> Ints:
        """Returns the cluster of each column: by the policy now and its latest snapshots together, if it has some.

        At the end of a cycle the policy now is its last snapshot, which is not counted twice. These are as many as
        ``config.members``, or all.
        """
        at_end = self._rate is not None and self._episodes and self._episodes % self._rate.length == 0
        members = self._snapshots if at_end else [*self._snapshots, torch.from_numpy(self.probabilities())]
        if self.config.members is not None:
            members = members[-self.config.members :]
        return discrete_action(self.config.rule, torch.stack(members).log().numpy()).astype(np.int64)

    def learn(self, assignment: Ints, reward: float) -> Episode:
        """Takes one step on the reward of an assignment that was drawn; the first reward is the first baseline."""
        baseline = reward if self._baseline is None else self._baseline
        difference, keep = reward - baseline, self.config.momentum
        self._baseline = keep * baseline + (1 - keep) * reward
        self._square = difference**2 if self._episodes <= 1 else keep * self._square + (1 - keep) * difference**2
        advantage = difference / max(np.sqrt(self._square), 1e-12) if difference else 0.0
        if self._rate is not None:
            self._optimizer.param_groups[0]["lr"] = self._rate.rate(self._episodes + 1)
        self._optimizer.zero_grad()
        q_DC, made_DK = self.network(self._x)
        parts = {
            "policy": policy_loss(q_DC, torch.from_numpy(assignment), float(advantage)),
            "kl": kl_loss(target_assignment(q_DC), q_DC),
            "reconstruction": reconstruction_loss(made_DK, self._x),
            "entropy": entropy(q_DC),
        }
        loss = parts["policy"] + self.config.kl * parts["kl"] + parts["reconstruction"]
        (loss - self.config.entropy * parts["entropy"]).backward()
        self._optimizer.step()
        losses = {name: float(value.item()) for name, value in parts.items()}
        chosen = tuple(int(each) for each in assignment)
        self._episodes += 1
        if self._rate is not None and self._episodes % self._rate.length == 0:
            self._snapshots = [*self._snapshots, torch.from_numpy(self.probabilities())][-self.config.cycles :]
        return Episode(self._episodes - 1, reward, baseline, losses, chosen, losses["entropy"])

    def coordinates(self) -> Floats:
        """Returns (D, 2): the plane in which the codes vary most."""
        return plane(self.network.codes(self._x))
