"""A checkpoint comes back bit for bit; damage of any kind is refused by name; pruning keeps the best and the newest."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.snapshot import Snapshot, load_snapshot, load_state, save_snapshot
from ziggurat.core.errors import RunFolderError


def snapshot(seed: int = 0) -> Snapshot:
    generator = torch.Generator().manual_seed(seed)
    dense = {"a": torch.randn(3, 4, generator=generator), "b.c/d": torch.randn(5, generator=generator)}
    return Snapshot(
        {"dense": dense, "tables": {"t": torch.arange(6).view(2, 3)}, "none": {}}, {"step": seed, "x": [1, None]}
    )


def test_it_comes_back_bit_for_bit(tmp_path: Path) -> None:
    saved = snapshot()
    save_snapshot(tmp_path / "one", saved)
    loaded = load_snapshot(tmp_path / "one")
    assert loaded.state == saved.state == load_state(tmp_path / "one")
    assert loaded.groups.keys() == saved.groups.keys()
    for group, tensors in saved.groups.items():
        assert loaded.groups[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(loaded.groups[group][name], tensor)


@pytest.mark.parametrize("file", ["dense.safetensors", "tables.safetensors"])
def test_any_flipped_byte_is_found(tmp_path: Path, file: str) -> None:
    save_snapshot(tmp_path / "one", snapshot())
    path = tmp_path / "one" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(RunFolderError, match=rf"{file}: its SHA-256 differs"):
        load_snapshot(tmp_path / "one")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    save_snapshot(tmp_path / "one", snapshot())
    (tmp_path / "one" / "tables.safetensors").unlink()
    with pytest.raises(RunFolderError, match=r"tables\.safetensors: missing"):
        load_snapshot(tmp_path / "one")


def test_another_format_is_refused(tmp_path: Path) -> None:
    save_snapshot(tmp_path / "one", snapshot())
    path = tmp_path / "one" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 7}))
    with pytest.raises(RunFolderError, match="checkpoint format 7, this ziggurat reads 1"):
        load_snapshot(tmp_path / "one")


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=2)
    for step in (1, 2, 3, 4, 5):
        folder.save(step, snapshot(step))
        if step == 2:
            folder.mark_best(2, "auc", 0.9)
    assert folder.steps() == [2, 4, 5]
    assert folder.load("best").state["step"] == 2
    assert folder.load("last").state["step"] == 5
    assert folder.load("4").state["step"] == 4


def test_leftovers_of_a_crash_are_no_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    folder.save(1, snapshot())
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / f".step-00000003.{os.getpid()}.part").mkdir()  # of a process that had this number before
    assert folder.last() == 1
    folder.save(4, snapshot())
    assert not list(tmp_path.glob(".*.part"))


def test_a_checkpoint_whose_replacement_was_killed_is_found(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(7, snapshot(7))
    folder.path(7).rename(tmp_path / f".step-00000007.{os.getpid()}.old")
    assert folder.steps() == [7]
    assert folder.load("last").state["step"] == 7


def test_a_best_checkpoint_that_was_deleted_names_the_mend(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for step in (1, 2):
        folder.save(step, snapshot(step))
    folder.mark_best(1, "auc", 0.9)
    shutil.rmtree(folder.path(1))
    with pytest.raises(RunFolderError, match=r"no checkpoint of step 1; there are \[2\]") as caught:
        folder.load("best")
    assert f"delete {tmp_path / 'best.json'}" in caught.value.mend


@pytest.mark.parametrize(
    ("which", "message"), [("3", "no checkpoint of step 3"), ("newest", "neither 'best', 'last' nor")]
)
def test_an_unknown_checkpoint_is_refused(tmp_path: Path, which: str, message: str) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, snapshot())
    with pytest.raises(RunFolderError, match=message):
        folder.load(which)


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no checkpoint[\s\S]*train first"):
        CheckpointFolder(tmp_path / "nothing").load("best")
