"""Logits computed by hand, config errors, and embedding dims."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.interactions.mlp import MLP
from ziggurat.models import ModelConfig, ModelDims
from ziggurat.models.dcn_v2 import DCNv2
from ziggurat.models.deepfm import DeepFM
from ziggurat.models.dlrm import DLRM
from ziggurat.models.logistic_regression import LogisticRegression

NO_HIDDEN = MLP.Config(hidden=())
DENSE = torch.tensor([[2.0, -1.0]])
EMB = torch.tensor([[[1.0, 2.0, 3.0, 4.0], [0.5, -1.0, 0.0, 1.0]]])


def fill(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)


def logit(config: ModelConfig, value: float, dense: Tensor = DENSE, emb: Tensor = EMB) -> float:
    """Returns the logit of one row when every parameter equals ``value``."""
    model = config.build(ModelDims(dense.shape[1], emb.shape[1], emb.shape[2]))
    fill(model, value)
    return model(dense, emb).item()


def test_logistic_regression_by_hand() -> None:
    # bias 0.5, dense 0.5·(2 − 1), means 2.5 and 0.125.
    assert logit(LogisticRegression.Config(), 0.5) == pytest.approx(0.5 + 0.5 + 2.5 + 0.125)


def test_logistic_regression_gives_each_task_its_own_dims() -> None:
    model = LogisticRegression.Config().build(ModelDims(0, 2, 4, tasks=2))
    logits = model(torch.empty(1, 0), EMB)
    assert logits.tolist() == [[1.5 - 0.25, 3.5 + 0.5]]


def test_deepfm_by_hand() -> None:
    """All parameters 1: v_f = 1, so the numeric fields are (2, 2, 2, 2) and (−1, −1, −1, −1)."""
    flat = (2 - 1) + (10 + 0.5)
    fields = [torch.full((4,), 2.0), torch.full((4,), -1.0), *EMB[0]]
    pairs = sum((fields[i] @ fields[j]).item() for i in range(4) for j in range(i + 1, 4))
    first_order = flat + 1
    deep = flat + 1
    assert logit(DeepFM.Config(deep=NO_HIDDEN), 1.0) == pytest.approx(first_order + pairs + deep)


def test_dlrm_by_hand() -> None:
    """All parameters 1: z = (2, 2, 2, 2): the dense sum 1 and a bias of 1."""
    dots = 2 * 10.0 + 2 * 0.5 + (0.5 - 2 + 0 + 4)
    expected = 4 * 2.0 + dots + 1
    assert logit(DLRM.Config(bottom=NO_HIDDEN, top=NO_HIDDEN), 1.0) == pytest.approx(expected)


@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_dcn_v2_by_hand(structure: str) -> None:
    """All parameters 1, one cross layer: x₁ = x₀ (Σ x₀ + 1) + x₀."""
    config = parse_config(DCNv2.Config, {"cross_layers": 1, "structure": structure, "deep": {"hidden": []}})
    total = (2 - 1) + (10 + 0.5)
    crossed = total * (total + 1) + total
    assert logit(config, 1.0) == pytest.approx(crossed + 1 if structure == "stacked" else crossed + total + 1)


def test_embedding_dims() -> None:
    assert DeepFM.Config().embedding_dim(16) == 16
    assert LogisticRegression.Config().embedding_dim(16) == 4
    assert LogisticRegression.Config().embedding_dim(16, tasks=3) == 12


def test_logistic_regression_refuses_a_dim_that_is_no_multiple_of_the_tasks() -> None:
    with pytest.raises(ConfigError, match=r"dim 4 is not a multiple of the 3 tasks\n.*use dim 12"):
        LogisticRegression.Config().build(ModelDims(1, 2, 4, tasks=3))


class Experiment(Config):
    model: ModelConfig


def test_name_selects_the_model() -> None:
    values = {"model": {"name": "dcn_v2", "rank": 8, "deep": {"hidden": [32], "dropout": 0.1}}}
    model = parse_config(Experiment, values).model
    assert model == DCNv2.Config(rank=8, deep=MLP.Config(hidden=(32,), dropout=0.1))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "dcnv2"}, "did you mean 'dcn_v2'"),
        ({"name": "deepfm", "cross_layers": 2}, "model.cross_layers: unknown key; allowed: deep, name"),
        ({"name": "dcn_v2", "rnak": 2}, "did you mean 'rank'"),
        ({"name": "dcn_v2", "rank": 0}, "model.rank"),
        ({"name": "dcn_v2", "structure": "stack"}, "model.structure"),
        ({"name": "dlrm", "top": {"hiden": [8]}}, "did you mean 'hidden'"),
    ],
)
def test_a_bad_model_config_is_explained(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(Experiment, {"model": values})


def test_every_key_is_documented_in_the_json_schema() -> None:
    for name, schema in Experiment.model_json_schema()["$defs"].items():
        for key, entry in schema["properties"].items():
            assert key == "name" or entry.get("description"), f"{name}.{key}"
