"""The cost network: it learns the times of sets of tables, which are not the sums of the tables' times."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ziggurat.core.errors import DataError
from ziggurat.planning.autoshard import weights
from ziggurat.planning.autoshard.cost_network import CostNetwork, CostSample, fit, work
from ziggurat.planning.autoshard.features import FEATURES, NAMES, features
from ziggurat.planning.autoshard.learned import NETWORK, SHIPPED, learned_costs
from ziggurat.planning.autoshard.pool import table_pool


def planted(number: int) -> CostSample:
    """Returns a set with a made-up time: 0.2 ms, plus time for its ids, 10 % less for each doubling of its tables."""
    draw = np.random.default_rng(number)
    tables = table_pool(tables=60)
    chosen = [tables[place] for place in draw.integers(0, len(tables), int(2 ** draw.uniform(0, 5)))]
    rows = [table.feature_vector(table.dim, 1024, "sgd") for table in chosen]
    alone = sum(table.ids_per_row * table.dim for table in chosen)
    return CostSample(np.stack(rows), 2e-4 + 1e-6 * alone * 0.9 ** np.log2(len(chosen)))


@pytest.fixture(scope="module")
def network() -> CostNetwork:
    return fit([planted(number) for number in range(600)], {"machine": "none"}, epochs=120)


def test_unseen_sets_are_predicted(network: CostNetwork) -> None:
    errors = network.errors([planted(number) for number in range(1000, 1200)])
    assert errors.median < 0.05
    assert errors.ninth < 0.2
    assert errors.rank_correlation > 0.99
    assert network.origin["held_out"]["samples"] == 60
    assert network.origin["held_out"]["median"] < 0.05


def test_the_order_of_tables_does_not_matter_and_an_empty_set_costs_nothing(network: CostNetwork) -> None:
    tables = planted(1003).features
    assert network.predict([tables]) == pytest.approx(network.predict([tables[::-1]]))
    assert network.seconds(np.zeros((2, network.embed(tables).shape[1]))).tolist() == [0, 0]


def test_predictions_for_larger_sets_are_nearly_additive(network: CostNetwork) -> None:
    tables = np.concatenate([planted(number).features for number in range(1000, 1030)])
    once, twice = network.predict([tables, np.concatenate([tables, tables])])
    assert 1.5 < twice / once < 2.5


def test_predictions_for_busier_tables_scale_with_their_traffic(network: CostNetwork) -> None:
    busy = [
        features(columns=16, rows=10**6, bags=1024, means=np.array([each]), times=np.array([1e6]), state=0)
        for each in (0.5, 5.0, 50.0)
    ]
    once, ten, hundred = network.predict([each[None] for each in busy])
    assert 4 < ten / once < 20
    assert 4 < hundred / ten < 20


def test_work_counts_the_floats_moved() -> None:
    """For 100 ids of 50 rows in 20 bags: ids, rows read, weights and state of touched rows, vectors written."""
    found = features(columns=8, rows=50, bags=20, means=np.array([2.0]), times=np.array([50.0]), state=1)
    touched = 50 * (1 - np.exp(-2))
    assert work(found[None])[0] * 1e6 == pytest.approx(100 * 10 + touched * 17 + 20 * 10)


def test_a_network_is_saved_and_loaded(network: CostNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network.save(tmp_path / "network.safetensors")
    loaded, tables = CostNetwork.load(tmp_path / "network.safetensors"), planted(5).features
    assert loaded.origin == network.origin
    assert loaded.predict([tables]) == pytest.approx(network.predict([tables]), rel=1e-6)
    with monkeypatch.context() as patched:
        patched.setattr(weights, "VERSION", 2)
        network.save(tmp_path / "network.safetensors")
    with pytest.raises(DataError, match="learned weights of version 2") as refused:
        CostNetwork.load(tmp_path / "network.safetensors")
    assert "ziggurat doctor --measure" in refused.value.hint
    whole = (tmp_path / "network.safetensors").read_bytes()
    for length in (0, 5, len(whole) // 2):
        (tmp_path / "network.safetensors").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"network\.safetensors: is not a complete safetensors file"):
            CostNetwork.load(tmp_path / "network.safetensors")
    (tmp_path / "network.safetensors").write_bytes(whole)
    for name, other, expected in (
        ("unit", np.ones(3, np.float32), "array 'unit' is float32 with 1 dimensions"),
        ("table.0.bias", np.zeros(5, np.float32), "array 'table.0.bias' has shape"),
        ("scale", np.full(32, np.nan, np.float32), "array 'scale' has NaN"),
        ("spy", np.zeros(1, np.float32), "has the unknown array 'spy'"),
    ):
        weights.save_weights(
            tmp_path / "network.safetensors", load_file(SHIPPED / NETWORK) | {name: other}, network.origin
        )
        with pytest.raises(DataError, match=re.escape(expected)):
            CostNetwork.load(tmp_path / "network.safetensors")
    weights.save_weights(tmp_path / "network.safetensors", load_file(SHIPPED / NETWORK), {"machine": 3})
    with pytest.raises(DataError, match="does not say what it was measured on: machine is 3"):
        learned_costs(tmp_path)
    (tmp_path / "network.safetensors").write_bytes(whole)
    save_file(load_file(tmp_path / "network.safetensors"), tmp_path / "network.safetensors")
    with pytest.raises(DataError, match="learned weights of version 2 or older"):
        CostNetwork.load(tmp_path / "network.safetensors")


def test_features_include_the_reuse_of_rows() -> None:
    """1,000 rows are looked up once in two steps, and one row a hundred times in each step."""
    found = dict(
        zip(
            NAMES,
            features(
                columns=8, rows=4096, bags=50, means=np.array([0.5, 100.0]), times=np.array([1000.0, 1.0]), state=1
            ),
            strict=True,
        )
    )
    assert len(found) == FEATURES
    assert found["columns"] == pytest.approx(np.log2(9))
    assert found["ids"] == pytest.approx(np.log2(601))
    touched = 1000 * (1 - np.exp(-0.5)) + 1
    assert found["touched"] == pytest.approx(np.log2(1 + touched))
    assert found["reuse_0"] == pytest.approx(1000 * 0.5 * np.exp(-0.5) / touched)
    assert found["reuse_7"] == pytest.approx(1 / touched, rel=0.02)  # 65 to 128 times
    assert sum(found[f"reuse_{k}"] for k in range(17)) == pytest.approx(1)
