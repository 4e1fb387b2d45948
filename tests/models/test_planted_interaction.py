"""Label = XOR of two ids: a second-order interaction that no sum of per-id weights can express."""

from __future__ import annotations

import math

import pytest
import torch
from model_cases import CONFIGS, dims_for
from torch import nn
from torch.nn import functional as F

from ziggurat.models import ModelConfig

IDS = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
LABELS = torch.tensor([[0.0], [1.0], [1.0], [0.0]])


def final_loss(config: ModelConfig) -> float:
    dims = dims_for(config, dense=0, features=2, dim=4)
    torch.manual_seed(0)
    tables = nn.ModuleList(nn.Embedding(2, dims.dim) for _ in range(2))
    model = config.build(dims)
    optimizer = torch.optim.Adam([*tables.parameters(), *model.parameters()], lr=0.02)
    loss = torch.zeros(())
    for _ in range(300):
        emb_BFD = torch.stack([table(IDS[:, f]) for f, table in enumerate(tables)], dim=1)
        loss = F.binary_cross_entropy_with_logits(model(torch.empty(4, 0), emb_BFD), LABELS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "logistic_regression"])
def test_interacting_models_learn_it(name: str) -> None:
    assert final_loss(CONFIGS[name]) < 0.02


def test_logistic_regression_cannot() -> None:
    """The best additive fit of XOR predicts one half everywhere, so the loss ends at ln 2 and cannot fall below."""
    assert final_loss(CONFIGS["logistic_regression"]) == pytest.approx(math.log(2), abs=1e-3)


def test_a_second_order_term_alone_is_enough() -> None:
    """The factorization machine and the cross network learn XOR without a hidden layer, hence without an MLP."""
    deepfm = CONFIGS["deepfm"].model_copy(update={"deep": type(CONFIGS["deepfm"].deep)(hidden=())})
    dcn = CONFIGS["dcn_v2"].model_copy(update={"deep": type(CONFIGS["dcn_v2"].deep)(hidden=())})
    assert final_loss(deepfm) < 0.05
    assert final_loss(dcn) < 0.05
