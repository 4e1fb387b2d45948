"""Positions of a sequence, looked up individually, equal torch's embedding before and after training.

A row that both item and history touch is updated once, with the sum of its gradients.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lookup import CPU, OPTIMIZERS, SCHEMA, dense_step, make_batch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError, FeatureError
from ziggurat.core.plan import Plan
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.config import EmbeddingsConfig, TableConfig
from ziggurat.embeddings.layout import Positions, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.embeddings.positions import split_positions
from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.interactions.sequences.sequence_pooling import SequenceEncoderConfig
from ziggurat.interactions.sequences.sequence_transformer import SequenceTransformer
from ziggurat.interactions.sequences.target_attention import TargetAttention
from ziggurat.optim.rows import RowAdam, RowOptimizerConfig, RowwiseAdagrad

LAST = 3
ENCODERS: list[SequenceEncoderConfig] = [
    AttentionPooling.Config(),
    TargetAttention.Config(target="item"),
    SequenceTransformer.Config(),
    SequenceTransformer.Config(target="item"),
]


def make_lookup(
    encoder: SequenceEncoderConfig, optimizer: RowOptimizerConfig | None = None, seed: int = 0, **tables: Any
) -> EmbeddingLookup:
    config = EmbeddingsConfig(
        dim=8,
        init_std=1.0,
        optimizer=optimizer or RowwiseAdagrad(lr=0.1),
        tables={name: TableConfig(**values) for name, values in tables.items()},
    )
    layout = lay_out(config, SCHEMA, {"tags": "mean", "history": Positions(encoder, LAST)})
    torch.manual_seed(seed)
    return EmbeddingLookup(layout, Plan.single_device(spec.name for spec in layout.tables), CPU, seed)


def reference(weights: dict[str, Tensor], encoder: nn.Module, batch: Batch) -> Tensor:
    """Returns (B, 4, D), computed row by row; differentiable in ``weights`` and the encoder's parameters."""
    assert batch.bags is not None
    assert batch.sequences is not None
    fields: list[Tensor] = []
    users, items, tags, histories = (
        [ids.tolist() for ids in jagged[key].to_dense()]
        for jagged, key in (
            (batch.bags, "user"),
            (batch.bags, "item"),
            (batch.bags, "tags"),
            (batch.sequences, "history"),
        )
    )
    for row in range(batch.size):
        target = weights["item"][items[row][0]]
        tag = weights["tags"][tags[row]].mean(0) if tags[row] else torch.zeros(8)
        recent = histories[row][::-1][:LAST]
        vectors = [weights["item"][id_] for id_ in recent] + [torch.zeros(8)] * (LAST - len(recent))
        mask = torch.arange(LAST) < len(recent)
        history = encoder(torch.stack(vectors)[None], mask[None], target[None])[0]
        fields.append(torch.stack([weights["user"][users[row][0]], target, tag, history]))
    return torch.stack(fields)


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda e: f"{e.name}-{getattr(e, 'target', None)}")
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.name}-{getattr(o, 'weight_decay', 0)}")
def test_training_equals_one_update_of_summed_gradients(
    optimizer: RowOptimizerConfig, encoder: SequenceEncoderConfig
) -> None:
    lookup = make_lookup(encoder, optimizer)
    ours = lookup.fields.encoders["feature:history"]
    theirs = copy.deepcopy(ours)
    weights = {name: weight.clone() for name, weight in lookup.weights().items()}
    states: dict[str, dict[str, Tensor]] = {name: {} for name in weights}
    target = torch.randn(8, 4, 8, generator=torch.Generator().manual_seed(1))
    for step in range(1, 5):
        batch = make_batch(step)
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        emb_BFD, expected = lookup(batch), reference(leaves, theirs, batch)
        torch.testing.assert_close(emb_BFD, expected, rtol=1e-4, atol=1e-4)
        ((emb_BFD - target) ** 2).sum().backward()
        ((expected - target) ** 2).sum().backward()
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            weights[name] = dense_step(optimizer, weights[name], leaf.grad, states[name], step)
    for name, weight in lookup.weights().items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-4, atol=1e-4)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-3)


