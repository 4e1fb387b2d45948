"""Tables with several vectors per row, and groups of minor features: values, order, names and costs of their fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_lookup import CPU, SCHEMA, make_batch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.core.batch import Batch
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.core.plan import Plan
from ziggurat.core.schema import Schema
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.fields import DIRECT, Fields
from ziggurat.embeddings.layout import Layout, Positions, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.interactions.sequences.sequence_transformer import SequenceTransformer


def layout_of(values: dict[str, Any], schema: Schema = SCHEMA, **pooling: Any) -> Layout:
    config = parse_config(EmbeddingsConfig, {"dim": 8, "init_std": 1.0, **values})
    return lay_out(config, schema, {"tags": "mean", "history": "mean", **pooling})


def make_lookup(layout: Layout) -> EmbeddingLookup:
    torch.manual_seed(0)
    return EmbeddingLookup(layout, Plan.single_device(spec.name for spec in layout.tables), CPU, 0)


def rows(lookup: EmbeddingLookup, batch: Batch) -> dict[str, Tensor]:
    """Returns feature -> the mean of its rows, (B, W), by torch's embedding_bag."""
    found: dict[str, Tensor] = {}
    for jagged in (batch.bags, batch.sequences):
        assert jagged is not None
        for key, part in jagged.to_dict().items():
            offsets = part.lengths().long().cumsum(0) - part.lengths()
            weight = lookup.weights()[SCHEMA.tables[key]]
            found[key] = F.embedding_bag(part.values(), weight, offsets, mode="mean")
    return found


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_a_row_of_two_vectors_is_two_fields(optimizer: str) -> None:
    layout = layout_of({"tables": {"item": {"vectors": 2}}, "optimizer": {"name": optimizer}})
    assert layout.direct
    assert layout.fields == ("user", "item 1", "item 2", "tags", "history 1", "history 2")
    lookup, batch = make_lookup(layout), make_batch(0)
    assert lookup.weights()["item"].shape == (30, 16)
    row = rows(lookup, batch)
    item, history = row["item"].view(8, 2, 8), row["history"].view(8, 2, 8)
    expected = torch.cat([row["user"][:, None], item, row["tags"][:, None], history], dim=1)
    torch.testing.assert_close(lookup(batch), expected, rtol=1e-6, atol=1e-6)
    assert lookup.features == 6


def test_several_narrow_vectors_share_a_projection() -> None:
    lookup, batch = make_lookup(layout_of({"tables": {"item": {"vectors": 3, "dim": 4}}})), make_batch(0)
    weight_DW = lookup.fields.projections["table:item"].weight
    assert weight_DW.shape == (8, 4)
    row = rows(lookup, batch)["item"]
    expected = torch.stack([row[:, :4] @ weight_DW.T, row[:, 4:8] @ weight_DW.T, row[:, 8:] @ weight_DW.T], dim=1)
    torch.testing.assert_close(lookup(batch)[:, 1:4], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [[], [5]])
def test_a_group_is_one_field_of_its_concatenated_rows(hidden: list[int]) -> None:
    group = {"features": ["tags", "user"], "dim": 4, "mlp": {"hidden": hidden}}
    layout = layout_of({"groups": [group]})
    assert layout.fields == ("user + tags", "item", "history")
    assert [(spec.name, spec.dim) for spec in layout.tables] == [("user", 4), ("item", 8), ("tags", 4)]
    lookup, batch = make_lookup(layout), make_batch(0)
    assert not lookup.fields.projections
    row = rows(lookup, batch)
    state = torch.cat([row["user"], row["tags"]], dim=1)
    parameters = list(lookup.fields.groups.parameters())
    for number, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        state = (torch.relu(state) if number else state) @ weight.T + bias
    expected = torch.stack([state, row["item"], row["history"]], dim=1)
    emb_BFD = lookup(batch)
    torch.testing.assert_close(emb_BFD, expected, rtol=1e-5, atol=1e-5)
    before = {name: weight.clone() for name, weight in lookup.weights().items()}
    emb_BFD.square().sum().backward()
    assert all(not torch.equal(weight, before[name]) for name, weight in lookup.weights().items())


def test_a_table_used_outside_the_group_keeps_its_dim() -> None:
    layout = layout_of({"groups": [{"features": ["user", "history"]}], "tables": {"tags": {"dim": 12}}})
    assert [(spec.name, spec.dim) for spec in layout.tables] == [("user", 4), ("item", 8), ("tags", 12)]
    assert layout.fields == ("user + history", "item", "tags")
    emb_BFD = make_lookup(layout)(make_batch(0))
    assert emb_BFD.shape == (8, 3, 8)
    own = layout_of({"groups": [{"features": ["user", "tags"]}], "tables": {"tags": {"dim": 12}}})
    assert {spec.name: spec.dim for spec in own.tables} == {"user": 4, "item": 8, "tags": 12}


