"""Members made of values: probabilities are those of Boltzmann at the temperature."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import torch
from stable_baselines3 import DQN

from ziggurat.policies.actions import Categorical
from ziggurat.policies.agents.member import Member


@pytest.mark.parametrize("temperature", [1.0, 0.2, 5.0])
def test_values_over_the_temperature_are_logits(temperature: float) -> None:
    agent = DQN("MlpPolicy", "CartPole-v1", seed=0, buffer_size=1, policy_kwargs={"net_arch": [8]}, device="cpu")
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    with torch.no_grad():
        values_NA = agent.policy.q_net(torch.from_numpy(observations)).double()
    found = Member(agent, temperature).actions(observations)
    assert isinstance(found, Categorical)
    np.testing.assert_allclose(found.log_NA, torch.log_softmax(values_NA / temperature, -1).numpy(), rtol=1e-5)
