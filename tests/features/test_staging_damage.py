"""A resumed preparation stages damaged parts again; a damaged part in a running one is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_kit import LocalCluster, contents, log_experiment, write_log
from feature_kit import Experiment

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Silent
from ziggurat.features.preparation import block_batching
from ziggurat.features.preparation import prepare as prepare_module
from ziggurat.features.preparation.journal import StagingJournal
from ziggurat.features.preparation.prepare import prepare


class Stops(Silent):
    """Stops a preparation when a stage begins, after calling ``harm``; records notes."""

    def __init__(self, stage: str | None = None, harm: Callable[[], None] | None = None) -> None:
        self._stage, self._harm = stage, harm
        self.notes: list[str] = []

    def start(self, stage: str, total: float | None, unit: str) -> None:
        if stage == self._stage:
            if self._harm is None:
                raise KeyboardInterrupt
            self._harm()

    def note(self, message: str) -> None:
        self.notes.append(message)


def run(parsed: Experiment, folder: Path, progress: Silent, cluster: LocalCluster | None = None) -> Path:
    return prepare(parsed.data, parsed.features, folder, progress, cluster)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """Makes blocks of 1 kB and parts of 100 rows, so that the log has a dozen parts."""
    open_source = prepare_module.open_source

    def open_with_small_blocks(*arguments: Any, **options: Any) -> Any:
        return open_source(*arguments, **{**options, "block_bytes": 1024})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_batching, "PART_ROWS", 100)
        patch.setattr(prepare_module, "open_source", open_with_small_blocks)
        yield


@pytest.fixture(scope="module")
def interrupted(
    small_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, bytes], Experiment]:
    """Returns a folder of which all parts are staged, what the dataset must be, and the configs."""
    folder = tmp_path_factory.mktemp("staged")
    write_log(folder)
    parsed = log_experiment(folder, split={"name": "time"})
    whole = contents(run(parsed, folder / "whole", Silent()))
    with pytest.raises(KeyboardInterrupt):
        run(parsed, folder / "interrupted", Stops("fit"))
    return folder / "interrupted", whole, parsed


HARMS: dict[str, Callable[[Path], None]] = {
    "flipped": lambda path: flip(path, 0.3),
    "flipped near its end": lambda path: flip(path, 0.95),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "emptied": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": Path.unlink,
}


def flip(path: Path, where: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 16
    path.write_bytes(data)


def last_part(staging: Path) -> Path:
    return sorted(staging.glob("*.part"))[-1]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("target", ["first part", "last part", "journal", "quarantine"])
def test_what_is_damaged_is_read_again(
    interrupted: tuple[Path, dict[str, bytes], Experiment], tmp_path: Path, target: str, harm: str
) -> None:
    staged, whole, parsed = interrupted
    folder = tmp_path / "prepared"
    shutil.copytree(staged, folder)
    staging = folder / ".staging"
    paths = {
        "first part": sorted(staging.glob("*.part"))[0], "last part": last_part(staging),
        "journal": staging / "journal.jsonl", "quarantine": folder / "quarantine.jsonl",
    }  # fmt: skip
    HARMS[harm](paths[target])
    progress = Stops()
    assert contents(run(parsed, folder, progress)) == whole
    noted = any(paths[target].name in note and "read again" in note for note in progress.notes)
    assert noted or (target == "journal" and harm in {"emptied", "zeroed", "deleted", "cut", "flipped near its end"})


def test_swapped_parts_are_read_again(interrupted: tuple[Path, dict[str, bytes], Experiment], tmp_path: Path) -> None:
    staged, whole, parsed = interrupted
    folder = tmp_path / "prepared"
    shutil.copytree(staged, folder)
    one, *_, other = sorted((folder / ".staging").glob("*.part"))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    progress = Stops()
    assert contents(run(parsed, folder, progress, LocalCluster())) == whole
    assert any(one.name in note for note in progress.notes)


@pytest.mark.parametrize("forge", ["missing line", "repeated line", "other order"])
def test_lines_out_of_place_end_the_journal(tmp_path: Path, interrupted: Any, forge: str) -> None:
    staged, whole, parsed = interrupted
    folder = tmp_path / "prepared"
    shutil.copytree(staged, folder)
    path = folder / ".staging" / "journal.jsonl"
    header, first, second, *rest = path.read_bytes().splitlines(keepends=True)
    lines = {"missing line": [second], "repeated line": [first, first, second], "other order": [second, first]}[forge]
    path.write_bytes(b"".join([header, *lines, *rest]))
    assert contents(run(parsed, folder, Stops())) == whole


@pytest.mark.parametrize(("stage", "pattern"), [("fit", "*.part"), ("encode", "*.part"), ("encode", "ids.*.arrow")])
@pytest.mark.parametrize("harm", ["flipped", "cut", "deleted"])
def test_damage_while_a_preparation_runs_is_named(
    interrupted: tuple[Path, dict[str, bytes], Experiment], tmp_path: Path, stage: str, pattern: str, harm: str
) -> None:
    staged, whole, parsed = interrupted
    folder = tmp_path / "prepared"
    shutil.copytree(staged, folder)
    rng = np.random.default_rng(len(harm))
    harmed: list[Path] = []

    def do_harm() -> None:
        path = rng.choice(sorted((folder / ".staging").glob(pattern)))
        harmed.append(path)
        HARMS[harm](path)

    caught: DataError | None = None
    try:
        run(parsed, folder, Stops(stage, do_harm))
    except DataError as error:
        caught = error
    if caught is not None:
        assert harmed[0].name in caught.problem
        assert "run the same command again" in caught.hint
        assert not (folder / "manifest.json").exists()
        run(parsed, folder, Silent())
    assert contents(folder) == whole


def test_a_journal_of_an_earlier_version_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"version": 2, "fingerprint": "f", "boot": ""}\n{"rows": 7}\n')
    journal = StagingJournal(tmp_path, "f")
    assert not journal.resumed
    assert journal.damage is None
