"""A run with offloaded tables equals, bit for bit, the run whose tables fit into memory."""

from __future__ import annotations

import csv
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.test_train import assert_same_bits, start, tensors, wait_for_step
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.data.encoded.columns import Columns
from ziggurat.training import api
from ziggurat.training.experiment import Experiment, to_yaml
from ziggurat.training.placement.batch_needs import max_ids_per_table
from ziggurat.training.prediction.predictor import Predictor
from ziggurat.training.run_folder.metrics_log import read_metrics_log

USERS, ITEMS, ROWS = 1500, 2500, 3000
STEPS = 40


def write_large_log(path: Path, longest: int = 3) -> None:
    """Writes a log with far more users and items than a batch has; histories have up to ``longest`` items."""
    draw = np.random.default_rng(0)
    users, items = draw.zipf(1.2, ROWS) % USERS, draw.zipf(1.1, ROWS) % ITEMS
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["user", "item", "history", "click"])
        for user, item in zip(users.tolist(), items.tolist(), strict=True):
            history = "|".join(map(str, draw.integers(0, ITEMS, int(draw.integers(0, longest + 1))).tolist()))
            out.writerow([f"u{user}", item, history, int(draw.random() < 0.2 + 0.5 * (item % 2))])


def large_values(folder: Path) -> dict[str, Any]:
    return {
        "name": "large",
        "data": {
            "folder": str(folder),
            "source": {"name": "csv", "files": ["log.csv"]},
            "split": {"name": "random", "validation": 0.1, "test": 0.1},
            "labels": [{"name": "click"}],
        },
        "features": [
            {"name": "user", "kind": "categorical", "encoder": {"name": "hash", "rows": USERS}},
            {
                "name": "item",
                "kind": "categorical",
                "type": "integer",
                "encoder": {"name": "hash", "rows": ITEMS},
            },
            {"name": "history", "kind": "sequence", "type": "integer", "last": 3, "table": "item"},
        ],
        "embeddings": {"dim": 8, "optimizer": {"name": "rowwise_adagrad", "lr": 0.1}},
        "model": {"name": "deepfm", "deep": {"hidden": [16]}},
        "training": {"batch_size": 16, "max_steps": STEPS, "seed": 3, "log_every": 5, "evaluate_every": 15},
        "evaluation": {"batch_size": 64},
    }


