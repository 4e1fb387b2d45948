"""An interrupted preparation resumes and gives the same bytes, whenever it is interrupted."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_kit import Experiment, experiment, write_csv

from ziggurat.core.errors import RunFolderError
from ziggurat.data.encoded.dataset import SPLITS, Dataset
from ziggurat.data.readers.quarantine import Quarantine
from ziggurat.features.preparation import block_batching, staging
from ziggurat.features.preparation import prepare as prepare_module
from ziggurat.features.preparation.journal import StagingJournal
from ziggurat.features.preparation.prepare import prepare

FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "categorical", "type": "integer"},
    {"name": "tags", "kind": "bag", "encoder": {"name": "vocabulary", "min_count": 2, "oov_rows": 2}},
    {"name": "x", "kind": "numeric", "transforms": [{"name": "quantile", "bins": 10}]},
]

# Small blocks and parts, so that a file of one megabyte gives dozens of parts, which are written slowly enough to be
# interrupted.
SCRIPT = """
import json, signal, sys, time
from pathlib import Path
from feature_kit import Experiment
from ziggurat.core.config import parse_config
from ziggurat.features.preparation import block_batching
from ziggurat.features.preparation import prepare as module
from ziggurat.features.preparation import staging

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background jobs ignore it
block_batching.PART_ROWS = 1000
open_source = module.open_source
module.open_source = lambda *args, **options: open_source(*args, **{**options, "block_bytes": 8192})
write_part = staging.write_part
def write_slowly(*args):
    checksum = write_part(*args)
    time.sleep(0.02)
    return checksum
staging.write_part = write_slowly
settings = json.loads(sys.argv[1])
parsed = parse_config(Experiment, settings)
module.prepare(parsed.data, parsed.features, Path(sys.argv[2]))
"""


def settings_for(folder: Path) -> dict[str, Any]:
    return {
        "data": {
            "folder": str(folder),
            "source": {"name": "csv", "files": ["*.csv"]},
            "labels": [{"name": "click"}],
            "on_bad_row": "quarantine",
            "split": {"name": "time_within_key", "key": "user"},
            "time": "t",
            "block_rows": 512,
        },
        "features": FEATURES,
    }


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes two files of 15,000 rows, of which a few hundred are bad."""
    folder = tmp_path_factory.mktemp("raw")
    draw = np.random.default_rng(0)
    rows = 15_000
    for name in ("a", "b"):
        columns: dict[str, list[Any]] = {
            "user": draw.integers(0, 500, rows).tolist(),
            "tags": ["|".join(f"tag{t}" for t in draw.zipf(1.5, draw.integers(1, 4)) % 5000) for _ in range(rows)],
            "x": draw.normal(size=rows).round(4).tolist(),
            "click": draw.choice([0, 1, 7], rows, p=[0.6, 0.39, 0.01]).tolist(),
            "t": draw.integers(0, 10_000, rows).tolist(),
        }
        for row in draw.choice(rows, 100, replace=False):
            columns["x"][row] = "wrong"
        write_csv(folder / f"{name}.csv", columns)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("uninterrupted") / "prepared"
    process = start(raw, folder)
    assert process.wait() == 0
    return contents(folder)


