"""Batch norm on an epoch's last batch of a single row: training continues and the running statistics do not change."""

from __future__ import annotations

import torch

from ziggurat.interactions.mlp import MLP, BatchNorm


def test_one_row_is_normed_by_the_running_statistics() -> None:
    torch.manual_seed(0)
    mlp = MLP(5, MLP.Config(hidden=(4,), norm="batch"), outputs=2)
    for _ in range(3):
        mlp(torch.randn(16, 5))
    [norm] = [module for module in mlp.modules() if isinstance(module, BatchNorm)]
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    row = torch.randn(1, 5)
    trained = mlp(row)
    trained.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mlp.parameters())
    assert torch.equal(norm.running_mean, before)
    torch.testing.assert_close(trained, mlp.eval()(row))


def test_several_rows_are_normed_as_torch_does() -> None:
    ours, torchs = BatchNorm(4), torch.nn.BatchNorm1d(4)
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ours(rows), torchs(rows))
    assert torch.equal(ours.eval()(rows), torchs.eval()(rows))
