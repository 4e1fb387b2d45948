"""The graph of each model, in fp32 and with bf16, computes the bits that the model computes, for any number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.models.model_cases import CONFIGS
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.core.schema import Schema
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.fields import Fields
from ziggurat.embeddings.layout import Layout, lay_out
from ziggurat.exporting.dense_graph import dense_files
from ziggurat.models.build import model_dims
from ziggurat.models.model import ModelSettings
from ziggurat.objectives.outputs import Outputs
from ziggurat.objectives.task import Task
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.dense_program import load_program
from ziggurat.training.recommender import DensePart

TASKS = (Task("click"), Task("buy", negative_rate=0.5))
FEATURES = ("user", "item", "tags", "city")


def layout_for(config: ModelSettings) -> Layout:
    schema = Schema(
        dense=("age", "price", "hour"),
        categorical=("user", "item", "city"),
        bags=("tags",),
        tables={name: name for name in FEATURES},
        rows=dict.fromkeys(FEATURES, 10),
        labels=tuple(task.name for task in TASKS),
    )
    embeddings = parse_config(EmbeddingsConfig, {"dim": config.embedding_dim(8, len(TASKS))})
    return lay_out(embeddings, schema, {"tags": "mean"})


def part_of(config: ModelSettings, layout: Layout, autocast: bool) -> DensePart:
    torch.manual_seed(0)
    model = config.build_checked(model_dims(layout, TASKS))
    part = DensePart(Fields(layout), model, Outputs(TASKS), autocast, False, 0.1).eval()
    with torch.no_grad():
        for parameter in part.parameters():  # so that no weight is 0 or 1 by initialisation
            parameter += 0.1 * torch.randn_like(parameter)
    return part


def drawn(layout: Layout, size: int) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(size)
    rows = {name: torch.randn(size, layout.table_of[name].dim, generator=draw) for name in layout.schema.sparse}
    return torch.randn(size, len(layout.schema.dense), generator=draw), rows, {}


def stored(part: DensePart, layout: Layout) -> nn.Module:
    graph, tensors = dense_files(part, layout)
    return load_program(graph, tensors, "dense.json", DAMAGED)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_models_graph_computes_the_same_bits(name: str, precision: str) -> None:
    layout = layout_for(CONFIGS[name])
    part = part_of(CONFIGS[name], layout, precision == "bf16")
    loaded = stored(part, layout)
    for size in (1, 2, 7, 300):
        inputs = drawn(layout, size)
        with torch.no_grad():
            assert torch.equal(loaded(*inputs), part(*inputs)[0]), size


class Untraceable(nn.Module):
    """A model whose course depends on its numbers."""

    def forward(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        sums_B = emb_BFD.sum((1, 2))
        return (sums_B * (2 if float(sums_B.sum()) > 0 else 3)).unsqueeze(1).expand(-1, 2)


class Printing(nn.Module):
    """A model that is a graph, but not of tensor operations alone."""

    def forward(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        return torch.ops.fbgemm.asynchronous_complete_cumsum(emb_BFD.sum((1, 2)).long()).float()[1:, None].expand(-1, 2)


@pytest.mark.parametrize("model", [Untraceable(), Printing()])
def test_a_model_that_is_no_graph_of_tensor_operations_is_refused(model: nn.Module) -> None:
    layout = layout_for(CONFIGS["dnn"])
    part = DensePart(Fields(layout), model, Outputs(TASKS), False, False, 0.0)
    with pytest.raises(ConfigError, match=r"model \w+: cannot be exported: "):
        dense_files(part, layout)
