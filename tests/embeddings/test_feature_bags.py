"""Distinct rows are spread over bags as embedding_bag does it, and no number for each bag stays in memory."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.row_tiers.distinct_rows import DistinctRows
from ziggurat.embeddings.row_tiers.feature_bags import FeatureBags, bags_of_features

OPTIMIZER = {"name": "sgd", "lr": 0.1}
B, S, D = 300, 40, 4


def spec(pooling: str, *features: str) -> TableSpec:
    positions = {"history": S} if "history" in features else {}
    return TableSpec("item", 100, D, features, pooling, OPTIMIZER, 0.1, positions=positions)  # pyright: ignore[reportArgumentType]


def drawn(pooling: str, lengths: dict[str, Tensor]) -> tuple[list[FeatureBags], Tensor, dict[str, Tensor]]:
    """Returns the bags of features, the distinct rows with one of zeros, and each feature's ids."""
    random = torch.Generator().manual_seed(0)
    ids = {name: torch.randint(0, 100, (int(each.sum()),), generator=random) for name, each in lengths.items()}
    positions_U, inverse_L = torch.unique(torch.cat(list(ids.values())), return_inverse=True)
    distinct = DistinctRows(positions_U, inverse_L, [0], [0], [len(positions_U)])
    counted = [(len(ids[name]), each.int()) for name, each in lengths.items()]
    bags = bags_of_features(spec(pooling, *lengths), distinct, counted, B)
    rows_UD = torch.randn(len(positions_U) + 1, D, generator=random)
    rows_UD[-1] = 0
    parts = dict(zip(lengths, inverse_L.split([count for count, _ in counted]), strict=True))
    return bags, rows_UD, parts


def expected(pooling: str, rows_UD: Tensor, inverse_L: Tensor, lengths_N: Tensor) -> Tensor:
    """Returns what embedding_bag does, by example where the bags are positions."""
    offsets_N = lengths_N.cumsum(0) - lengths_N
    pooled_ND = F.embedding_bag(inverse_L, rows_UD, offsets_N, mode=pooling)
    return pooled_ND.view(S, B, D).transpose(0, 1) if len(lengths_N) == S * B else pooled_ND


def positions(longest: int) -> Tensor:
    """Returns the lengths of the bags of histories of up to so many ids, by position."""
    history_B = torch.randint(0, longest + 1, (B,), generator=torch.Generator().manual_seed(1))
    return (torch.arange(S).unsqueeze(1) < history_B).long().flatten()


def bag(longest: int) -> Tensor:
    return torch.randint(0, longest + 1, (B,), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize(
    "lengths",
    [
        {"item": bag(1), "history": positions(3)},
        {"item": bag(1), "history": positions(S)},
        {"item": bag(5), "history": positions(S)},
        {"item": bag(1), "history": torch.zeros(S * B, dtype=torch.long)},
        {"item": bag(3)},
        {"history": positions(S)},
    ],
    ids=["short", "long", "bags", "none", "bag", "alone"],
)
def test_values_and_gradients_are_those_of_embedding_bag(pooling: str, lengths: dict[str, Tensor]) -> None:
    bags, rows_UD, inverses = drawn(pooling, lengths)
    leaf_UD, sums_UD = rows_UD.clone().requires_grad_(), torch.zeros_like(rows_UD)
    assert [each.feature for each in bags] == list(lengths)
    for each in bags:
        wanted = expected(pooling, leaf_UD, inverses[each.feature], lengths[each.feature])
        found = each.pooled(rows_UD)
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-6, atol=1e-7)
        grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
        wanted.backward(grad)
        each.add_gradients(grad, sums_UD)
    assert leaf_UD.grad is not None
    torch.testing.assert_close(sums_UD[:-1], leaf_UD.grad[:-1], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("features", [("history",), ("item",), ("item", "history")])
def test_a_batch_without_examples_has_no_rows(features: tuple[str, ...]) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    lengths = [(0, none.int())] * len(features)
    bags = bags_of_features(spec("sum", *features), DistinctRows(none, none, [0], [0], [0]), lengths, 0)
    sums_UD = torch.zeros(1, D)
    for each in bags:
        rows = each.pooled(torch.zeros(1, D))
        assert rows.shape == ((0, S, D) if each.feature == "history" else (0, D))
        each.add_gradients(torch.ones_like(rows), sums_UD)
    assert not sums_UD.any()


def test_short_histories_take_no_memory_beside_their_rows() -> None:
    (bags,), rows_UD, _ = drawn("sum", {"history": positions(2)})
    grad, sums_UD = torch.ones(1).expand(B, S, D), torch.zeros_like(rows_UD)
    peaks: list[float] = []
    for step in (lambda: bags.pooled(rows_UD), lambda: bags.add_gradients(grad, sums_UD)):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            kept = step()
        results: Any = cast("Any", found.profiler).kineto_results
        changes = sorted((each.start_ns(), each.nbytes()) for each in results.events() if each.name() == "[memory]")
        peaks.append(torch.tensor([size for _, size in changes]).cumsum(0).max().item())
        del kept
    output, number_a_bag = 4 * B * S * D, 4 * B * S
    assert peaks[0] < output + number_a_bag  # the smallest map of bags to rows has a number for each
    assert peaks[1] < output / 2  # the gradient is not copied
