"""The weights' moving average: its formula, equality with torch's for constant decay, and swapping it in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ziggurat.optim.average import WeightAverage


def drifting(steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 2, generator=generator) for _ in range(steps)]


def test_it_is_the_mean_of_all_steps_weighted_by_age() -> None:
    live = {"w": torch.full((3, 2), 9.0)}
    average = WeightAverage(live, decay=0.8)
    past = drifting(30)
    for step, weight in enumerate(past, start=1):
        live["w"].copy_(weight)
        average.update(step)
        ages = torch.tensor([0.8 ** (step - s) for s in range(1, step + 1)])
        expected = (torch.stack(past[:step]) * ages[:, None, None]).sum(0) / ages.sum()
        torch.testing.assert_close(average.averages["w"], expected)


def test_a_constant_decay_equals_torchs_own_average() -> None:
    module = nn.Linear(3, 2, bias=False)
    peer = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    peer.update_parameters(module)  # its first call copies
    average = WeightAverage({"w": module.weight}, decay=0.9)
    for step, weight in enumerate(drifting(20), start=1000):
        with torch.no_grad():
            module.weight.copy_(weight.T)
        average.update(step)
        peer.update_parameters(module)
    [expected] = peer.module.parameters()
    torch.testing.assert_close(average.averages["w"], expected.detach())


def test_averages_are_swapped_in_only_within_the_context() -> None:
    live = {"w": torch.zeros(2), "count": torch.tensor(0)}
    average = WeightAverage(live, decay=0.75, copied={"count"})
    live["w"].fill_(4.0)
    live["count"].fill_(7)
    average.update(1000)
    with pytest.raises(KeyError), average.in_use():
        assert live["w"].tolist() == [1.0, 1.0]
        assert live["count"].item() == 7
        raise KeyError
    assert live["w"].tolist() == [4.0, 4.0]
    assert average.averages["w"].tolist() == [1.0, 1.0]
