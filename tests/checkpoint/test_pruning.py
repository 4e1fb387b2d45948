"""Pruning deletes what its dry run reports, and nothing while a training runs or a manifest cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_kit import saver
from inspection_kit import fill, flip, path_of

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.inspect.pruning import prune
from ziggurat.checkpoint.inspect.verification import verify
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import locked_folder


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "run" / "checkpoints", keep=100)


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_pruning_deletes_what_the_dry_run_reported(folder: CheckpointFolder, keep: int) -> None:
    user, item = fill(folder, 3)
    for steps in ((4, 5), (6, 7)):  # two more chains
        with saver(folder, user, item, policy="consecutive") as saving:
            for step in steps:
                saving.save(step, {}, {})
                item.change(5)
    root = Path(folder.where)
    (root / "step-00000008").mkdir()
    (root / "step-00000008" / "rank-00000-00000.00000000.safetensors").write_bytes(b"12345")
    (root / "step-00000006" / "rank-00000-00009.00000000.safetensors").write_bytes(b"1234")
    (root / "step-00000006" / "notes.txt").write_bytes(b"1")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    would = prune(root.parent, keep, dry_run=True)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    done = prune(root.parent, keep)
    assert done == would
    expected = {1: [3, 4, 5], 2: [3, 4, 5], 4: [3]}[keep]  # the best is the second, which needs the first
    assert list(done.steps) == expected
    assert folder.steps() == list(done.kept) == [step for step in range(1, 8) if step not in expected]
    assert done.leftovers == ("step-00000006/rank-00000-00009.00000000.safetensors", "step-00000008/")
    left = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert sum(map(len, before.values())) - sum(map(len, left.values())) == done.bytes
    assert (root / "step-00000006" / "notes.txt").is_file()
    assert verify(folder).whole
    again = prune(root, keep)  # given the folder of checkpoints instead of the run folder
    assert (again.steps, again.leftovers, again.bytes) == ((), (), 0)


def test_pruning_is_refused_while_a_training_runs(folder: CheckpointFolder) -> None:
    fill(folder, 3)
    run = Path(folder.where).parent
    with locked_folder(run, "training"):
        for path in (run, run / "checkpoints"):
            for dry_run in (False, True):
                with pytest.raises(RunFolderError, match=r"another process is training.*\n.*training prunes by itself"):
                    prune(path, 1, dry_run=dry_run)
    with locked_folder(run / "checkpoints", "writing checkpoints"):
        for path in (run, run / "checkpoints"):
            with pytest.raises(RunFolderError, match="another process is training in this folder"):
                prune(path, 1)
    assert folder.steps() == [1, 2, 3]
    prune(run, 1)
    assert folder.steps() == [1, 2, 3]  # all are needed


def test_pruning_is_refused_if_a_manifest_cannot_be_read(folder: CheckpointFolder) -> None:
    fill(folder, 3)
    flip(path_of(folder, 3, "manifest.json"))
    with pytest.raises(RunFolderError, match=r"step-00000003/manifest\.json: .*nothing is deleted"):
        prune(Path(folder.where), 1)
    assert folder.prune(1) == []
    assert folder.steps() == [1, 2, 3]
    (Path(folder.where) / "best.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"best\.json: is not valid JSON"):
        prune(Path(folder.where), 1)


def test_a_dry_run_leaves_no_lock(folder: CheckpointFolder) -> None:
    fill(folder, 1)
    run = Path(folder.where).parent
    prune(run, 1, dry_run=True)
    assert [path.name for path in run.iterdir()] == ["checkpoints"]