def large(folder: Path, memory: str | None = None, **changes: Any) -> Experiment:
    values = large_values(folder)
    if memory is not None:
        values["planning"] = {"beyond_memory": {"memory": memory}}
    for path, value in changes.items():
        set_by_path(values, path.replace("__", "."), value)
    return parse_config(Experiment, values)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_large_log(tmp_path / "log.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


OPTIMIZERS = [
    {"name": "sgd", "lr": 0.5},
    {"name": "adagrad", "lr": 0.1},
    {"name": "rowwise_adagrad", "lr": 0.1},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: each["name"])
def test_an_offloaded_run_equals_the_run_in_memory(optimizer: dict[str, Any], folder: Path) -> None:
    inside = api.train(large(folder, embeddings__optimizer=optimizer), "inside")
    offloaded = api.train(large(folder, "70kB", embeddings__optimizer=optimizer), "offloaded")
    assert offloaded.results is not None
    assert inside.results is not None
    assert offloaded.results["figures"] == inside.results["figures"]
    assert_same_bits(tensors(Path("inside"), STEPS), tensors(Path("offloaded"), STEPS))
    moved = [
        record for record in read_metrics_log(Path("offloaded/metrics.jsonl")) if record["split"] == "beyond_memory"
    ]
    assert [record["step"] for record in moved] == [5 * k for k in range(1, 1 + STEPS // 5)]
    assert all(0 < record["hit_rate"] < 1 for record in moved)
    assert sum(record["reads"] for record in moved) > 0
    for run in ("inside", "offloaded"):
        assert api.evaluate(run).compute() == api.evaluate("inside").compute()
    rows = {"user": ["u1", "u2", "nobody"], "item": [3, 4, 5], "history": [[1, 2], [], [7]]}
    assert np.array_equal(api.predict("inside", rows), api.predict("offloaded", rows))
    assert not [path for path in Path("offloaded").iterdir() if "rows" in path.name]


@pytest.mark.parametrize("longest", [3, 40])
def test_the_memory_that_the_error_asks_for_is_enough(longest: int, folder: Path) -> None:
    """Trains, evaluates and predicts with it, with bags of any length."""
    write_large_log(folder / "log.csv", longest)
    changes = {
        "training__batch_size": 4,
        "evaluation__batch_size": 512,
        "features": [*large_values(folder)["features"]],
    }
    changes["features"][2] = {"name": "history", "kind": "bag", "type": "integer", "table": "item"}
    with pytest.raises(NoFeasiblePlan) as refused:
        api.train(large(folder, "1kB", **changes), "run")
    enough = re.search(r"give at least (\S+ kB)", str(refused.value))
    assert enough is not None
    api.train(large(folder, enough[1], **changes), "run")
    api.train(large(folder, **changes), "inside")
    assert_same_bits(tensors(Path("inside"), STEPS), tensors(Path("run"), STEPS))
    rows = {
        "user": [f"u{n}" for n in range(400)],
        "item": list(range(400)),
        "history": [[n, 2 * n] for n in range(400)],
    }
    np.testing.assert_allclose(api.predict("inside", rows), api.predict("run", rows), rtol=1e-5)


def test_a_batch_too_large_to_predict_is_split(folder: Path) -> None:
    """The predictions are the same, up to rounding in matrix products of other shapes."""
    api.train(large(folder, "60kB", training__max_steps=5), "run")
    api.train(large(folder, training__max_steps=5), "inside")
    with Predictor("run") as predictor, Predictor("inside") as other:
        predictor._batch_size = 2000
        rows = {"user": [f"u{n}" for n in range(1900)], "item": [*range(1900)], "history": [[n] for n in range(1900)]}
        np.testing.assert_allclose(predictor.predict(rows), other.predict(rows), rtol=1e-5)


def test_a_run_on_a_read_only_disk_predicts_and_evaluates(folder: Path) -> None:
    api.train(large(folder, "60kB", training__max_steps=5), "run")
    mounted = folder / "read-only"
    mounted.mkdir()
    steps = [["mount", "--bind", "run", str(mounted)], ["mount", "-o", "remount,ro,bind", str(mounted)]]
    try:
        for step in steps:
            if (done := subprocess.run(step, check=False, capture_output=True, text=True)).returncode:
                pytest.skip(f"no permission to mount: {done.stderr.strip()}")
        rows = {"user": ["u1", "nobody"], "item": [3, 5], "history": [[1, 2], []]}
        assert np.array_equal(api.predict(mounted, rows), api.predict("run", rows))
        assert api.evaluate(mounted).compute() == api.evaluate("run").compute()
    finally:
        subprocess.run(["umount", str(mounted)], check=False, capture_output=True)


def test_the_longest_bags_are_counted(folder: Path) -> None:
    write_large_log(folder / "log.csv", 30)
    experiment = large(folder)
    dataset = api.prepare(experiment)
    for split in ("train", "test"):
        blocks = dataset.split(split)
        columns = Columns([blocks.read(number) for number in range(len(blocks.blocks))], dataset.schema)
        lengths = np.sort(np.diff(columns.jagged("history").offsets))
        assert max_ids_per_table(blocks, dataset.schema, 16) == {"item": int(lengths[-16:].sum()) + 16}


def test_it_resumes_with_more_or_less_memory(folder: Path) -> None:
    api.train(large(folder), "straight")
    for memory, stop in (("60kB", 9), ("90kB", 21), ("55kB", 33), (None, 36), ("60kB", None)):
        api.train(large(folder, memory, checkpoints__policy="consecutive", training__keep=9), "parts", stop_after=stop)
    assert_same_bits(tensors(Path("straight"), STEPS), tensors(Path("parts"), STEPS))


@pytest.mark.parametrize("states", [False, True])
def test_a_warm_start_fills_offloaded_rows(states: bool, folder: Path) -> None:
    api.train(large(folder, training__max_steps=15), "old")
    start = {"run": "old", "optimizer": states}
    for run, memory in (("inside", None), ("offloaded", "60kB")):
        api.train(large(folder, memory, training__warm_start=start, training__max_steps=10), run)
    assert_same_bits(tensors(Path("inside"), 10), tensors(Path("offloaded"), 10))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_training_resumes_exactly_after_a_signal(number: signal.Signals, folder: Path) -> None:
    changes = {"training__max_steps": 150, "training__epochs": 9, "training__save_every": 12, "training__log_every": 1}
    experiment = large(folder, "60kB", training__threads=1, **changes)
    config = folder / "large.yaml"
    config.write_text(to_yaml(experiment), encoding="utf-8")
    process = start(folder, config, "stopped")
    wait_for_step(folder / "stopped", 40)
    process.send_signal(number)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), errors
    assert not [*Path("stopped").glob("*rows*")]
    assert api.train(experiment, "stopped").step == 150
    api.train(large(folder, training__threads=1, **changes), "straight")
    assert_same_bits(tensors(Path("straight"), 150), tensors(Path("stopped"), 150))


def test_nothing_is_offloaded_if_all_rows_fit_into_memory(folder: Path) -> None:
    api.train(large(folder, "1MB", training__max_steps=5), "run")
    assert not [record for record in read_metrics_log(Path("run/metrics.jsonl")) if record["split"] == "beyond_memory"]


def test_rows_are_stored_in_the_configured_folder(folder: Path) -> None:
    experiment = large(folder, "60kB", planning__beyond_memory__folder=str(folder / "disk"), training__max_steps=5)
    api.train(experiment, "run")
    assert list((folder / "disk").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"memory": "20kB"},
            NoFeasiblePlan,
            r"memory: rank 0 has 20 kB for rows, and those of 6 training batches.* need",
        ),
        (
            {"embeddings__optimizer": {"name": "adam", "lr": 0.01}},
            ConfigError,
            "table 'item', with .* there, is trained by adam: all of its rows need memory",
        ),
        ({"training__weight_average": 0.9}, ConfigError, "weight_average: reads every row at each step"),
    ],
)
def test_unsupported_configs_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str, folder: Path
) -> None:
    memory = changes.pop("memory", "60kB")
    with pytest.raises(error, match=message):
        api.train(large(folder, memory, **changes), "run")
