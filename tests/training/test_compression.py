"""Proposals of smaller tables: the budget is kept, important rows get more, and what is proposed can be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from tests.exporting.export_kit import PLAIN, log_columns, make_experiment, write_log
from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.features.encoders.files import encoder_file_names
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.features.tables import resolve_tables
from ziggurat.training import api
from ziggurat.training.experiment import Experiment, to_yaml
from ziggurat.training.placement.compression import allotted, private_rows


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    columns = log_columns()
    # Some users occur often enough to learn what they are like.
    drawn = 600 * np.random.default_rng(0).random(len(columns["item"])) ** 2
    columns["user"] = [f"u{int(each)}" for each in drawn]
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
    assert "times were asked for" not in printed
    assert "A compact map cannot be continued with `keep`" in printed
    most = CliRunner().invoke(app, ["plan", "exp.yaml", "--compress", "500"])
    assert "500 times were asked for" in most.output
    found = CliRunner().invoke(app, ["plan", "exp.yaml", "--compress", "500", "--json"])
    assert [each["encoder"]["name"] for each in json.loads(found.stdout)["tables"]] == ["hash", "learned_hash"]
    rarely = [*range(len(log_columns()["item"]))]
    write_log(tmp_path / "log.parquet", {**log_columns(), "user": [f"u{each}" for each in rarely], "item": rarely})
    rare = CliRunner().invoke(app, ["plan", "exp.yaml", "--compress", "4"])
    assert "weights and maps:" in rare.output
    assert "A compact map" not in rare.output


def test_look_ups_and_bytes_of_maps_are_counted(experiment: Experiment, tmp_path: Path) -> None:
    dataset = api.prepare(experiment, tmp_path / "data")
    found = api.propose_compression(experiment, 4, tmp_path / "data")
    user = found.tables[0]
    assert user.encoder is not None
    arrays = load_file(dataset.folder / "encoders" / encoder_file_names("user")[1])
    assert user.map_before == sum(each.nbytes for each in arrays.values()) > 600
    smaller = make_experiment(tmp_path, [dict(PLAIN[0], encoder=user.encoder), *PLAIN[1:]], embeddings__dim=16)
    fitted = SavedTransform.open(api.prepare(smaller, tmp_path / "smaller").folder / "encoders")
    assert fitted.map_bytes() == {"user": user.map_bytes}

    statistics = dataset.statistics()
    item = statistics.tables["item"]
    often = replace(statistics, tables={**statistics.tables, "item": replace(item, accesses=20 * item.accesses)})
    layout, chosen = experiment.layout(dataset.schema), ["user", "item"]
    encoders = {name: each.encoder for name, each in resolve_tables(experiment.features).items()}
    equal = dict.fromkeys(chosen, 1.0)

    def share(of: DatasetStatistics) -> float:
        users, items = allotted(layout, of, encoders, equal, dict.fromkeys(chosen, 0), chosen, 20).tables
        return items.rows / (users.rows + items.rows)

    assert share(often) > 0.85 > 0.6 > share(statistics)


def test_tables_of_two_rows_a_value_are_made_smaller_too(experiment: Experiment, tmp_path: Path) -> None:
    double = {"name": "double_hash", "rows": 20_000}
    larger = make_experiment(tmp_path, [dict(PLAIN[0], encoder=double), *PLAIN[1:]], embeddings__dim=16)
    found = api.propose_compression(larger, 10, tmp_path / "data")
    assert found.bytes_before / found.bytes == pytest.approx(10, rel=0.05)
    proposed = {each.table: each.encoder for each in found.tables}
    assert proposed["user"] is not None
    assert proposed["user"]["name"] == "frequency_hash"


def test_values_that_occur_rarely_are_hashed(experiment: Experiment, tmp_path: Path) -> None:
    """A proxy knows the labels of such values, not what they are like."""
    columns = log_columns()
    columns["user"] = [f"u{each}" for each in np.random.default_rng(0).integers(0, 600, len(columns["item"]))]
    write_log(tmp_path / "log.parquet", columns)
    user, _ = api.propose_compression(experiment, 4, tmp_path / "data").tables
    assert user.encoder is not None
    assert user.encoder["name"] == "hash"
    assert user.why.endswith("occur too rarely to learn what they are like")


def test_tables_that_are_left_as_they_are_may_leave_nothing(experiment: Experiment, tmp_path: Path) -> None:
    bins = {"name": "bucketise", "bins": 200}
    age = {"name": "age", "kind": "numeric", "transforms": [bins]}
    bucketised = make_experiment(tmp_path, [*PLAIN[:2], age], embeddings__dim=16)
    found = api.propose_compression(bucketised, 2, tmp_path / "data")
    assert {each.table: each.why for each in found.tables if each.encoder is None}["age"] == "buckets of numbers"
    with pytest.raises(
        ConfigError, match=r"--compress 20: tables .* of .* bytes: age \(buckets of numbers\)"
    ) as raised:
        api.propose_compression(bucketised, 20, tmp_path / "data")
    assert raised.value.hint is not None
    possible = float(raised.value.hint.split()[2])
    assert 2 < possible < 20
    least = api.propose_compression(bucketised, possible, tmp_path / "data")
    assert least.bytes_before / least.bytes == pytest.approx(possible, rel=0.05)


def test_values_used_more_than_an_average_shared_row_are_private() -> None:
    assert private_rows(np.array([100, 10, 1, 1, 1, 1]), 4) == 2
    assert private_rows(np.array([5, 5, 5, 5]), 2) == 0
    assert private_rows(np.array([3]), 1) == 0