def test_an_encoded_sequence_may_be_grouped_and_have_several_vectors() -> None:
    layout = layout_of(
        {"tables": {"item": {"vectors": 2}}, "groups": [{"features": ["history", "tags"]}]},
        history=Positions(AttentionPooling.Config(), 3),
    )
    assert layout.fields == ("user", "item 1", "item 2", "tags + history")
    assert make_lookup(layout)(make_batch(0)).shape == (8, 4, 8)


def test_costs_equal_the_parameters_and_torchs_counter() -> None:
    layout = layout_of(
        {
            "tables": {"item": {"dim": 4, "vectors": 2}},
            "groups": [{"features": ["user", "tags"], "mlp": {"hidden": [6]}}],
        },
        history=Positions(SequenceTransformer.Config(target="item"), 3),
    )
    fields = Fields(layout)
    costs = {cost.name: (cost.parameters, cost.flops) for cost in fields.costs()}
    assert list(costs) == ["history, transformer", "user + tags", "projection of item"]
    assert costs["user + tags"] == (8 * 6 + 6 + 6 * 8 + 8, 2 * (8 * 6 + 6 * 8))
    assert costs["projection of item"] == (4 * 8, 2 * 4 * 8 * 4)  # two vectors each of item and history
    assert sum(parameters for parameters, _ in costs.values()) == sum(p.numel() for p in fields.parameters())
    found = {
        "user": torch.ones(5, 4),
        "item": torch.ones(5, 8),
        "tags": torch.ones(5, 4),
        "history": torch.ones(5, 3, 8),
    }
    with FlopCounterMode(display=False) as counter:
        fields(found, {"history": torch.ones(5, 3, dtype=torch.bool)}, torch.zeros(5, 0))
    encoder = fields.encoders["feature:history"]
    products = sum(flops for _, flops in costs.values()) - encoder.elementwise_flops()
    assert counter.get_total_flops() == 5 * products


def test_a_number_in_ranks_is_a_field_along_a_curve() -> None:
    layout = lay_out(
        parse_config(EmbeddingsConfig, {"dim": 8, "numeric_bins": 4}),
        replace(SCHEMA, dense=("age", "price", "size")),
        {"tags": "mean", "history": "mean"},
        ranked={"age", "size"},
    )
    assert layout.fields == ("user", "item", "tags", "history", "age", "size")
    fields = Fields(layout)
    assert fields.numbers is not None
    rows_BFD, dense_BF = torch.randn(5, 4, 8), torch.rand(5, 3)
    found = fields({DIRECT: rows_BFD}, {}, dense_BF)
    assert torch.equal(found[:, :4], rows_BFD)
    for place, column in ((4, 0), (5, 2)):
        knots_KD = torch.cat(
            [torch.zeros(1, 8), fields.numbers.weights_FKD[place - 4].cumsum(0)]
        )  # values at 0, 1/4, …
        for row in range(5):
            at = float(dense_BF[row, column]) * 4
            below = min(int(at), 3)
            value_D = knots_KD[below] + (at - below) * (knots_KD[below + 1] - knots_KD[below])
            torch.testing.assert_close(found[row, place], value_D)
    (cost,) = fields.costs()
    assert (cost.parameters, cost.flops) == (2 * 4 * 8 + 2 * 8, 2 * 2 * 4 * 8)


def test_numbers_are_no_fields_unless_asked_for() -> None:
    schema = replace(SCHEMA, dense=("age",))
    assert "age" not in lay_out(EmbeddingsConfig(), schema, {"tags": "mean", "history": "mean"}, ranked={"age"}).fields


def test_without_exceptions_fields_have_no_parameters() -> None:
    layout = layout_of({})
    assert (layout.direct, layout.fields) == (True, ("user", "item", "tags", "history"))
    assert list(Fields(layout).parameters()) == []


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([["usr"]], r"embeddings\.groups\.0\.features: there is no feature 'usr'; did you mean 'user'\?"),
        ([["user"], ["zzz"]], r"groups\.1\.features: there is no feature 'zzz'; there are: user, item, tags, history"),
        ([["age"]], r"groups\.0\.features: 'age' is a number and has no table[\s\S]*bucketise"),
        ([["user", "tags"], ["item", "tags"]], r"groups\.1\.features: 'tags' is in embeddings\.groups\.0\.features"),
        ([["tags", "tags"]], r"groups\.0\.features: 'tags' is in .* already[\s\S]*name each feature once"),
        ([[]], r"groups\.0\.features: needs at least one entry"),
    ],
)
def test_groups_that_contradict_the_features_are_refused(groups: list[list[str]], message: str) -> None:
    schema = Schema(
        ("age",), SCHEMA.categorical, SCHEMA.bags, SCHEMA.sequences, SCHEMA.tables, SCHEMA.rows, SCHEMA.labels
    )
    with pytest.raises(ConfigError, match=message):
        layout_of({"groups": [{"features": features} for features in groups]}, schema)
