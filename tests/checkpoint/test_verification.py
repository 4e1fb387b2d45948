"""Verification reads every file once and names broken ones and what needs them, also while training goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_kit import Table, saver
from inspection_kit import RecordedProgress, add_legacy_checkpoint, fill, flip, path_of

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.inspect.verification import verify
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.core.errors import RunFolderError
from ziggurat.core.untrusted import MAX_TEXT_BYTES


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "run" / "checkpoints", keep=100)


class CountingStore(LocalStore):
    """Counts reads, and calls ``act`` once, when a file of the folder ``at`` is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: dict[str, int] = {}
        self.at = ""
        self.act: Callable[[], None] = lambda: None

    def read(self, folder: str, name: str, limit: int = MAX_TEXT_BYTES) -> bytes:
        if name.endswith(".safetensors"):
            self.reads[f"{folder}/{name}"] = self.reads.get(f"{folder}/{name}", 0) + 1
            if folder == self.at:
                self.at = ""
                self.act()
        return super().read(folder, name, limit)


def test_every_file_is_read_once(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    folder, progress = CheckpointFolder(store, keep=100), RecordedProgress()
    fill(folder, 5)
    add_legacy_checkpoint(folder, 9)
    found = verify(folder, progress=progress)
    assert found.whole
    assert [each.state for each in found.verdicts] == ["whole"] * 6
    assert store.reads == {str(path.relative_to(tmp_path)): 1 for path in tmp_path.glob("step-*/rank-*")}
    every = sum(path.stat().st_size for path in tmp_path.glob("step-*/*.safetensors"))
    assert progress.totals["verify"] == progress.done["verify"] == every
    assert sum(each.bytes for each in found.verdicts) == every


@pytest.mark.parametrize("harm", ["flipped", "truncated", "missing"])
@pytest.mark.parametrize("name", ["rank-*", "manifest.json"])
def test_broken_files_are_named_and_what_needs_them(folder: CheckpointFolder, harm: str, name: str) -> None:
    fill(folder, 4)
    with saver(folder, Table("user", 90, 3), Table()) as saving:
        saving.save(6, {}, {})  # starts another chain
    path = path_of(folder, 3, name)
    if harm == "flipped":
        flip(path)
    elif harm == "truncated":
        path.write_bytes(path.read_bytes()[:-10])
    else:
        path.unlink()
    found = verify(folder)
    assert not found.whole
    states = {each.step: each.state for each in found.verdicts}
    if harm == "missing" and name == "manifest.json":
        assert states == {1: "whole", 2: "whole", 4: "unusable", 6: "whole"}
        assert found.unfinished == ("step-00000003",)
    else:
        assert states == {1: "whole", 2: "whole", 3: "broken", 4: "unusable", 6: "whole"}
        assert len(found.verdicts[2].problems) == 1
        assert str(path) in found.verdicts[2].problems[0]
    assert "step 3" in found.verdicts[-2].problems[0]
    assert {each.step for each in verify(folder, [2, 6]).verdicts} == {1, 2, 6}
    assert verify(folder, [2, "last"]).whole
    assert not verify(folder, ["4"]).whole


def test_all_broken_files_of_a_checkpoint_are_named(folder: CheckpointFolder) -> None:
    fill(folder, 1)
    paths = sorted(path_of(folder, 1).parent.glob("rank-*"))
    for path in paths:
        flip(path)
    problems = verify(folder).verdicts[0].problems
    assert [str(path) in problem for path, problem in zip(paths, problems, strict=True)] == [True, True]


@pytest.mark.parametrize("name", ["tables.safetensors", "state.json"])
def test_a_broken_legacy_checkpoint_is_reported(folder: CheckpointFolder, name: str) -> None:
    add_legacy_checkpoint(folder, 1)
    assert verify(folder).whole
    path = path_of(folder, 1, name)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\0" if name != "state.json" else content[:-9])
    found = verify(folder)
    assert not found.whole
    assert name in found.verdicts[0].problems[0]
    path.unlink()
    if name != "state.json":
        assert f"{name}: missing" in verify(folder).verdicts[0].problems[0]


def test_a_checkpoint_that_training_deletes_meanwhile_is_no_error(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    folder = CheckpointFolder(store, keep=100)
    fill(folder, 3)
    with saver(folder, Table(), Table("user", 90, 3)) as saving:
        saving.save(4, {}, {})

    def prunes() -> None:
        for step in (3, 2, 1):
            folder.store.delete(f"step-{step:08d}")

    store.at, store.act = "step-00000001", prunes
    (tmp_path / "best.json").unlink()
    found = verify(folder)
    assert [(each.step, each.state) for each in found.verdicts] == [
        (1, "deleted"), (2, "deleted"), (3, "deleted"), (4, "whole"),
    ]  # fmt: skip
    assert found.whole
    assert all(not each.problems for each in found.verdicts)


def test_a_checkpoint_that_training_writes_again_meanwhile_is_read_again(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    folder = CheckpointFolder(store, keep=100)
    fill(folder, 1)

    def again() -> None:
        with saver(folder, Table()) as saving:
            saving.save(1, {"dense/w": torch.zeros(3)}, {})

    store.at, store.act = "step-00000001", again
    found = verify(folder)
    assert found.whole
    assert not found.foreign
    assert found.verdicts[0].state == "whole"


def test_best_json_is_verified_and_foreign_files_are_reported(folder: CheckpointFolder) -> None:
    fill(folder, 3)
    root = Path(folder.where)
    for name in (
        "lock",
        "writer.json",
        "writer-00000003.json",
        "notes.txt",
        "step-00000001/mine.txt",
        "step-00000002/rank-00000-00007.00000000.safetensors",
    ):
        (root / name).write_text("x")
    (root / "old").mkdir()
    (root / "step-00000007").mkdir()
    (root / "step-00000007" / "rank-00000-00000.00000000.safetensors").write_text("x")
    (root / "step-00000008").mkdir()
    (root / "step-00000008" / "model.pt").write_text("of another program")
    found = verify(folder)
    assert found.whole
    assert found.foreign == (
        "notes.txt",
        "old/",
        "step-00000008/model.pt",
        "step-00000001/mine.txt",
        "step-00000002/rank-00000-00007.00000000.safetensors",
    )
    assert found.unfinished == ("step-00000007",)
    best = root / "best.json"
    values = json.loads(best.read_text())
    best.write_text(json.dumps({**values, "step": 1}))
    found = verify(folder)
    assert not found.whole
    assert f"{best}: its content differs from its checksum" in str(found.best_problem)
    best.write_text(json.dumps({"step": 77, "metric": "auc", "value": 0.5}))  # as format 1 wrote it
    assert f"{best}: names step 77, which does not exist" in str(verify(folder).best_problem)


def test_nothing_to_verify(folder: CheckpointFolder) -> None:
    with pytest.raises(RunFolderError, match=r"no checkpoint[\s\S]*train first"):
        verify(folder)
    fill(folder, 1)
    with pytest.raises(RunFolderError, match=r"no checkpoint of step 5; there are \[1\]"):
        verify(folder, ["5"])
    with pytest.raises(RunFolderError, match="checkpoint 'newest' is neither"):
        verify(folder, ["newest"])
