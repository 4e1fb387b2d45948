"""The configs in the docs of models, training, planning and checkpoints build, and show every key."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import pydantic
import pytest
from ruamel.yaml import YAML

from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.core.config import parse_config
from ziggurat.features.assemble import encoded_schema
from ziggurat.interactions.heads.mmoe import MMoE
from ziggurat.interactions.heads.ple import PLE
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.mlp import MLP
from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.interactions.sequences.sequence_transformer import SequenceTransformer
from ziggurat.interactions.sequences.target_attention import TargetAttention
from ziggurat.models.build import ModelConfig, model_dims
from ziggurat.optim.schedule import Plateau, WarmupCosine, WarmupLinear
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.planning.config import PlanningConfig, TablePlacement, TopologyConfig
from ziggurat.planning.offload import BeyondMemoryConfig
from ziggurat.planning.rules import Rules
from ziggurat.training.config import EarlyStopping, TrainingConfig, WarmStart
from ziggurat.training.experiment import Experiment

DOCS = Path(__file__).resolve().parents[2] / "docs"
FEATURES: dict[str, dict[str, Any]] = {
    "user": {"name": "user", "kind": "categorical"},
    "item": {"name": "item", "kind": "categorical", "type": "integer"},
    "history": {"name": "history", "kind": "sequence", "type": "integer", "table": "item"},
    "age": {"name": "age", "kind": "numeric"},
}
BASE: dict[str, Any] = {
    "name": "docs",
    "data": {"source": {"name": "csv", "files": ["log.csv"]}, "labels": [{"name": "click"}, {"name": "buy"}]},
    "embeddings": {"dim": 8},
}


def snippets(page: str) -> list[str]:
    """Returns the indented blocks and the inline code of a page that set a section of an experiment."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"(?:(?<=\n\n)|\A)((?:    .*\n)+(?:\n(?:    .*\n)+)*)", text)
    indented = [re.sub(r"(?m)^    ", "", part) for block in blocks for part in re.split(r"\n\n(?=    \w)", block)]
    inline = re.findall(r"`(\w+: \{.*?\})`", text)
    return [found for found in [*indented, *inline] if re.match(r"\w+", found)[0] in Experiment.model_fields]  # type: ignore[index]


PAGES = ("models.md", "training.md", "planning.md", "checkpoints.md", "shampoo.md")
SNIPPETS = [(page, text) for page in PAGES for text in snippets(page)]


@pytest.mark.parametrize(("page", "text"), SNIPPETS, ids=[f"{page}-{n}" for n, (page, _) in enumerate(SNIPPETS)])
def test_every_config_parses_and_builds(page: str, text: str) -> None:
    values = YAML(typ="safe").load(text)
    features = {**FEATURES, **{feature["name"]: feature for feature in values.pop("features", [])}}
    base = {**BASE, "data": {**BASE["data"], "labels": BASE["data"]["labels"][:1]}} if "negative_rate" in text else BASE
    experiment = parse_config(Experiment, {**base, **values, "features": list(features.values())})
    experiment.check()
    schema = encoded_schema(experiment.features, experiment.data.targets, defaultdict(lambda: 4))
    model = experiment.model.build(model_dims(experiment.layout(schema), experiment.tasks()))
    assert model.parameter_count() > 0, page


@pytest.mark.parametrize(
    ("page", "config"),
    [
        *(("training.md", config) for config in (TrainingConfig, EarlyStopping, WarmStart)),
        *(("training.md", schedule.Config) for schedule in (WarmupCosine, WarmupLinear, Plateau)),
        *(("planning.md", config) for config in (PlanningConfig, TopologyConfig, TablePlacement, Rules.Config)),
        ("planning.md", BeyondMemoryConfig),
        ("checkpoints.md", CheckpointsConfig),
        ("shampoo.md", ShampooConfig),
        *(("models.md", head.Config) for head in (SharedBottom, MMoE, PLE, MLP)),
        *(("models.md", encoder.Config) for encoder in (AttentionPooling, TargetAttention, SequenceTransformer)),
    ],
    ids=lambda value: getattr(value, "__qualname__", value),
)
def test_every_key_has_an_example(page: str, config: type[pydantic.BaseModel]) -> None:
    shown = "\n".join(text for found, text in SNIPPETS if found == page)
    assert [key for key in config.model_fields if not re.search(rf"\b{key}:", shown)] == []


def test_the_page_lists_the_models_that_have_a_head() -> None:
    listed = re.search(r"`head` is a key of (.*?);", (DOCS / "models.md").read_text(encoding="utf-8"))
    assert listed is not None
    models = get_args(get_args(ModelConfig)[0])
    assert set(re.findall(r"`(\w+)`", listed[1])) == {kind().name for kind in models if "head" in kind.model_fields}
