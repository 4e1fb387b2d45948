"""Sections of an experiment are checked against each other before data is read; errors name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from tests.training.conftest import config_values
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ConfigError
from ziggurat.training import api
from ziggurat.training.experiment import Experiment, load_experiment

ATTENTION = {"name": "self_attention", "heads": 3}
LINEAR = {"name": "linear", "outputs": 4}

UNBUILDABLE: dict[str, tuple[dict[str, Any], str]] = {
    "heads of a block": (
        {"model": {"name": "dhen", "layer": {"blocks": [LINEAR, ATTENTION]}}},
        "model.layer.blocks.1.heads: 3 heads cannot share an embedding dim of 8",
    ),
    "blocks that are added": (
        {"model": {"name": "dhen", "layer": {"combine": "sum", "blocks": [LINEAR, {**LINEAR, "outputs": 5}]}}},
        "model.layer.blocks: blocks that are combined by sum must emit equally many fields, received linear: 4, linea",
    ),
    "pairs of one field": (
        {"model": {"name": "dhen", "layer": {"blocks": [{"name": "dot_product"}]}}, "features": ["user"]},
        "model.layer.blocks.0: dot_product multiplies pairs of fields, and there is only 1",
    ),
    "heads of a fusion": (
        {"model": {"name": "finalmlp", "heads": 3, "first": {"hidden": [9]}, "second": {"hidden": [8]}}},
        "model.heads: 3 heads cannot share streams of 9 and 8 numbers",
    ),
    "heads of a sequence": (
        {"features.history.pooling": {"name": "transformer", "heads": 3}},
        "features.history.pooling.heads: 3 heads cannot share rows of 8 floats",
    ),
    "pairs of one vector": (
        {"model": {"name": "dlrm"}, "features": ["user"]},
        "model: dlrm multiplies pairs of vectors, but 0 dense and 1 categorical, bag or sequence features give only 1",
    ),
}


def values_with(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Returns the small config with changes; ``features`` is a list of the names to keep."""
    values = config_values(folder)
    for path, value in changes.items():
        if path == "features":
            values["features"] = [feature for feature in values["features"] if feature["name"] in value]
        else:
            set_by_path(values, path, value)
    return values


def write_config(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "exp.yaml"
    with path.open("w") as file:
        YAML().dump(values, file)
    return path


@pytest.mark.parametrize("case", UNBUILDABLE)
def test_models_that_cannot_be_built_are_refused_by_key_without_reading_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    changes, message = UNBUILDABLE[case]
    values = values_with(tmp_path, changes)
    path = write_config(tmp_path, values)
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    assert caught.value.problem.startswith(f"{path}: {message}")
    assert caught.value.hint
    with pytest.raises(ConfigError) as caught:
        api.train(parse_config(Experiment, values))
    assert caught.value.problem.startswith(message)
    assert [item.name for item in tmp_path.iterdir()] == ["exp.yaml"]


def test_errors_in_overrides_start_with_set(tmp_path: Path) -> None:
    path = write_config(tmp_path, config_values(tmp_path))
    for override, key in (
        ("model={name: finalmlp, heads: 3}", "model.heads"),
        ("features.history.pooling={name: transformer, heads: 3}", "features.history.pooling.heads"),
        ("evaluation.slices=[age]", "evaluation.slices"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_experiment(path, [override])
        assert caught.value.problem.startswith(f"--set {key}: ")
    with pytest.raises(ConfigError) as caught:
        load_experiment(path, ["model.deep.hidden=[4]", "evaluation={slices: [usr]}", "features.user.type=integer"])
    assert (
        caught.value.problem == "--set evaluation.slices: 'usr' is no feature with one id a row; did you mean 'user'?"
    )


def test_the_check_uses_the_sizes_of_training(tmp_path: Path) -> None:
    changes = {
        "model": {"name": "dhen", "layer": {"blocks": [ATTENTION]}},
        "embeddings": {"dim": 12, "tables": {"item": {"dim": 8}}},
        "features.history.pooling": {"name": "transformer", "heads": 4},
    }
    parse_config(Experiment, values_with(tmp_path, changes)).check()
    parse_config(
        Experiment,
        values_with(tmp_path, {"model": {"name": "dlrm"}, "features": ["user"], "embeddings.tables.user.vectors": 2}),
    ).check()


def test_the_check_allocates_no_weights_and_draws_no_random_numbers(tmp_path: Path) -> None:
    wide = {"name": "deepfm", "deep": {"hidden": [4_000_000, 4_000_000]}}
    state = torch.get_rng_state()
    parse_config(Experiment, values_with(tmp_path, {"model": wide})).check()
    assert torch.equal(torch.get_rng_state(), state)


TWO_LABELS = [{"name": "click"}, {"name": "buy"}]


@pytest.mark.parametrize(
    ("labels", "monitor", "message"),
    [
        (TWO_LABELS, "by/auc", "training.monitor: 'by/auc' is not measured; did you mean 'buy/auc'?"),
        (TWO_LABELS, "x/auc", "training.monitor: 'x/auc' is not measured; use click/auc, buy/auc, or auc for their "),
        (TWO_LABELS, "loss", "training.monitor: 'loss' is measured on training batches only\n  hint: use log_loss"),
        (TWO_LABELS[:1], "click/auc", "training.monitor: 'click/auc' is not measured; use auc"),
        (TWO_LABELS, "buy.auc", "unknown metric 'buy.auc'\n  hint: did you mean 'buy/auc'? choose one of auc, "),
    ],
)
def test_a_monitor_that_is_not_measured_is_refused(
    tmp_path: Path, labels: list[dict[str, Any]], monitor: str, message: str
) -> None:
    values = values_with(tmp_path, {"data.labels": labels, "training.monitor": monitor})
    with pytest.raises(ConfigError) as caught:
        parse_config(Experiment, values).check()
    assert message in str(caught.value)
