"""The lookup equals torch's own embedding_bag, forward and after training, for every optimizer, dim and sharing.

Tolerances: FBGEMM sums in another order than torch, so values agree to a few units in the last place of float32.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError, FeatureError
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import frequency_ranks
from ziggurat.core.schema import Schema
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.config import EmbeddingsConfig, TableConfig, table_specs
from ziggurat.embeddings.initial import fill_initial, fill_initial_rows
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.embeddings.sharding import inner_name
from ziggurat.optim.rows import RowAdagrad, RowAdam, RowOptimizerConfig, RowSGD, RowwiseAdagrad
from ziggurat.parallel.tensor_slices import gather

CPU = torch.device("cpu")
SCHEMA = Schema(
    categorical=("user", "item"),
    bags=("tags",),
    sequences=("history",),
    tables={"user": "user", "item": "item", "tags": "tags", "history": "item"},
    rows={"user": 50, "item": 30, "tags": 9},
    labels=("y",),
)
OPTIMIZERS: list[RowOptimizerConfig] = [
    RowSGD(lr=0.3),
    RowAdagrad(lr=0.1),
    RowwiseAdagrad(lr=0.1),
    RowAdam(lr=0.01),
    RowAdam(lr=0.01, weight_decay=0.1),
]


def make_batch(seed: int, size: int = 8) -> Batch:
    draw = np.random.default_rng(seed)

    def keyed(keys: list[str], lengths_KB: list[np.ndarray]) -> KeyedJaggedTensor:
        values = [
            draw.integers(0, SCHEMA.rows[SCHEMA.tables[key]], int(n.sum()))
            for key, n in zip(keys, lengths_KB, strict=True)
        ]
        return KeyedJaggedTensor(
            keys=keys,
            values=torch.from_numpy(np.concatenate(values)),
            lengths=torch.from_numpy(np.concatenate(lengths_KB).astype(np.int32)),
        )

    one = np.ones(size, np.int64)
    return Batch(
        dense_BF=torch.zeros(size, 0),
        bags=keyed(["user", "item", "tags"], [one, one, draw.integers(0, 4, size)]),
        sequences=keyed(["history"], [draw.integers(0, 5, size)]),
        labels_BT=torch.zeros(size, 1),
    ).validate(SCHEMA)


def make_lookup(config: EmbeddingsConfig, seed: int = 0) -> EmbeddingLookup:
    layout = lay_out(config, SCHEMA, {"tags": "sum", "history": "mean"})
    return EmbeddingLookup(layout, Plan.single_device(t.name for t in layout.tables), CPU, seed)


def reference(weights: dict[str, Tensor], tables: tuple[TableSpec, ...], batch: Batch) -> Tensor:
    """Returns (B, F, D) by torch's embedding_bag; differentiable in ``weights``."""
    pooling = {table.name: table.pooling for table in tables}
    vectors = []
    for jagged in (batch.bags, batch.sequences):
        assert jagged is not None
        for key, part in jagged.to_dict().items():
            table = SCHEMA.tables[key]
            offsets = part.lengths().long().cumsum(0) - part.lengths()
            vectors.append(F.embedding_bag(part.values(), weights[table], offsets, mode=pooling[table]))
    return torch.stack(vectors, dim=1)


def dense_step(kind: RowOptimizerConfig, weight: Tensor, grad: Tensor, state: dict[str, Tensor], step: int) -> Tensor:
    """Returns the weights after one update, computed from the equations."""
    touched = grad.abs().sum(1, keepdim=True) > 0
    match kind:
        case RowSGD():
            new = weight - kind.lr * grad
        case RowAdagrad():
            state["s"] = state.get("s", torch.zeros_like(weight)) + grad**2
            new = weight - kind.lr * grad / (state["s"].sqrt() + kind.eps)
        case RowwiseAdagrad():
            state["s"] = state.get("s", torch.zeros(len(weight), 1)) + (grad**2).mean(1, keepdim=True)
            new = weight - kind.lr * grad / (state["s"].sqrt() + kind.eps)
        case RowAdam():
            beta1, beta2 = kind.betas
            m, v = state.get("m", torch.zeros_like(weight)), state.get("v", torch.zeros_like(weight))
            state["m"] = torch.where(touched, beta1 * m + (1 - beta1) * grad, m)
            state["v"] = torch.where(touched, beta2 * v + (1 - beta2) * grad**2, v)
            update = (state["m"] / (1 - beta1**step)) / ((state["v"] / (1 - beta2**step)).sqrt() + kind.eps)
            new = weight * (1 - kind.lr * kind.weight_decay) - kind.lr * update
    return torch.where(touched, new, weight)


def test_forward_equals_embedding_bag() -> None:
    lookup = make_lookup(EmbeddingsConfig(dim=8, init_std=1.0))
    batch = make_batch(0)
    torch.testing.assert_close(
        lookup(batch), reference(lookup.weights(), lookup.layout.tables, batch), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.name}-{getattr(o, 'weight_decay', 0)}")
