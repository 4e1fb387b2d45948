"""Lists and inspections describe checkpoints of either format, and name those that cannot be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoint_kit import Table, saver
from inspection_kit import RecordedProgress, add_legacy_checkpoint, fill, flip, path_of
from safetensors.torch import load_file

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.inspect.inspection import inspect, listing
from ziggurat.checkpoint.inspect.run_folders import open_folder, run_folder
from ziggurat.checkpoint.inspect.verification import verify
from ziggurat.core.errors import RunFolderError


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "run" / "checkpoints", keep=100)


def test_a_list_describes_every_checkpoint(folder: CheckpointFolder) -> None:
    fill(folder)
    add_legacy_checkpoint(folder, 9)
    progress = RecordedProgress()
    found = listing(folder, progress)
    assert [entry.step for entry in found.entries] == [1, 2, 3, 4, 9]
    on_disk = {
        step: sum(p.stat().st_size for p in path_of(folder, step).parent.glob("*.safetensors"))
        for step in (1, 2, 3, 4, 9)
    }
    assert {entry.step: entry.bytes for entry in found.entries} == on_disk
    assert found.bytes == sum(on_disk.values())
    first, second, third = found.entries[:3]
    assert (first.kind, first.needs, first.restore_bytes, first.rows) == ("full", (), on_disk[1], 390)
    assert (third.kind, third.needs, third.policy, third.ranks) == ("delta", (1, 2), "consecutive", 1)
    assert third.restore_bytes == on_disk[1] + on_disk[2] + on_disk[3]
    assert third.rows is not None
    assert 0 < third.rows <= 22
    assert [entry.marks for entry in found.entries] == [(), ("best",), (), (), ("last",)]
    assert found.best == {"step": 2, "metric": "auc", "value": 0.5}
    old = found.entries[-1]
    assert (old.format, old.kind, old.rows, old.restore_bytes, old.policy, old.made) == (
        1,
        "full",
        300,
        on_disk[9],
        None,
        None,
    )
    assert all(entry.problem is None for entry in found.entries)
    assert second.made is not None
    assert (progress.totals["manifests"], progress.done["manifests"]) == (5, 5)


def test_a_list_of_nothing(folder: CheckpointFolder) -> None:
    found = listing(folder)
    assert (found.entries, found.bytes, found.best, found.best_problem) == ((), 0, None, None)


def test_a_list_names_what_cannot_be_read(folder: CheckpointFolder) -> None:
    fill(folder, 5)
    add_legacy_checkpoint(folder, 8)
    add_legacy_checkpoint(folder, 9)
    flip(path_of(folder, 3, "manifest.json"))
    path_of(folder, 8, "state.json").write_text('{"format_version": 1, "files": 3, "state": {}}')
    path_of(folder, 9, "tables.safetensors").write_bytes(b"torn")
    problems = {entry.step: entry.problem for entry in listing(folder).entries}
    assert problems[1] is None
    assert problems[2] is None
    assert "step-00000003/manifest.json: " in str(problems[3])
    assert problems[4] == "needs the checkpoint of step 3, which cannot be read"
    assert "step-00000008/state.json: not a checkpoint" in str(problems[8])
    assert "tables.safetensors: cannot be read" in str(problems[9])
    shutil.rmtree(path_of(folder, 3).parent)
    found = listing(folder)
    assert found.entries[2].step == 4
    assert found.entries[2].problem == "needs the checkpoint of step 3, which does not exist"
    assert found.entries[2].restore_bytes is None
    shutil.rmtree(path_of(folder, 2).parent)
    assert "best.json: names step 2, which does not exist" in str(listing(folder).best_problem)
    (Path(folder.where) / "best.json").write_text("{")
    assert "best.json: is not valid JSON" in str(listing(folder).best_problem)


def test_a_checkpoint_whose_base_was_written_again(folder: CheckpointFolder) -> None:
    fill(folder, 2)
    with saver(folder, Table()) as saving:
        saving.save(1, {}, {})
    problem = "needs the checkpoint of step 1 as it was before it was written again"
    assert [entry.problem for entry in listing(folder).entries] == [None, problem]
    found = verify(folder)
    assert [(each.state, each.problems) for each in found.verdicts] == [("whole", ()), ("unusable", (problem,))]


@pytest.mark.parametrize("bits", [32, 16, 4, 3])
def test_bytes_of_a_table_are_those_of_its_tensors(folder: CheckpointFolder, bits: int) -> None:
    fill(folder, 2, bits=bits)
    for step in (1, 2):
        found = inspect(folder, step)
        counted = {"user": 0, "item": 0}
        manifest = folder.manifest(step)
        assert manifest is not None
        for file in manifest.files:
            tables = {str(block.index): block.table for block in file.blocks}
            for name, tensor in load_file(path_of(folder, step, file.name)).items():
                if tables:
                    counted[tables[name.partition(".")[0]]] += tensor.nbytes
        assert {part.name: part.bytes for part in found.tables} == counted
        item = found.tables[1]
        assert item.bits == {"weight": (bits,), "sum": (32,), "mean": (32,)}
        assert (item.shape.rows, item.shape.dim, item.shape.states) == (300, 7, {"sum": 0, "mean": 7})


def test_the_details_of_one_checkpoint(folder: CheckpointFolder) -> None:
    fill(folder)
    found = inspect(folder, "best")
    assert found.where.endswith("run/checkpoints/step-00000002")
    assert [each.step for each in found.chain] == [1, 2]
    assert found.entry == found.chain[-1]
    assert found.entry.marks == ("best",)
    assert found.state == {"progression": {"step": 2}}
    assert found.versions == {"ziggurat": "1"}
    assert [part.name for part in found.tables] == ["user", "item"]
    assert [(file.rank, file.tables) for file in found.files] == [(0, ()), (0, ("user", "item"))]
    shutil.rmtree(path_of(folder, 1).parent)
    found = inspect(folder, 3)
    assert found.entry.problem == "needs the checkpoint of step 1, which does not exist"
    assert [each.step for each in found.chain] == [2, 3]
    flip(path_of(folder, 4, "manifest.json"))
    with pytest.raises(RunFolderError, match=r"step-00000004/manifest\.json"):
        inspect(folder, "last")


def test_the_details_of_a_legacy_checkpoint(folder: CheckpointFolder) -> None:
    add_legacy_checkpoint(folder, 9)
    found = inspect(folder, "best")
    assert (found.entry.step, found.entry.marks, found.versions, found.plan) == (9, ("last",), {}, None)
    assert [(part.name, part.rows, part.bytes, part.shape.states) for part in found.tables] == [
        ("item", 300, 4 * 300 * 15, {"sum": 0, "mean": 7})
    ]
    assert [(file.name, file.tables) for file in found.files] == [
        ("dense.safetensors", ()), ("tables.safetensors", ("item",)), ("table_optimizer.safetensors", ()),
    ]  # fmt: skip
    assert found.state == {"progression": {"step": 9}}


def test_a_run_is_found_by_its_folder_or_that_of_its_checkpoints(
    folder: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, 1)
    root = Path(folder.where)
    run = root.parent
    assert run_folder(root) is None  # nothing shows that the folder above is a run folder with a lock
    (run / "config.yaml").write_text("name: shop\n")
    for path in (run, root):
        assert open_folder(path).steps() == [1]
        held = run_folder(path)
        assert held is not None
        assert held.resolve() == run.resolve()
    monkeypatch.chdir(root)
    assert open_folder(Path()).steps() == [1]
    assert run_folder(Path()) == run
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.yaml").touch()
    assert open_folder(begun).steps() == []
    moved = tmp_path / "moved"
    shutil.copytree(root, moved)
    assert open_folder(moved).steps() == [1]
    assert run_folder(moved) is None


def test_a_folder_that_is_not_a_run_is_refused_with_a_hint(folder: CheckpointFolder, tmp_path: Path) -> None:
    fill(folder, 1)
    root = Path(folder.where)
    other = tmp_path / "other"
    other.mkdir()
    run_of_sweep = tmp_path / "sweep" / "rung-01" / "seed-0"
    run_of_sweep.mkdir(parents=True)
    (run_of_sweep / "config.yaml").touch()
    (tmp_path / "file").touch()
    for path, problem, hint in (
        (tmp_path / "runn", "there is no such folder", rf"did you mean {tmp_path / 'run'}\?"),
        (tmp_path / "no" / "thing", "there is no such folder", "name the folder of a run, as in runs/NAME"),
        (tmp_path / "file", "is a file, not a run folder", "name the folder of a run"),
        (root / "step-00000001", "is a single checkpoint", rf"name the run, {root.parent}, and then step 1"),
        (tmp_path, "contains runs, but is not one", rf"name one of them, as {tmp_path / 'run'}"),
        (tmp_path / "sweep", "contains runs, but is not one", rf"name one of them, as {run_of_sweep}"),
        (
            other,
            "not a run folder: there is neither config.yaml nor a folder checkpoints in it",
            "name the folder of a",
        ),
    ):
        with pytest.raises(RunFolderError, match=rf"^{path}: {problem}\n  hint: {hint}"):
            open_folder(path)


def test_checkpoints_stored_outside_the_run_folder_are_found(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    config = run / "config.yaml"
    config.write_text(f"name: small\ncheckpoints:\n  policy: full\n  store: {elsewhere}\n")
    assert open_folder(run).steps() == []
    fill(CheckpointFolder(elsewhere, keep=100), 2)
    assert open_folder(run).steps() == [1, 2]
    assert open_folder(elsewhere).steps() == [1, 2]
    config.write_text("checkpoints: [")
    with pytest.raises(
        RunFolderError, match=rf"^{config}: is not valid YAML: .*\n  hint: restore it, or name the folder"
    ):
        open_folder(run)