def start(raw: Path, folder: Path) -> subprocess.Popen[bytes]:
    python_path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path)}
    command = [sys.executable, "-c", SCRIPT, json.dumps(settings_for(raw)), str(folder)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def staged_parts(folder: Path) -> int:
    journal = folder / ".staging" / "journal.jsonl"
    return journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_repeatedly_killed_preparation_gives_the_same_bytes(
    raw: Path, uninterrupted: dict[str, bytes], tmp_path: Path, kill: signal.Signals
) -> None:
    folder = tmp_path / "prepared"
    progress: list[int] = []
    for more_parts in (1, 15):  # kill it when this many more of about 28 parts are staged
        process = start(raw, folder)
        before = staged_parts(folder)
        while process.poll() is None and staged_parts(folder) < before + more_parts:
            time.sleep(0.002)
        process.send_signal(kill)
        assert process.wait() != 0
        progress.append(staged_parts(folder))
    assert progress == sorted(progress)
    assert progress[0] >= 1
    assert start(raw, folder).wait() == 0
    assert contents(folder) == uninterrupted


def test_files_are_not_read_again_once_all_parts_are_staged(
    raw: Path, uninterrupted: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "prepared"
    process = start(raw, folder)
    while process.poll() is None and not (folder / "train").exists():  # the last pass has started
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not (folder / "manifest.json").exists():
        monkeypatch.setattr(staging, "write_part", None)  # a part staged again would raise
        parsed = Experiment.model_validate(settings_for(raw))
        prepare(parsed.data, parsed.features, folder)
    assert contents(folder) == uninterrupted


class _InterruptedError(BaseException):
    """Interrupts preparation, as a signal would."""


@pytest.mark.parametrize("moment", ["before the part", "after the part", "after the quarantine"])
def test_interruption_between_any_two_steps_of_any_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    draw = np.random.default_rng(1)
    for name in ("train1", "train2", "valid", "test"):
        clicks = draw.choice([0, 1, 9], 60, p=[0.5, 0.4, 0.1]).tolist()
        write_csv(tmp_path / f"{name}.csv", {"x": draw.integers(0, 9, 60).tolist(), "click": clicks})
    parsed = experiment(
        [{"name": "x", "kind": "categorical", "type": "integer"}],
        folder=str(tmp_path),
        source={"name": "csv", "files": ["train*.csv"]},
        split={"name": "files", "validation": ["valid.csv"], "test": ["test.csv"]},
        on_bad_row="quarantine",
    )
    monkeypatch.setattr(block_batching, "PART_ROWS", 20)
    open_source = prepare_module.open_source

    def open_with_small_blocks(*arguments: Any, **options: Any) -> Any:
        return open_source(*arguments, **{**options, "block_bytes": 64})

    monkeypatch.setattr(prepare_module, "open_source", open_with_small_blocks)
    expected = contents(prepare(parsed.data, parsed.features, tmp_path / "whole"))
    interrupt_at = countdown = 0

    def interrupting(step: Callable[..., Any], when: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal countdown
            if when == moment:
                countdown -= 1
                if countdown < 0:
                    raise _InterruptedError
            return step(*args)

        return run

    with monkeypatch.context() as patched:
        patched.setattr(staging, "write_part", interrupting(staging.write_part, "before the part"))
        patched.setattr(Quarantine, "add", interrupting(Quarantine.add, "after the part"))
        patched.setattr(StagingJournal, "append", interrupting(StagingJournal.append, "after the quarantine"))
        while True:
            folder = tmp_path / f"prepared {interrupt_at}"
            countdown = interrupt_at
            try:
                prepare(parsed.data, parsed.features, folder)
                break
            except _InterruptedError:
                countdown = 10**6
            assert contents(prepare(parsed.data, parsed.features, folder)) == expected
            interrupt_at += 1
    assert interrupt_at >= 8


def test_an_incomplete_journal_line_is_dropped(raw: Path, uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    process = start(raw, folder)
    while process.poll() is None and staged_parts(folder) < 5:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with (folder / ".staging" / "journal.jsonl").open("ab") as stream:
        stream.write(b'{"rows": 1000, "source": 0, "posi')
    with (folder / "quarantine.jsonl").open("ab") as stream:
        stream.write(b'{"file": "a.csv", "li')
    assert start(raw, folder).wait() == 0
    assert contents(folder) == uninterrupted


def test_staged_parts_of_another_preparation_are_discarded(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", {"x": list(range(100)), "click": [0, 1] * 50})
    parsed = experiment([{"name": "x", "kind": "numeric"}], folder=str(tmp_path))
    folder = tmp_path / "prepared"
    stale = folder / ".staging"
    stale.mkdir(parents=True)
    (stale / "journal.jsonl").write_text('{"version": 1, "fingerprint": "other", "boot": ""}\n{"rows": 7}\n')
    (stale / "00000.rows.arrow").write_text("stale")
    prepare(parsed.data, parsed.features, folder)
    assert sum(Dataset(folder).split(split).rows for split in SPLITS) == 100


def test_a_folder_that_another_process_prepares_is_rejected(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", {"x": list(range(100)), "click": [0, 1] * 50})
    parsed = experiment([{"name": "x", "kind": "numeric"}], folder=str(tmp_path))
    staging_folder = tmp_path / "prepared" / ".staging"
    staging_folder.mkdir(parents=True)
    with (staging_folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match="another process is preparing in this folder"):
            prepare(parsed.data, parsed.features, tmp_path / "prepared")
    prepare(parsed.data, parsed.features, tmp_path / "prepared")
    assert Dataset(tmp_path / "prepared").split("train").rows > 0
