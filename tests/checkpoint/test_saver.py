"""A checkpoint has the rows as of the moment it was started, although they change while it is written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_kit import Table, load_tensors, same_bits, saver
from torch import Tensor

from tests.small_disk import small_disk
from ziggurat.checkpoint import writer as writing
from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format import blocks
from ziggurat.checkpoint.inspect.verification import verify
from ziggurat.checkpoint.store.claim import claimed
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.checkpoint.store.writer_identity import Owner
from ziggurat.checkpoint.writer import Best
from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.parallel.tensor_slices import TensorSlice

POLICIES = ("full", "one_shot", "consecutive", "intermittent")
DENSE = {"dense/w": torch.arange(6.0).view(2, 3), "random/torch": torch.arange(8, dtype=torch.uint8)}


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", keep=100)


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_that_change_during_a_write_belong_to_the_next_checkpoint(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1_000)  # about 16 rows, so that rows change between chunks
    monkeypatch.setattr(blocks, "FILE_BYTES", 5_000)
    tables = (Table("user", 500, 7), Table("item", 90, 3, seed=1))
    expected: dict[int, dict[str, Tensor]] = {}
    with saver(folder, *tables, policy=policy) as saving:
        for step in range(1, 9):
            dense = {**DENSE, "dense/w": DENSE["dense/w"] + step}
            saving.save(step, dense, {"step": step})
            expected[step] = {k: v for table in tables for k, v in table.tensors().items()} | dense
            for _ in range(20):
                for table in tables:
                    table.change(3)
    assert folder.steps() == list(expected)
    for step, tensors in expected.items():
        assert same_bits(load_tensors(folder, step), tensors), step
        assert folder.load(step).state == {"step": step}


def test_kinds_of_checkpoints(folder: CheckpointFolder) -> None:
    kinds: dict[str, list[str]] = {}
    needs: dict[str, list[list[int]]] = {}
    for number, policy in enumerate(POLICIES):
        table, own = Table(rows=1000), CheckpointFolder(Path(folder.where) / str(number), keep=100)
        with saver(own, table, policy=policy, consecutive_deltas=3) as saving:
            for step in range(1, 8):
                saving.save(step, {}, {})
                table.change(250)
        manifests = [own.manifest(step) for step in own.steps()]
        kinds[policy] = [each.kind for each in manifests if each]
        needs[policy] = [[need.step for need in each.needs] for each in manifests if each]
    assert kinds["full"] == ["full"] * 7
    assert kinds["one_shot"] == ["full"] + ["delta"] * 6
    assert kinds["consecutive"] == ["full", "delta", "delta", "delta", "full", "delta", "delta"]
    assert needs["one_shot"] == [[], [1], [1], [1], [1], [1], [1]]
    assert needs["consecutive"] == [[], [1], [1, 2], [1, 2, 3], [], [5], [5, 6]]
    # After deltas of .22, .39 and .53: 1 + 1.14 > 4·.53 = 2.1; after .63: 2.77 < 5·.63, so the sixth is full.
    assert kinds["intermittent"] == ["full", "delta", "delta", "delta", "delta", "full", "delta"]


def test_a_delta_has_only_the_changed_rows(folder: CheckpointFolder) -> None:
    table = Table(rows=1000)
    with saver(folder, table) as saving:
        saving.save(1, {}, {})
        table.change(10)
        changed = table.dirty.count_changed("last")
        saving.save(2, {}, {})
        saving.finish()
        assert [each.rows for each in saving.written] == [1000, changed]
    full, delta = (folder.manifest(step) for step in (1, 2))
    assert full is not None
    assert delta is not None
    assert 5 * delta.bytes < full.bytes


@pytest.mark.parametrize("method", ["adaptive", "asymmetric", "symmetric"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_quantised_rows_are_restored_within_bounds(folder: CheckpointFolder, bits: int, method: str) -> None:
    table = Table(dim=16)
    table.weight_RD[3] = torch.inf  # cannot be quantised: its block is written unquantised
    with saver(folder, table, bits=bits, quantiser=method) as saving:
        saving.save(1, {}, {})
        first = table.tensors()
        saving.finish()
        table.weight_RD[3] = 0
        table.change(1000)
        saving.save(2, {}, {})
        second = table.tensors()
    assert torch.equal(load_tensors(folder, 1)["tables/item"], first["tables/item"])
    found = load_tensors(folder, 2)
    assert torch.equal(found["table_optimizer/item/sum"], second["table_optimizer/item/sum"])
    assert torch.equal(found["table_optimizer/item/mean"], second["table_optimizer/item/mean"])
    rows_RD = second["tables/item"]
    span_R = 2 * rows_RD.abs().amax(1) if method == "symmetric" else rows_RD.amax(1) - rows_RD.amin(1)
    slack = 3 if method == "adaptive" and bits <= 4 else 0.51  # of a step; a narrower range cuts off what is outside
    changed_R = (found["tables/item"] != first["tables/item"]).any(1)
    error_R = (found["tables/item"] - rows_RD).abs().amax(1)
    assert bool((error_R[changed_R] <= slack * span_R[changed_R] / (2**bits - 1) + 1e-6).all())
    assert float(error_R.max()) > 0


def test_an_exact_checkpoint_is_full_if_others_are_quantised(folder: CheckpointFolder) -> None:
    table = Table()
    with saver(folder, table, bits=4) as saving:
        saving.save(1, {}, {})
        table.change(5)
        saving.save(2, {}, {})
        saving.save(2, {}, {}, exact=True)
        expected = table.tensors()
    assert same_bits(load_tensors(folder, 2), expected)
    manifest = folder.manifest(2)
    assert manifest is not None
    assert (manifest.kind, manifest.bits) == ("full", 32)
    known = {file.name for file in manifest.files} | {"manifest.json"}
    assert set(folder.store.files("step-00000002")) == known  # the files that it replaced were deleted


def test_bits_follow_the_expected_restores() -> None:
    chosen = [CheckpointsConfig(bits="auto", expected_restores=n).bits_after(0) for n in (0, 1, 2, 3, 4, 20, 21)]
    assert chosen == [2, 2, 3, 3, 4, 4, 8]
    assert CheckpointsConfig(bits="auto", expected_restores=1).bits_after(2) == 8
    assert CheckpointsConfig(bits=3).bits_after(100) == 3


def test_slices_of_any_plan_are_filled(folder: CheckpointFolder) -> None:
    table = Table(rows=100, dim=8)
    with saver(folder, table, policy="consecutive") as saving:
        for step in (1, 2, 3):
            table.change(30)
            saving.save(step, {}, {})
    order_R = torch.randperm(100, generator=torch.Generator().manual_seed(3))
    rows = TensorSlice("item", torch.zeros(20, 8), (100, 8), (40, 0))
    columns = TensorSlice("item", torch.zeros(100, 3), (100, 8), (0, 5))
    both = TensorSlice("item", torch.zeros(7, 2), (100, 8), (93, 2))
    ordered = TensorSlice("item", torch.zeros(25, 8), (100, 8), (50, 0), order_R[50:75])
    state = TensorSlice("item/sum", torch.zeros(25), (100,), (50,), order_R[50:75])
    empty = TensorSlice("item", torch.zeros(0, 8), (100, 8), (100, 0))
    folder.load("last").fill({"tables": [rows, columns, both, ordered, empty], "table_optimizer": [state]})
    assert torch.equal(rows.tensor, table.weight_RD[40:60])
    assert torch.equal(columns.tensor, table.weight_RD[:, 5:])
    assert torch.equal(both.tensor, table.weight_RD[93:, 2:4])
    assert torch.equal(ordered.tensor, table.weight_RD[order_R[50:75]])
    assert torch.equal(state.tensor, table.sum_R[order_R[50:75]])


def test_checkpoints_that_others_need_are_not_pruned(tmp_path: Path) -> None:
    folder, table = CheckpointFolder(tmp_path, keep=1), Table()
    with saver(folder, table, policy="consecutive", consecutive_deltas=4) as saving:
        for step in range(1, 5):
            saving.save(step, {}, {}, best=Best("auc", 0.5) if step == 2 else None)
            table.change(5)
        saving.finish()
        assert folder.steps() == [1, 2, 3, 4]
        for step in (5, 6):
            saving.save(step, {}, {})
            table.change(5)
        saving.finish()
        assert folder.steps() == [1, 2, 6]  # the sixth is full, the second the best, which needs the first
    best = folder.best()
    assert best == {"step": 2, "metric": "auc", "value": 0.5}


class FillingStore(LocalStore):
    """A store with space for ``free_files`` more files."""

    free_files = 10**9

    def write(self, folder: str, name: str, data: bytes) -> None:
        if self.free_files <= 0:
            raise DataError(f"{self.where(folder, name)}: no space left on the device", "free some")
        self.free_files -= 1
        super().write(folder, name, data)


@pytest.mark.parametrize("free_files", [0, 1, 2])
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, free_files: int) -> None:
    store = FillingStore(tmp_path)
    folder, table = CheckpointFolder(store), Table()
    with saver(folder, table) as saving:
        saving.save(1, DENSE, {})
        expected = table.tensors() | DENSE
        saving.finish()
        table.change(20)
        store.free_files = free_files
        saving.save(2, DENSE, {})
        with pytest.raises(DataError, match="no space left"):
            saving.finish()
        assert folder.store.folders() == ["step-00000001"]  # what was written of the second one is deleted
        assert same_bits(load_tensors(folder, "last"), expected)
        store.free_files = 100
        saving.save(3, DENSE, {})
        expected = table.tensors() | DENSE
    assert same_bits(load_tensors(folder, 3), expected)
    manifest = folder.manifest(3)
    assert manifest is not None
    assert manifest.kind == "full"


def test_a_failed_write_of_a_step_that_exists_leaves_that_one(tmp_path: Path) -> None:
    store = FillingStore(tmp_path)
    folder, table = CheckpointFolder(store), Table()
    with saver(folder, table) as saving:
        saving.save(1, DENSE, {})
        expected = table.tensors() | DENSE
        saving.finish()
        files = set(store.files("step-00000001"))
        table.change(20)
        store.free_files = 2
        saving.save(1, DENSE, {})
        with pytest.raises(DataError, match="no space left"):
            saving.finish()
    assert set(store.files("step-00000001")) == files
    assert same_bits(load_tensors(folder, 1), expected)


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_is_deleted_while_training_runs_is_named(tmp_path: Path, again: bool) -> None:
    folder, table = CheckpointFolder(tmp_path / "checkpoints"), Table()
    with claimed(folder.store, Owner("runs/one", "1111")) as claim, saver(folder, table, check=claim.check) as saving:
        saving.save(1, DENSE, {})
        saving.finish()
        shutil.rmtree(tmp_path / "checkpoints")
        if again:
            (tmp_path / "checkpoints").mkdir()
        table.change(5)
        saving.save(2, DENSE, {})
        with pytest.raises(
            RunFolderError, match="checkpoints: was deleted, moved or emptied while this training"
        ) as told:
            saving.finish()
        assert "resumes from the newest checkpoint in there, or else from the start" in told.value.hint
    assert folder.store.folders() == []


def test_a_real_full_disk_is_named_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 512) as disk:
        folder, table = CheckpointFolder(disk / "checkpoints"), Table(rows=3000)  # 180 kB
        with saver(folder, table, policy="full") as saving:
            saving.save(1, DENSE, {})
            expected = table.tensors() | DENSE
            saving.finish()
            table.change(2000)
            free_bytes = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            (disk / "ballast").write_bytes(bytes(free_bytes - 60_000))
            saving.save(2, DENSE, {})
            with pytest.raises(
                DataError, match=r"step-00000002/rank-00000-\d+\..*: no space left on the device"
            ) as told:
                saving.finish()
            assert "the unfinished file was not kept" in told.value.problem
            assert verify(folder).unfinished == ()
            assert same_bits(load_tensors(folder, "last"), expected)
            (disk / "ballast").unlink()
            saving.save(3, DENSE, {})
            expected = table.tensors() | DENSE
        assert same_bits(load_tensors(folder, "last"), expected)
        assert folder.steps()[-1] == 3


@pytest.mark.parametrize("harm", ["flipped", "truncated", "longer", "missing"])
def test_every_damaged_file_is_named_and_nothing_is_half_loaded(folder: CheckpointFolder, harm: str) -> None:
    table = Table()
    with saver(folder, table) as saving:
        saving.save(1, DENSE, {})
        table.change(20)
        saving.save(2, DENSE, {})
    root = Path(folder.where)
    paths = sorted(root.glob("step-*/*"))
    assert len(paths) == 6
    for path in paths:
        content = path.read_bytes()
        _damage(path, harm)
        named = path.name if harm != "missing" or path.name != "manifest.json" else "step"
        tensor_slice = TensorSlice.of_tensor("item", torch.zeros(300, 7))
        dense = TensorSlice.of_tensor("w", torch.zeros(2, 3))
        with pytest.raises(RunFolderError, match=named):
            folder.load(2).fill({"tables": [tensor_slice], "dense": [dense]})
            folder.load(2).verify()
        if path.name == "manifest.json" or _has_rows(folder, path) or path.parent.name.endswith("2"):
            assert not tensor_slice.tensor.any()
            assert not dense.tensor.any()
        path.write_bytes(content)
        folder.load(2).verify()


def _damage(path: Path, harm: str) -> None:
    content = bytearray(path.read_bytes())
    match harm:
        case "flipped":
            content[len(content) // 2] ^= 1
        case "truncated":
            del content[len(content) // 2 :]
        case "longer":
            content += b"x"
        case _:
            path.unlink()
            return
    path.write_bytes(bytes(content))


def _has_rows(folder: CheckpointFolder, path: Path) -> bool:
    manifest = folder.manifest(int(path.parent.name.removeprefix("step-")))
    return manifest is not None and any(file.name == path.name and file.blocks for file in manifest.files)


def test_a_file_of_another_checkpoint_is_named(folder: CheckpointFolder) -> None:
    table = Table()
    with saver(folder, table) as saving:
        saving.save(1, DENSE, {})
        table.change(20)
        saving.save(2, DENSE, {})
    root = Path(folder.where)
    theirs = (root / "step-00000001" / "manifest.json").read_bytes()
    (root / "step-00000002" / "manifest.json").write_bytes(theirs)
    with pytest.raises(RunFolderError, match=r"step-00000002/manifest\.json: is of step 1"):
        folder.load(2)


def test_a_base_that_was_written_again_is_named(folder: CheckpointFolder) -> None:
    table = Table()
    with saver(folder, table) as saving:
        saving.save(1, {}, {})
        table.change(20)
        saving.save(2, {}, {})
    kept = (Path(folder.where) / "step-00000002" / "manifest.json").read_bytes()
    with saver(folder, table) as saving:
        saving.save(1, {}, {})
    assert (Path(folder.where) / "step-00000002" / "manifest.json").read_bytes() == kept
    with pytest.raises(RunFolderError, match="was written again since the checkpoint of step 2"):
        folder.load(2)


def test_a_changed_manifest_is_detected(folder: CheckpointFolder) -> None:
    with saver(folder, Table()) as saving:
        saving.save(1, {}, {"schedule": {"best": float("inf")}})
    assert folder.load(1).state == {"schedule": {"best": float("inf")}}
    path = Path(folder.where) / "step-00000001" / "manifest.json"
    whole = json.loads(path.read_text())
    whole["manifest"]["world_size"] = 2
    path.write_text(json.dumps(whole))
    with pytest.raises(RunFolderError, match=r"manifest\.json: its content differs from its checksum"):
        folder.load(1)
    path.write_text(json.dumps({**whole, "format_version": 9}))
    with pytest.raises(RunFolderError, match="checkpoint format 9, this ziggurat reads 1 and 2"):
        folder.load(1)


@pytest.mark.parametrize("where", ["in the block", "in finish"])
@pytest.mark.parametrize("second", [False, True])
def test_an_abandoned_checkpoint_gets_no_manifest(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, where: str, second: bool
) -> None:
    """Ctrl-C during a write must not lead to a manifest of the rows written so far."""
    monkeypatch.setattr(writing, "CHUNK_BYTES", 10_000)
    table = Table(rows=20_000, dim=16)
    expected = table.tensors()
    with pytest.raises(KeyboardInterrupt), saver(folder, table) as saving:
        if second:
            saving.save(1, {}, {})
            saving.finish()
            table.change(9_000)
        saving.save(2, {}, {})
        if where == "in finish":
            assert saving._writing is not None
            monkeypatch.setattr(saving._writing, "result", _interrupted)
            saving.finish()
        raise KeyboardInterrupt
    assert folder.steps() == ([1] if second else [])
    if second:
        assert same_bits(load_tensors(folder, 1), expected)
    with saver(folder, table) as saving:
        saving.save(2, {}, {})
        expected = table.tensors()
    assert same_bits(load_tensors(folder, 2), expected)


def _interrupted(timeout: float | None = None) -> None:
    raise KeyboardInterrupt


def test_files_deleted_by_another_program_prevent_the_manifest(folder: CheckpointFolder) -> None:
    table = Table()

    class Swept(LocalStore):
        def files(self, folder: str = "") -> list[str]:
            for name in super().files(folder):
                if self.sweeping and "-00001." in name:
                    self.delete(folder, name)
            return super().files(folder)

        sweeping = False

    store = Swept(Path(folder.where))
    with saver(CheckpointFolder(store), table) as saving:
        saving.save(1, DENSE, {})
        saving.finish()
        table.change(9)
        store.sweeping = True
        saving.save(2, DENSE, {})
        with pytest.raises(RunFolderError, match="1 of 2 files that were written are gone, rank-00000-00001"):
            saving.finish()
        store.sweeping = False
    assert folder.steps() == [1]


def test_checkpoints_that_cannot_be_deleted_stay_and_are_reported(folder: CheckpointFolder) -> None:
    class Keeping(LocalStore):
        def delete(self, folder: str, name: str | None = None) -> None:
            raise DataError(f"{folder}: no permission", "ask for it")

    with saver(CheckpointFolder(Keeping(Path(folder.where)), keep=1), Table(), policy="full") as saving:
        for step in (1, 2):
            saving.save(step, {}, {})
        saving.finish()
        assert saving.cleanup_errors == ["checkpoint of step 2: older ones stay: step-00000001: no permission"]
    assert folder.steps() == [1, 2]


def test_a_failing_training_finishes_the_checkpoint_in_progress(folder: CheckpointFolder) -> None:
    table = Table(rows=20_000, dim=64)
    expected: dict[str, Tensor] = {}
    with pytest.raises(ZeroDivisionError), saver(folder, table) as saving:
        saving.save(1, {}, {})
        expected = table.tensors()
        raise ZeroDivisionError
    assert same_bits(load_tensors(folder, 1), expected)
