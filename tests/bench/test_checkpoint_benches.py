"""The harnesses of ``checkpoint_bytes``, ``checkpoint_stall`` and ``checkpoint_crash``."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.micro.big_tables import CPU, BigTables, Size
from bench.micro.stall_harness import Peer
from bench.quality.checkpoint_data import generated
from bench.quality.checkpoint_runs import (
    Intervals,
    Ledger,
    StorageBytes,
    TrainingSetup,
    counted,
    failure_steps,
    log_loss,
    recording,
)
from bench.quality.checkpoint_settings import REFERENCE, Setting, compared
from bench.system.checkpoint_damage import DAMAGE_KINDS, chain, damaged
from bench.system.crash_moments import MOMENTS, WatchedFolder
from bench.system.crash_training import digest, digests, experiment
from tests.checkpoint.checkpoint_kit import Table, saver
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE, Manifest, ManifestFile, Reference, RowBlock, TableShape
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.core.config import parse_config
from ziggurat.training.experiment import Experiment
from ziggurat.training.process_group import process_group

SMALL = Size(tables=3, rows=500, dim=8, batch_size=64, drawn=5_000, hidden=(8,))
DENSE = {"dense/w": torch.arange(6.0)}


def manifest(step: int, kind: str, row_bytes: int, rows: int) -> bytes:
    """Returns a manifest of a file with rows and a file without."""
    block = RowBlock(number=0, table="t", rows=rows, first=0, low=0, high=rows - 1, columns=(0, 4), bits={"weight": 32})
    files = (
        ManifestFile(name="rows", bytes=row_bytes, sha256="", rank=0, blocks=(block,)),
        ManifestFile(name="dense", bytes=10, sha256="", rank=0),
    )
    needs = () if kind == "full" else (Reference(step=step - 5, id="a"),)
    made = Manifest(
        id="a", kind=kind, step=step, needs=needs, policy="full", bits=32, world_size=1,
        tables={"t": TableShape(rows=50, dim=4, states={})}, files=files, state={}, made="", versions={},
    )  # type: ignore[arg-type]  # fmt: skip
    return made.to_bytes()


def test_a_ledger_counts_written_bytes_and_the_peak() -> None:
    ledger, sizes = Ledger(2), list[int]()
    for step, kind, row_bytes, rows in ((5, "full", 1_000, 50), (10, "delta", 300, 15), (15, "delta", 9_000, 40)):
        folder, content = folder_of(step), manifest(step, kind, row_bytes, rows)
        ledger.wrote(folder, "rows", bytes(row_bytes))
        ledger.wrote(folder, "dense", bytes(10))
        ledger.wrote(folder, MANIFEST_FILE, content)
        sizes.append(row_bytes + 10 + len(content))
        if step == 10:
            ledger.deleted(folder_of(5), None)
            assert ledger.totals().peak == sum(sizes)
    kept = ledger.totals()  # the third checkpoint is not counted
    assert kept.written == sizes[:2]
    assert (kept.peak, kept.resting) == (sum(sizes[:2]), sizes[0])
    assert (kept.full, kept.rows, kept.all_rows, kept.table_bytes) == (1, [50, 15], 50, 1_300)
    assert StorageBytes.from_json(kept.to_json()) == kept


def test_a_ledger_records_a_store_within_the_context(tmp_path: Path) -> None:
    ledger, store = Ledger(1), LocalStore(tmp_path)
    write = LocalStore.write
    with recording(ledger):
        store.write(folder_of(5), "rows", bytes(1_000))
        store.write(folder_of(5), "spare", bytes(77))
        store.delete(folder_of(5), "spare")
        store.write(folder_of(5), MANIFEST_FILE, manifest(5, "full", 1_000, 50))
    assert LocalStore.write is write
    size = len(store.read(folder_of(5), MANIFEST_FILE))
    assert (ledger.totals().peak, ledger.totals().written) == (max(1_077, 1_000 + size), [1_077 + size])


def test_failures_are_spread_over_whole_intervals() -> None:
    assert failure_steps(120, 10, 0) == []
    assert failure_steps(120, 10, 1) == [60]
    assert failure_steps(120, 10, 3) == [30, 60, 90]
    assert failure_steps(78, 6, 2) == [24, 48]
    with pytest.raises(AssertionError, match="3 failures in 2 intervals"):
        failure_steps(20, 10, 3)


def kept(written: list[int], peak: int, rows: list[int]) -> StorageBytes:
    return StorageBytes(written, peak, peak // 2, 1, rows, 100, sum(written) - 30)


def test_settings_are_compared_with_full_checkpoints_in_fp32() -> None:
    found = {
        REFERENCE: kept([1000, 1000, 1000], 2000, [100, 100, 100]),
        ("consecutive", 32): kept([1000, 250, 250], 1500, [100, 20, 30]),
        ("intermittent", 2): kept([120, 40, 40], 200, [100, 20, 40]),
    }
    exact, few = compared("criteo", Intervals(4, 3), found, {32: (0.0,), 2: (0.02, -0.004)})
    assert (exact.policy, exact.bits, exact.written, exact.kept, exact.changed) == ("consecutive", 32, 2.0, 4 / 3, 0.25)
    assert (few.written, few.tables, few.kept) == (15.0, 2970 / 170, 10.0)
    assert few.margin == pytest.approx(15 / 17)
    assert replace(few, off=(0.02, 0.02)).margin == 0
    assert replace(few, off=(-0.02, -0.02)).margin == 0  # a decrease counts too
    assert replace(few, changed=0.3).margin == 0
    assert few.cells()[2:6] == ("25.0 %", "intermittent", "2", "15.0×")
    assert isinstance(exact, Setting)


@pytest.fixture(scope="module")
def training_setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingSetup, Path]:
    folder = tmp_path_factory.mktemp("setup")
    return generated(folder, 2_500, 2_000, 128, (Intervals(3, 3),)), folder


def test_fewer_bits_write_less_and_restores_of_32_bits_are_exact(training_setup: tuple[TrainingSetup, Path]) -> None:
    trained, folder = training_setup
    dataset = trained.dataset(folder)
    full = counted(trained, dataset, trained.intervals[0], "full", 32, folder)
    few = counted(trained, dataset, trained.intervals[0], "intermittent", 2, folder)
    assert len(full.written) == len(few.written) == 3
    assert (full.full, full.rows[0], few.rows[0]) == (3, full.all_rows, full.all_rows)
    assert 0 < few.rows[1] < few.all_rows
    assert 5 * few.table_bytes < full.table_bytes
    assert full.peak == pytest.approx(2 * full.written[0], rel=0.01)  # the last checkpoint and the next
    assert full.resting == pytest.approx(full.written[0], rel=0.01)

    undisturbed = log_loss(trained, dataset, 0, 32, 0, folder)
    assert log_loss(trained, dataset, 0, 32, 2, folder) == undisturbed
    assert log_loss(trained, dataset, 0, 2, 2, folder) != undisturbed


@pytest.fixture(scope="module")
def big() -> Generator[BigTables]:
    with process_group(CPU):
        yield BigTables(SMALL)


def test_steps_mark_rows_except_within_unmarked(big: BigTables) -> None:
    before = big.changed()
    with big.unmarked():
        for _ in range(10):
            assert big.step() > 0
        assert big.changed() == before
    big.step()
    assert big.changed() > before
    assert big.steps == 11


def test_a_peers_checkpoint_restores_and_replaces_the_previous_one(big: BigTables, tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    for number in (1, 2):
        peer.save(big.tensors())
        wanted = {name: tensor.clone() for name, tensor in big.tensors().items()}
        big.step()
        assert peer.finish() > sum(tensor.nbytes for tensor in wanted.values())
        assert [path.name for path in tmp_path.iterdir()] == [f"peer-{number}"]
    found = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    peer.load(found)
    peer.close()
    assert not peer.writing()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert any(not torch.equal(wanted[name], tensor) for name, tensor in big.tensors().items())


def test_the_files_show_what_a_kill_left(tmp_path: Path) -> None:
    watched = WatchedFolder(tmp_path, files=2)
    assert (watched.committed(), watched.left()) == (0, "nothing unfinished")
    last, new = (tmp_path / "checkpoints" / folder_of(step) for step in (5, 10))
    last.mkdir(parents=True)
    (last / MANIFEST_FILE).touch()
    assert (watched.committed(), watched.left()) == (5, "nothing unfinished")
    training, stall, writer, before_manifest = MOMENTS
    new.mkdir()
    (new / ".a.safetensors.1.part").touch()
    assert watched.left() == "some data, no manifest"
    assert watched.wait(training, lambda: False)
    assert watched.wait(writer, lambda: False)
    assert not watched.wait(before_manifest, lambda: False)
    assert not watched.wait(stall, lambda: False)
    for name in "ab":
        (new / f"{name}.safetensors").touch()
    assert watched.left() == "all data, no manifest"
    assert watched.wait(before_manifest, lambda: False)
    (new / f".{MANIFEST_FILE}.1.part").touch()
    assert watched.left() == "all data, half a manifest"
    (new / MANIFEST_FILE).touch()
    assert (watched.committed(), watched.left()) == (10, "nothing unfinished")


@pytest.fixture
def saved(tmp_path: Path) -> CheckpointFolder:
    """Returns checkpoints of steps 1 to 4, each of which needs those before it."""
    folder, table = CheckpointFolder(tmp_path / "checkpoints", keep=9), Table()
    with saver(folder, table, policy="consecutive") as saving:
        for step in range(1, 5):
            saving.save(step, DENSE, {"step": step, "restores": step})
            table.change(20)
    return folder


def test_digests_depend_on_tensors_and_state(saved: CheckpointFolder, tmp_path: Path) -> None:
    found = digests(tmp_path)
    assert len(set(found.values())) == 4
    again = saved.load(2)
    assert digest(again) == found[2]
    again.state["restores"] = 100
    assert digest(again) == found[2]
    again.state["step"] = 3
    assert digest(again) != found[2]
    again = saved.load(2)
    again.groups["tables"]["item"].view(torch.int32)[7, 1] ^= 1
    assert digest(again) != found[2]


@pytest.mark.parametrize("kind", DAMAGE_KINDS)
def test_damaged_files_are_named_and_put_back(saved: CheckpointFolder, kind: str) -> None:
    paths, draw = chain(saved, 3), np.random.default_rng(1)
    names = [f"{path.parent.name} {path.suffix}" for path in paths]
    rows = [f"{folder_of(step)} {suffix}" for step in (1, 2) for suffix in (".json", ".safetensors")]
    assert names == [*rows, "step-00000003 .json", "step-00000003 .safetensors", "step-00000003 .safetensors"]
    before = digest(saved.load(3))
    for path in paths:
        other = next(each.read_bytes() for each in paths if each.suffix == path.suffix and each != path)
        found = damaged(saved, 3, path, kind, other, draw)  # type: ignore[arg-type]
        assert found.named, found
        assert found.file == f"{path.parent.name}/{path.name}"
    assert digest(saved.load(3)) == before


def test_loaded_numbers_are_detected(saved: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = chain(saved, 1)[-1]
    sound = damaged(saved, 1, path, "foreign", path.read_bytes() + b" ", np.random.default_rng(0))
    assert sound.named
    monkeypatch.setattr("bench.system.checkpoint_damage._apply_damage", lambda *arguments: None)  # no damage at all
    loaded = damaged(saved, 1, path, "deleted", b"", np.random.default_rng(0))
    assert (loaded.named, loaded.clean, loaded.error) == (False, False, "no error")


@pytest.mark.parametrize("policy", ["consecutive", "full"])
def test_the_killed_training_is_a_valid_experiment(tmp_path: Path, policy: str) -> None:
    parsed = parse_config(Experiment, experiment(tmp_path, policy, 40))
    parsed.check()
    assert parsed.checkpoints.policy == policy
    assert parsed.training.max_steps == 40
