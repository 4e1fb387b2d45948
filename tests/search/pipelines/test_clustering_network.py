"""The deep clustering network against references written by hand, its clusters, and the policy on a known optimum."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from ziggurat.search.pipelines.clustering.config import PolicyConfig
from ziggurat.search.pipelines.clustering.descriptors import DESCRIPTORS, describe, standardised
from ziggurat.search.pipelines.clustering.network import (
    ClusteringNetwork,
    entropy,
    kl_loss,
    policy_loss,
    soft_assignment,
    target_assignment,
)
from ziggurat.search.pipelines.clustering.policy import ClusterPolicy
from ziggurat.search.pipelines.table import Table

D, C, L = 5, 3, 4


def points() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    z, centres = torch.randn(D, L, dtype=torch.float64), torch.randn(C, L, dtype=torch.float64)
    return z.requires_grad_(), centres.requires_grad_()


def assigned_by_hand(z: np.ndarray, centres: np.ndarray) -> np.ndarray:
    q = np.zeros((D, C))
    for i in range(D):
        for j in range(C):
            q[i, j] = 1 / (1 + sum((z[i, k] - centres[j, k]) ** 2 for k in range(L)))
        q[i] /= q[i].sum()
    return q


def test_assignments_targets_and_divergence() -> None:
    z, centres = points()
    q = assigned_by_hand(z.detach().numpy(), centres.detach().numpy())
    p = q**2 / q.sum(axis=0)
    p /= p.sum(axis=1, keepdims=True)
    q_DC = soft_assignment(z, centres)
    np.testing.assert_allclose(q_DC.detach().numpy(), q, rtol=1e-12)
    np.testing.assert_allclose(target_assignment(q_DC).numpy(), p, rtol=1e-12)
    divergence = sum(p[i, j] * np.log(p[i, j] / q[i, j]) for i in range(D) for j in range(C)) / D
    np.testing.assert_allclose(kl_loss(target_assignment(q_DC), q_DC).item(), divergence, rtol=1e-10)
    np.testing.assert_allclose(entropy(q_DC).item(), -(q * np.log(q)).sum() / D, rtol=1e-12)


def test_gradients_of_the_divergence_are_those_of_the_paper() -> None:
    z, centres = points()
    q_DC = soft_assignment(z, centres)
    p_DC = target_assignment(q_DC)
    kl_loss(p_DC, q_DC).backward()
    z_, m_, q, p = z.detach().numpy(), centres.detach().numpy(), q_DC.detach().numpy(), p_DC.numpy()
    by_z, by_centre = np.zeros((D, L)), np.zeros((C, L))
    for i in range(D):
        for j in range(C):
            difference = z_[i] - m_[j]
            pull = 2 / (1 + difference @ difference) * (p[i, j] - q[i, j]) * difference / D
            by_z[i] += pull  # Xie et al. 2016, equations 4 and 5, with a degree of freedom of 1
            by_centre[j] -= pull
    np.testing.assert_allclose(z.grad, by_z, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(centres.grad, by_centre, rtol=1e-9, atol=1e-14)


def test_gradients_of_the_policy_equal_finite_differences() -> None:
    z, centres = points()
    assignment = torch.tensor([0, 1, 2, 2, 0])

    def loss(values: torch.Tensor) -> torch.Tensor:
        q_DC = soft_assignment(values, centres.detach())
        return policy_loss(q_DC, assignment, 0.7) - 0.01 * entropy(q_DC)

    q = assigned_by_hand(z.detach().numpy(), centres.detach().numpy())
    expected = -0.7 * sum(np.log(q[i, a]) for i, a in enumerate(assignment.tolist())) + 0.01 * (q * np.log(q)).sum() / D
    np.testing.assert_allclose(loss(z).item(), expected, rtol=1e-12)
    assert torch.autograd.gradcheck(loss, (z,))


def test_a_network_that_is_pretrained_finds_planted_groups() -> None:
    random = np.random.default_rng(0)
    rows = 300
    columns = {f"normal{i}": random.normal(size=rows) for i in range(4)}
    columns |= {f"skewed{i}": random.lognormal(sigma=2, size=rows) for i in range(4)}
    holes = [np.where(random.random(rows) < 0.4, np.nan, random.integers(0, 3, rows)) for _ in range(4)]
    columns |= {f"holes{i}": values for i, values in enumerate(holes)}
    table = Table.of(columns, random.integers(0, 2, rows))
    descriptors = standardised(describe(table, np.arange(rows)))
    assert descriptors.shape == (12, len(DESCRIPTORS))
    policy = ClusterPolicy(descriptors, PolicyConfig(), seed=0, episodes=0)
    assert policy.pretraining[-1] < 0.5 * policy.pretraining[0]
    found = policy.likeliest().reshape(3, 4)
    assert (found == found[:, :1]).all()
    assert len(set(found[:, 0].tolist())) == 3


def test_descriptors_do_not_see_other_rows() -> None:
    random = np.random.default_rng(0)
    values, labels = random.normal(size=100), random.integers(0, 2, 100)
    rows = np.arange(80)
    before = describe(Table.of({"a": values, "b": values**2}, labels), rows)
    values[80:], labels[80:] = 1e6, 1 - labels[80:]
    np.testing.assert_array_equal(describe(Table.of({"a": values, "b": values**2}, labels), rows), before)


def test_a_policy_improves_on_a_bandit_with_a_known_optimum() -> None:
    descriptors = np.random.default_rng(0).normal(size=(6, 8))
    policy = ClusterPolicy(descriptors, PolicyConfig(clusters=2, pretraining=50), seed=0, episodes=400)
    optimum = np.array([0, 1, 1, 0, 1, 0])

    def expected() -> float:
        return float(policy.probabilities()[np.arange(6), optimum].mean())

    before = expected()
    for _ in range(400):
        assignment = policy.draw()
        policy.learn(assignment, float((assignment == optimum).mean()))
    assert expected() > before + 0.15
    assert (policy.likeliest() == optimum).all()


def test_snapshots_of_cycles_vote() -> None:
    descriptors = np.random.default_rng(0).normal(size=(12, 8))
    config = PolicyConfig(clusters=3, pretraining=50, cycles=3, learning_rate=0.1)
    policy = ClusterPolicy(descriptors, config, seed=0, episodes=30)
    random = np.random.default_rng(1)
    found: list[np.ndarray[Any, Any]] = []
    for episode in range(1, 31):
        policy.learn(policy.draw(), float(random.normal()))
        if episode % 10 == 0:
            found.append(policy.probabilities())
    together = np.stack(found)  # the last one is the policy now, which has one vote
    assert len({each.argmax(axis=1).tobytes() for each in found}) > 1  # they do not agree
    for members, voting in ((None, together), (2, together[-2:])):
        policy.config = config.model_copy(update={"members": members})
        for column, cluster in enumerate(policy.likeliest()):
            votes = np.bincount(voting[:, column].argmax(axis=1), minlength=3)
            most = np.flatnonzero(votes == votes.max())
            assert cluster == max(most, key=lambda each: voting[:, column, each].sum())
    policy.learn(policy.draw(), 5.0)
    policy.config = config.model_copy(update={"members": 1})
    assert policy.likeliest().tolist() == policy.probabilities().argmax(axis=1).tolist()


def test_a_step_has_the_gradient_of_all_four_parts_of_the_loss() -> None:
    descriptors = np.random.default_rng(0).normal(size=(D, 8))
    config = PolicyConfig(clusters=C, pretraining=20, kl=0.3, entropy=0.2)
    policy = ClusterPolicy(descriptors, config, seed=0, episodes=10)
    policy.learn(policy.draw(), 0.5)
    assignment = policy.draw()
    network = copy.deepcopy(policy.network)
    episode = policy.learn(assignment, 0.9)
    x_DK = torch.from_numpy(descriptors)
    q_DC, made_DK = network(x_DK)
    target_DC = (q_DC**2 / q_DC.sum(dim=0)).detach()
    target_DC = target_DC / target_DC.sum(dim=1, keepdim=True)
    chosen_D = q_DC[torch.arange(D), torch.from_numpy(assignment)]
    advantage = 1.0  # of the second reward: its difference from the first, divided by itself
    loss = -advantage * chosen_D.log().sum()
    loss = loss + 0.3 * (target_DC * (target_DC / q_DC).log()).sum() / D + ((made_DK - x_DK) ** 2).mean()
    loss = loss + 0.2 * (q_DC * q_DC.log()).sum() / D  # less its entropy
    network.zero_grad()
    loss.backward()
    assert episode.baseline == 0.5
    for ours, theirs in zip(policy.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_drawn_clusters_have_their_probabilities() -> None:
    network_seeds = [ClusteringNetwork(4, 3, seed).centres_CL[0, 0].item() for seed in (0, 0, 1)]
    assert network_seeds[0] == network_seeds[1] != network_seeds[2]
    policy = ClusterPolicy(
        np.random.default_rng(1).normal(size=(3, 4)), PolicyConfig(pretraining=0), seed=2, episodes=0
    )
    drawn = np.array([policy.draw() for _ in range(600)])
    shares = np.stack([(drawn == each).mean(axis=0) for each in range(3)], axis=1)
    np.testing.assert_allclose(shares, policy.probabilities(), atol=0.08)