def test_training_equals_one_update_of_summed_gradients(optimizer: RowOptimizerConfig) -> None:
    lookup = make_lookup(EmbeddingsConfig(dim=8, init_std=1.0, optimizer=optimizer))
    weights = {name: weight.clone() for name, weight in lookup.weights().items()}
    states: dict[str, dict[str, Tensor]] = {name: {} for name in weights}
    target = torch.randn(8, 4, 8, generator=torch.Generator().manual_seed(1))
    for step in range(1, 6):
        batch = make_batch(step)
        ((lookup(batch) - target) ** 2).sum().backward()
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        ((reference(leaves, lookup.layout.tables, batch) - target) ** 2).sum().backward()
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            weights[name] = dense_step(optimizer, weights[name], leaf.grad, states[name], step)
    for name, weight in lookup.weights().items():
        torch.testing.assert_close(weight, weights[name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("l2", "decay"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_adam_on_all_rows_equals_torch_adam_on_the_dense_gradient(l2: float, decay: float) -> None:
    optimizer = RowAdam(lr=0.01, rows="all", l2=l2, weight_decay=decay)
    lookup = make_lookup(EmbeddingsConfig(dim=8, init_std=1.0, optimizer=optimizer))
    leaves = {name: weight.clone().requires_grad_() for name, weight in lookup.weights().items()}
    peer = torch.optim.Adam(leaves.values(), lr=0.01)
    target = torch.randn(8, 4, 8, generator=torch.Generator().manual_seed(1))
    for step in range(6):
        batch = make_batch(step)
        ((lookup(batch) - target) ** 2).sum().backward()
        peer.zero_grad()
        ((reference({**leaves}, lookup.layout.tables, batch) - target) ** 2).sum().backward()
        for leaf in leaves.values():
            assert leaf.grad is not None
            leaf.grad += l2 * leaf.detach()
            leaf.data.mul_(1 - 0.01 * decay)
        peer.step()
    for name, weight in lookup.weights().items():
        torch.testing.assert_close(weight, leaves[name].detach(), rtol=2e-5, atol=2e-5)


def test_rows_outside_the_batch_change_only_with_rows_all() -> None:
    """``touched`` and ``all`` differ on rows that are never looked up."""
    for optimizer, moves in ((RowAdam(), False), (RowAdam(rows="all", l2=0.1), True)):
        lookup = make_lookup(EmbeddingsConfig(dim=8, init_std=1.0, optimizer=optimizer))
        batch = make_batch(0)
        assert batch.bags is not None
        unseen = sorted({*range(50)} - {*batch.bags["user"].values().tolist()})
        before = lookup.weights()["user"][unseen].clone()
        for _ in range(3):
            lookup(batch).sum().backward()
        after = lookup.weights()["user"][unseen]
        assert (after.norm() < before.norm()) == moves
        assert torch.equal(after, before) != moves


def test_tables_differ_in_dim_and_optimizer() -> None:
    config = EmbeddingsConfig(
        dim=8,
        init_std=1.0,
        optimizer=RowwiseAdagrad(lr=0.1),
        tables={"item": TableConfig(dim=4, optimizer=RowAdam()), "tags": TableConfig(optimizer=RowSGD(lr=0.5))},
    )
    lookup = make_lookup(config)
    batch = make_batch(0)
    before = {name: weight.clone() for name, weight in lookup.weights().items()}
    emb_BFD = lookup(batch)
    assert emb_BFD.shape == (8, 4, 8)
    projected = {
        **lookup.weights(),
        "item": lookup.weights()["item"] @ lookup.fields.projections[inner_name("item")].weight.T,
    }
    torch.testing.assert_close(emb_BFD, reference(projected, lookup.layout.tables, batch), rtol=1e-5, atol=1e-5)
    emb_BFD.square().sum().backward()
    assert lookup.fields.projections[inner_name("item")].weight.grad is not None
    assert all(not torch.equal(weight, before[name]) for name, weight in lookup.weights().items())
    assert set(lookup.optimizer_state()) == {"user/sum", "item/exp_avg", "item/exp_avg_sq", "item/steps"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.name}-{getattr(o, 'weight_decay', 0)}")
def test_the_learning_rate_follows_the_multiplier(optimizer: RowOptimizerConfig) -> None:
    scaled, plain = (make_lookup(EmbeddingsConfig(dim=8, init_std=1.0, optimizer=optimizer)) for _ in range(2))
    start = {name: weight.clone() for name, weight in plain.weights().items()}
    scaled.scale_learning_rates(0.5)
    for lookup in (scaled, plain):
        lookup(make_batch(0)).sum().backward()
    for name, first in start.items():
        half, whole = scaled.weights()[name] - first, plain.weights()[name] - first
        torch.testing.assert_close(2 * half, whole, rtol=1e-4, atol=1e-6)


def test_training_from_restored_state_is_bit_identical() -> None:
    config = EmbeddingsConfig(dim=8, tables={"item": TableConfig(optimizer=RowAdam())})
    left, right = make_lookup(config, seed=0), make_lookup(config, seed=1)
    for step in range(3):
        left(make_batch(step)).square().sum().backward()
    for source, target in ((left.weights(), right.weights()), (left.optimizer_state(), right.optimizer_state())):
        for name, tensor in source.items():
            target[name].copy_(tensor)
    with torch.no_grad():
        for name, parameter in left.fields.projections.named_parameters():
            dict(right.fields.projections.named_parameters())[name].copy_(parameter)
    for step in range(3, 6):
        for lookup in (left, right):
            lookup(make_batch(step)).square().sum().backward()
    for name, weight in left.weights().items():
        assert torch.equal(weight, right.weights()[name])


@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(), RowAdam()], ids=lambda o: o.name)
@pytest.mark.parametrize("bad", [30, -1])
def test_an_id_outside_its_table_is_named(optimizer: RowOptimizerConfig, bad: int) -> None:
    lookup = make_lookup(EmbeddingsConfig(dim=8, optimizer=optimizer))
    batch = make_batch(0)
    assert batch.bags is not None
    batch.bags.values()[8 + 3] = bad  # the fourth row's item
    with pytest.raises(FeatureError, match=rf"feature 'item': id {bad} is outside \[0, 30\).*table 'item', on rank 0"):
        lookup(batch)


def test_initial_weights_do_not_depend_on_the_sharding() -> None:
    whole = torch.empty(150_000, 4)
    fill_initial(whole, "t", 0.5, seed=3)
    for first, last in ((0, 10), (4_090, 12_300), (100_000, 150_000)):
        part = torch.empty(last - first, 4)
        fill_initial(part, "t", 0.5, seed=3, first_row=first)
        assert torch.equal(part, whole[first:last])
    assert abs(float(whole.std()) - 0.5) < 0.005
    other = torch.empty(10, 4)
    fill_initial(other, "u", 0.5, seed=3)
    assert not torch.equal(other, whole[:10])


def test_exceptions_for_unknown_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"embeddings\.tables\.itme: no feature uses such a table.* 'item'"):
        table_specs(EmbeddingsConfig(tables={"itme": TableConfig()}), SCHEMA, {})


