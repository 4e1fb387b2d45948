"""The folder of checkpoints: which exist, which is the best, which are deleted; reading format 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoint_kit import Table, load_tensors, same_bits, saver, write_legacy_checkpoint
from torch import Tensor

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.writer import Best
from ziggurat.core.errors import RunFolderError
from ziggurat.parallel.tensor_slices import TensorSlice


def save_full(folder: CheckpointFolder, *steps: int, best: int | None = None) -> None:
    """Saves full checkpoints of these steps."""
    table = Table(rows=20)
    with saver(folder, table, policy="full") as saving:
        for step in steps:
            saving.save(step, {}, {"step": step}, best=Best("auc", 0.9) if step == best else None)


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=2)
    save_full(folder, 1, 2, 3, 4, 5, best=2)
    assert folder.steps() == [2, 4, 5]
    assert folder.load("best").state["step"] == 2
    assert folder.load("last").state["step"] == 5
    assert folder.load("4").state["step"] == 4


def test_leftovers_of_a_crash_are_not_a_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    save_full(folder, 1)
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "rank-00000-00000.abcdef01.safetensors").write_bytes(b"half")
    (tmp_path / "step-00000001" / "rank-00000-00000.deadbeef.safetensors").write_bytes(b"of a write that was replaced")
    (tmp_path / "step-00000001" / "notes.txt").write_text("mine")
    (tmp_path / "my-notes").mkdir()
    assert folder.last() == 1
    save_full(folder, 4)
    assert folder.steps() == [1, 4]
    assert sorted(folder.store.folders()) == ["my-notes", "step-00000001", "step-00000004"]
    assert "rank-00000-00000.deadbeef.safetensors" not in folder.store.files("step-00000001")
    assert (tmp_path / "step-00000001" / "notes.txt").read_text() == "mine"


def test_folders_of_another_program_are_refused_and_stay(tmp_path: Path) -> None:
    theirs = tmp_path / "step-00001000"
    theirs.mkdir()
    (theirs / "model.pt").write_bytes(b"theirs")
    folder = CheckpointFolder(tmp_path)
    assert folder.leftovers() == []
    with pytest.raises(RunFolderError, match=r"model\.pt: is not a file of a ziggurat checkpoint") as caught:
        save_full(folder, 1)
    assert "name another place in checkpoints.store" in caught.value.hint
    folder.sweep()
    assert (theirs / "model.pt").read_bytes() == b"theirs"


def test_foreign_files_in_a_checkpoints_folder_stay(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    save_full(folder, 1, 2)
    mine, part = tmp_path / "step-00000001" / "gathered.safetensors", tmp_path / "step-00000002/.manifest.json.7.part"
    mine.write_bytes(b"mine")
    part.write_bytes(b"half")
    (tmp_path / "step-00000002" / "notes").mkdir()
    folder.sweep()
    assert (mine.exists(), part.exists()) == (True, False)
    assert folder.prune(1) == [1]
    assert folder.store.files("step-00000001") == ["gathered.safetensors"]
    folder.discard([2])
    assert [path.name for path in (tmp_path / "step-00000002").iterdir()] == ["notes"]


def test_a_best_checkpoint_that_was_deleted_names_the_hint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    save_full(folder, 1, 2, best=1)
    folder.store.delete("step-00000001")
    with pytest.raises(RunFolderError, match=r"no checkpoint of step 1; there are \[2\]") as caught:
        folder.load("best")
    assert f"delete {tmp_path / 'best.json'}" in caught.value.hint


def test_without_best_json_the_newest_manifest_names_the_best(tmp_path: Path) -> None:
    folder, table = CheckpointFolder(tmp_path, keep=1), Table(rows=20)
    with saver(folder, table, policy="full") as saving:
        for step, best in ((1, None), (2, 2), (3, 2), (4, 2)):
            at = {"best_step": best, "best": best and 0.9}
            saving.save(step, {}, {"progression": at}, best=Best("auc", 0.9) if step == best else None)
    assert folder.steps() == [2, 4]
    (tmp_path / "best.json").unlink()
    assert folder.resolve("best") == 2
    assert folder.best() == {"step": 2, "metric": "", "value": 0.9}
    assert folder.removable() == []
    (tmp_path / "step-00000004" / "manifest.json").write_text("{")
    assert folder.resolve("best") == 2  # now its own manifest is the newest readable one
    folder.store.delete("step-00000004")
    folder.store.delete("step-00000002")
    save_full(folder, 5)
    assert folder.best() is None
    assert folder.resolve("best") == 5


def test_incomplete_checkpoints_do_not_count_as_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=9)
    save_full(folder, 1, 2, 3, 4, 5)
    for step, harm in ((3, b""), (5, None)):
        path = next((tmp_path / f"step-{step:08d}").glob("rank-*"))
        path.unlink() if harm is None else path.write_bytes(harm)
    assert folder.removable(1) == [1, 2, 3]  # 5 lacks a file
    assert folder.removable(2) == [1]  # a file of 3 has another size
    assert folder.removable(3) == []
    with saver(folder, Table(rows=20), policy="consecutive") as saving:
        for step in (6, 7, 8):
            saving.save(step, {}, {})
    assert folder.prune(1) == [1, 2, 3, 4, 5]
    next((tmp_path / "step-00000006").glob("rank-*")).unlink()  # 7 and 8 need it
    assert folder.prune(1) == []


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "expected a JSON object"),
        ('{"step": "1"}', "does not say which step"),
        ('{"step": 1}', "does not say which metric"),
        ('{"step": 1, "metric": "auc", "value": 0.8, "sha256": "0"}', "its content differs from its checksum"),
        ('{"step": 1, "metric": "auc", "value": 0.8}', "has no checksum"),
    ],
)
def test_a_damaged_best_json_is_reported(tmp_path: Path, harm: str, message: str) -> None:
    folder = CheckpointFolder(tmp_path)
    save_full(folder, 1, best=1)
    (tmp_path / "best.json").write_text(harm)
    with pytest.raises(RunFolderError, match=rf"best\.json: {message}"):
        folder.load("best")


def test_a_file_with_the_name_of_a_checkpoint_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step-00001000").write_bytes(b"theirs")
    with pytest.raises(RunFolderError, match=r"step-00001000: is a file with the name of a checkpoint's folder"):
        save_full(CheckpointFolder(tmp_path), 1)


@pytest.mark.parametrize(
    ("which", "message"), [("3", "no checkpoint of step 3"), ("newest", "neither 'best', 'last' nor")]
)
def test_an_unknown_checkpoint_is_refused(tmp_path: Path, which: str, message: str) -> None:
    folder = CheckpointFolder(tmp_path)
    save_full(folder, 1)
    with pytest.raises(RunFolderError, match=message):
        folder.load(which)


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no checkpoint[\s\S]*train first"):
        CheckpointFolder(tmp_path / "nothing").load("best")


def test_with_a_damaged_manifest_nothing_is_deleted_that_it_may_need(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    save_full(folder, 1)
    (tmp_path / "step-00000001" / "manifest.json").write_text("{")
    save_full(folder, 2)
    assert folder.steps() == [2]  # step 1 was deleted: no checkpoint that is kept needs it
    other = CheckpointFolder(tmp_path, keep=9)
    save_full(other, 3, 4)
    (tmp_path / "step-00000004" / "manifest.json").write_text("{")
    assert folder.prune() == []
    assert folder.steps() == [2, 3, 4]


def legacy_groups() -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return {
        "dense": {"a": torch.randn(3, 4, generator=generator), "b.c/d": torch.randn(5, generator=generator)},
        "tables": {"t": torch.randn(6, 3, generator=generator)},
        "table_optimizer": {"t/sum": torch.rand(6, generator=generator)},
    }


def test_format_1_is_read(tmp_path: Path) -> None:
    groups, folder = legacy_groups(), CheckpointFolder(tmp_path)
    write_legacy_checkpoint(tmp_path / "step-00000007", groups, {"x": [1, None]})
    (tmp_path / "best.json").write_text(json.dumps({"step": 7, "metric": "auc", "value": 0.5}))
    assert folder.load("best").state == {"x": [1, None]}
    expected = {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
    assert same_bits(load_tensors(folder, 7), expected)
    tensor_slice = TensorSlice("t", torch.zeros(2, 3), (6, 3), (4, 0))
    folder.load(7).fill({"tables": [tensor_slice]})
    assert torch.equal(tensor_slice.tensor, groups["tables"]["t"][4:])
    save_full(CheckpointFolder(tmp_path, keep=1), 9)  # a run with checkpoints of format 1 continues in format 2
    assert folder.steps() == [7, 9]


@pytest.mark.parametrize("file", ["dense.safetensors", "tables.safetensors"])
@pytest.mark.parametrize("harm", ["flipped", "missing"])
def test_damage_of_format_1_is_named(tmp_path: Path, file: str, harm: str) -> None:
    write_legacy_checkpoint(tmp_path / "step-00000007", legacy_groups(), {})
    path = tmp_path / "step-00000007" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content)) if harm == "flipped" else path.unlink()
    with pytest.raises(RunFolderError, match=rf"{file}: (its SHA-256 differs|missing)"):
        CheckpointFolder(tmp_path).load(7).verify()