@settings(max_examples=50, deadline=None)
@given(histories=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5), last=st.integers(1, 5))
def test_positions_are_the_last_ids_most_recent_first(histories: list[list[int]], last: int) -> None:
    """A second sequence, without positions, is not changed."""
    rows = len(histories)
    ids = [id_ for history in histories for id_ in history]
    lengths = torch.tensor([len(history) for history in histories], dtype=torch.int32)
    sequences = KeyedJaggedTensor(
        keys=["plain", "history"], values=torch.tensor(ids * 2, dtype=torch.int64), lengths=lengths.repeat(2)
    )
    plain = TableSpec("t", 10, 4, ("plain",), "mean", {}, 0.1)
    positioned = TableSpec("u", 10, 4, ("history",), "mean", {}, 0.1, positions={"history": last})
    split, masks = split_positions(sequences, {"plain": plain, "history": positioned})
    assert split.keys() == ["plain", *(f"history:{place}" for place in range(last))]
    assert [part.tolist() for part in split["plain"].to_dense()] == histories
    for row, history in enumerate(histories):
        found = [split[f"history:{place}"].to_dense()[row].tolist() for place in range(last)]
        recent = [[id_] for id_ in history[::-1][:last]]
        assert found == recent + [[]] * (last - len(recent))
        assert masks["history"][row].tolist() == [bool(ids) for ids in found]
    assert masks["history"].shape == (rows, last)


def test_a_narrow_table_is_encoded_before_it_is_projected() -> None:
    lookup = make_lookup(AttentionPooling.Config(), item={"dim": 4})
    batch = make_batch(0)
    emb_BFD = lookup(batch)
    assert emb_BFD.shape == (8, 4, 8)
    narrow = make_lookup(AttentionPooling.Config(), item={"dim": 4}, user={"dim": 4}, tags={"dim": 4})
    assert narrow.fields.encoders["feature:history"].out_features == 4
    projected = lookup.fields.projections["table:item"]
    keyed, masks = lookup._ids(batch)
    assert keyed is not None
    assert lookup.sharded is not None
    rows = lookup._sharded_rows(lookup.sharded(keyed))
    encoded = lookup.fields.encoders["feature:history"](rows["history"], masks["history"])
    torch.testing.assert_close(emb_BFD[:, 3], projected(encoded))


@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(), RowAdam()], ids=lambda o: o.name)
def test_training_from_restored_state_is_bit_identical(optimizer: RowOptimizerConfig) -> None:
    left, right = (make_lookup(ENCODERS[1], optimizer, seed) for seed in (0, 1))
    for step in range(3):
        left(make_batch(step)).square().sum().backward()
    for source, target in ((left.weights(), right.weights()), (left.optimizer_state(), right.optimizer_state())):
        for name, tensor in source.items():
            target[name].copy_(tensor)
    right.fields.load_state_dict(left.fields.state_dict())
    for step in range(3, 6):
        for lookup in (left, right):
            lookup(make_batch(step)).square().sum().backward()
    for name, weight in left.weights().items():
        assert torch.equal(weight, right.weights()[name])


@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(), RowAdam()], ids=lambda o: o.name)
def test_an_id_outside_its_table_is_named_by_its_feature(optimizer: RowOptimizerConfig) -> None:
    lookup, batch = make_lookup(AttentionPooling.Config(), optimizer), make_batch(0)
    assert batch.sequences is not None
    batch.sequences.values()[-1] = 30
    with pytest.raises(FeatureError, match=r"feature 'history': id 30 is outside \[0, 30\).*table 'item', on rank 0"):
        lookup(batch)


@pytest.mark.parametrize(
    ("target", "tables", "message"),
    [
        ("itme", {}, r"features\.history\.pooling\.target: 'itme' is not a categorical feature; did you mean 'item'\?"),
        ("tags", {}, r"'tags' is not a categorical feature; there are: user, item"),
        (
            "user",
            {"user": {"dim": 4}},
            r"rows of 'history' \(table 'item'\) hold 8 floats, those of its target 'user' \(table 'user'\) 4"
            r"[\s\S]*shares the sequence's table, or give both tables the same dim",
        ),
    ],
)
def test_an_invalid_target_is_refused(target: str, tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_lookup(TargetAttention.Config(target=target), **tables)