def test_two_poolings_for_one_table_are_refused() -> None:
    schema = Schema(bags=("a", "b"), tables={"a": "t", "b": "t"}, rows={"t": 5}, labels=("y",))
    with pytest.raises(ConfigError, match=r"table 't' pool differently \(a: sum, b: mean\)"):
        table_specs(EmbeddingsConfig(), schema, {"a": "sum", "b": "mean"})


def test_initial_weights_of_ordered_rows_are_those_of_their_ids() -> None:
    """Also over several chunks, and for some of the columns."""
    whole = torch.empty(10_000, 8)
    fill_initial(whole, "t", 0.5, seed=3)
    ids = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))[:777].int()
    part = torch.empty(777, 4)
    fill_initial_rows(part, ids, "t", 0.5, 3, 4, 8)
    assert torch.equal(part, whole[ids.long(), 4:])
    nothing = torch.empty(0, 8)
    fill_initial_rows(nothing, ids[:0], "t", 0.5, 3, 0, 8)


def test_the_order_of_rows_changes_nothing_in_one_process() -> None:
    layout = lay_out(EmbeddingsConfig(dim=8, init_std=1.0), SCHEMA, {"tags": "sum", "history": "mean"})
    plain = Plan.single_device(table.name for table in layout.tables)
    ordered = plain.placed("item", "table_wise", (0,), 3).placed("tags", "table_wise", (0,), 9)
    draw = np.random.default_rng(0)
    ranks = {name: frequency_ranks(draw.integers(0, 99, rows), rows) for name, rows in SCHEMA.rows.items()}
    assert ranks["item"].tolist() != list(range(30))
    lookups = [
        EmbeddingLookup(layout, plain, CPU, 0),
        EmbeddingLookup(layout, ordered, CPU, 0, row_ranks=ranks),
    ]
    for step in range(3):
        first, second = (lookup(make_batch(step)) for lookup in lookups)
        assert torch.equal(first, second)
        for emb_BFD in (first, second):
            emb_BFD.square().sum().backward()
    for expected, found in (
        (gather(lookups[0].tensor_slices()), gather(lookups[1].tensor_slices())),
        (gather(lookups[0].state_slices()), gather(lookups[1].state_slices())),
    ):
        assert expected is not None
        assert found is not None
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    batch = make_batch(4)
    assert batch.bags is not None
    batch.bags["item"].values()[1] = 30
    with pytest.raises(FeatureError, match=r"feature 'item': id 30 is outside \[0, 30\)"):
        lookups[1](batch)
    assert {key.split("[")[0] for key in lookups[1].weights()} == {"user", "item", "tags"}
