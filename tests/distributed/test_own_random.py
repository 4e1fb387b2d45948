"""A thread's own random numbers are those of torch's global generators, which stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.model_cases import CONFIGS, dims_for
from ziggurat.parallel.own_random import OwnRandom

SEED = 11
DRAWS: dict[str, Callable[[], Tensor]] = {
    "uniform_": lambda: torch.empty(5).uniform_(-1, 1),
    "normal_": lambda: torch.empty(5).normal_(1, 2),
    "random_": lambda: torch.empty(5, dtype=torch.int64).random_(100),
    "bernoulli_": lambda: torch.empty(5).bernoulli_(0.5),
    "exponential_": lambda: torch.empty(5).exponential_(),
    "geometric_": lambda: torch.empty(5).geometric_(0.3),
    "cauchy_": lambda: torch.empty(5).cauchy_(),
    "log_normal_": lambda: torch.empty(5).log_normal_(),
    "rand": lambda: torch.rand(2, 3),
    "randn": lambda: torch.randn(5, dtype=torch.float64),
    "randint": lambda: torch.randint(10, (5,)),
    "randperm": lambda: torch.randperm(6),
    "normal": lambda: torch.normal(torch.zeros(4), 1.0),
    "bernoulli": lambda: torch.bernoulli(torch.full((5,), 0.4)),
    "multinomial": lambda: torch.multinomial(torch.ones(5), 3),
    "poisson": lambda: torch.poisson(torch.ones(5)),
    "rand_like": lambda: torch.rand_like(torch.zeros(2, 3)),
    "randn_like": lambda: torch.randn_like(torch.zeros(2, 3)),
    "parameter": lambda: nn.Linear(3, 4).weight,
    "layers": lambda: torch.cat([p.reshape(-1) for p in nn.TransformerEncoderLayer(8, 2, 16).parameters()]),
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(4, 4)),
    "truncated": lambda: nn.init.trunc_normal_(torch.empty(50)),
    "sparse": lambda: nn.init.sparse_(torch.empty(8, 3), 0.2),
    "kaiming": lambda: nn.init.kaiming_normal_(torch.empty(4, 4)),
}


def both(draw: Callable[[], Any]) -> tuple[Any, Any]:
    """Returns what is drawn from the global generators, and from own ones; checks that these leave the global ones."""
    torch.manual_seed(SEED)
    wanted = [draw(), draw()]
    before = torch.get_rng_state()
    with OwnRandom(SEED):
        found = [draw(), draw()]
    assert torch.equal(torch.get_rng_state(), before)
    return wanted, found


@pytest.mark.parametrize("name", list(DRAWS))
def test_every_way_to_draw_gives_the_same_numbers(name: str) -> None:
    wanted, found = both(DRAWS[name])
    for left, right in zip(wanted, found, strict=True):
        assert torch.equal(left, right)


def test_contexts_nest_and_each_has_its_own_numbers() -> None:
    with OwnRandom(SEED):
        first = torch.rand(3)
        with OwnRandom(SEED):
            assert torch.equal(torch.rand(3), first)
        second = torch.rand(3)
    with OwnRandom(SEED):
        assert torch.equal(torch.cat([torch.rand(3), torch.rand(3)]), torch.cat([first, second]))


def test_nothing_is_drawn_for_shapes_alone() -> None:
    before = torch.get_rng_state()
    with OwnRandom(SEED), torch.device("meta"):
        nn.Linear(3, 4)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_every_model_has_the_same_initial_weights(name: str) -> None:
    config = CONFIGS[name]
    wanted, found = both(lambda: config.build(dims_for(config)).state_dict())
    for left, right in zip(wanted, found, strict=True):
        assert left.keys() == right.keys()
        for key, tensor in left.items():
            assert torch.equal(tensor, right[key]), key
