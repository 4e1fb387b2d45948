"""Proposals of smaller tables: the budget is kept, important rows get more, and what is proposed can be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.exporting.export_kit import PLAIN, log_columns, make_experiment, write_log
from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError
from ziggurat.training import api
from ziggurat.training.experiment import Experiment, to_yaml
from ziggurat.training.placement.compression import private_rows


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    columns = log_columns()
    columns["user"] = [f"u{each}" for each in np.random.default_rng(0).integers(0, 600, len(columns["item"]))]
    write_log(tmp_path / "log.parquet", columns)
    return make_experiment(tmp_path, PLAIN, embeddings__dim=16)


def test_a_proposal_keeps_its_budget_and_can_be_trained(experiment: Experiment, tmp_path: Path) -> None:
    found = api.propose_compression(experiment, 4, tmp_path / "data")
    assert [each.table for each in found.tables] == ["user", "item"]
    assert found.bytes <= found.bytes_before / 4 + 1
    assert found.bytes > 0.8 * found.bytes_before / 4
    user, item = found.tables
    assert user.encoder is not None
    assert item.importance > user.importance > 0  # users are drawn at random, items are not
    assert item.rows / item.rows_before > user.rows / user.rows_before
    features = [dict(each.model_dump(), encoder=user.encoder) if each.name == "user" else each.model_dump()
                for each in experiment.features]  # fmt: skip
    smaller = make_experiment(tmp_path, [*features[:1], *PLAIN[1:]], embeddings__dim=16)
    dataset = api.prepare(smaller, tmp_path / "smaller")
    assert dataset.schema.rows["user"] == user.rows
    with pytest.raises(ConfigError, match="--compress 1: is not above 1"):
        api.propose_compression(experiment, 1, tmp_path / "data")
    assert not list(tmp_path.glob("cache/ziggurat/proxies/*/pass-*"))


def test_the_command_prints_lines_for_the_config(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(to_yaml(experiment), encoding="utf-8")
    printed = CliRunner().invoke(app, ["plan", "exp.yaml", "--compress", "4"]).output
    assert "weights and maps:" in printed
    assert "user: encoder: {name: learned_hash, rows: " in printed
    found = CliRunner().invoke(app, ["plan", "exp.yaml", "--compress", "4", "--json"])
    assert json.loads(found.stdout)["ratio"] == 4


def test_values_used_more_than_an_average_shared_row_are_private() -> None:
    assert private_rows(np.array([100, 10, 1, 1, 1, 1]), 4) == 2
    assert private_rows(np.array([5, 5, 5, 5]), 2) == 0
    assert private_rows(np.array([3]), 1) == 0
