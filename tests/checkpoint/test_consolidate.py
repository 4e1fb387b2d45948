"""An exported file has the checkpoint's whole tensors, as safetensors reads it, and replaces only earlier exports."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_kit import Table, load_tensors, same_bits, saver
from hypothesis import given, settings
from hypothesis import strategies as st
from inspection_kit import DENSE, RecordedProgress, add_legacy_checkpoint, fill, flip, path_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.small_disk import small_disk
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.whole_file import DTYPE_NAMES, TensorDescription, mapped_safetensors
from ziggurat.checkpoint.inspect import consolidate as consolidate_module
from ziggurat.checkpoint.inspect.consolidate import gather
from ziggurat.core.errors import DataError, RunFolderError


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "run" / "checkpoints", keep=100)


@st.composite
def tensor_descriptions(draw: st.DrawFn) -> dict[str, TensorDescription]:
    names = draw(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=6, unique=True))
    names = [name for name in names if name != "__metadata__"]
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    return {name: TensorDescription(draw(st.sampled_from(list(DTYPE_NAMES))), draw(shapes)) for name in names}


@settings(max_examples=60, deadline=None)
@given(tensors=tensor_descriptions(), seed=st.integers(0, 2**31))
def test_files_filled_in_place_are_read_by_safetensors(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, TensorDescription], seed: int
) -> None:
    path = tmp_path_factory.mktemp("file") / "made.safetensors"
    made = mapped_safetensors(path, tensors, {"step": "3", "word": "ü"})
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in made.items():
        assert (tensor.dtype, tuple(tensor.shape)) == (tensors[name].dtype, tensors[name].shape)
        tensor.copy_(torch.randint(0, 100, tensor.shape, generator=draw))
    expected = {name: tensor.clone() for name, tensor in made.items()}
    del made
    found = load_file(path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype for name in found)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"step": "3", "word": "ü"}


@pytest.mark.parametrize("portion", [1, 10**9])
@pytest.mark.parametrize("policy", ["full", "consecutive"])
def test_an_exported_file_has_the_whole_tensors(
    folder: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portion: int, policy: str
) -> None:
    monkeypatch.setattr(consolidate_module, "PORTION_BYTES", portion)
    fill(folder, 3, policy)
    expected = {name: tensor for name, tensor in load_tensors(folder, 3).items() if not name.startswith("random/")}
    out, progress = tmp_path / "out" / "all.safetensors", RecordedProgress()
    made = gather(folder, "last", out, optimizer=True, progress=progress)
    assert same_bits(load_file(out), expected)
    assert made.tensors == {name: tuple(tensor.shape) for name, tensor in expected.items()}
    assert (made.step, made.bytes) == (3, out.stat().st_size)
    assert progress.totals["gather"] == progress.done["gather"] == sum(tensor.nbytes for tensor in expected.values())
    gather(folder, 2, out)  # replaces the earlier export
    weights = {
        name: tensor for name, tensor in load_tensors(folder, 2).items() if name.startswith(("dense/", "tables/"))
    }
    assert set(weights) == {"dense/w", "dense/count", "tables/user", "tables/item"}
    assert same_bits(load_file(out), weights)
    with safe_open(out, "pt") as file:
        assert file.metadata() == {"format": "pt", "made_by": "ziggurat checkpoint gather", "step": "2"}


def test_averages_and_legacy_checkpoints_are_exported(folder: CheckpointFolder, tmp_path: Path) -> None:
    expected = add_legacy_checkpoint(folder, 1)
    out = tmp_path / "old.safetensors"
    gather(folder, 1, out, optimizer=True)
    assert same_bits(load_file(out), expected)
    average = {"average/dense/w": torch.ones(2), "average/tables/item": torch.ones(300, 7)}
    with saver(folder, Table()) as saving:
        saving.save(2, {**DENSE, **average}, {})
    gather(folder, 2, out)
    assert set(load_file(out)) == {"dense/w", "dense/count", "tables/item", *average}


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 20, b"\x04\0\0\0\0\0\0\0null", b"\x02\0\0\0\0\0\0\0[]"])
def test_a_file_that_is_not_safetensors_is_not_replaced(
    folder: CheckpointFolder, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "some.safetensors"
    path.write_bytes(content)
    with pytest.raises(DataError, match="was not made by"):
        gather(folder, 1, path)
    assert path.read_bytes() == content


def test_an_export_replaces_only_earlier_exports(folder: CheckpointFolder, tmp_path: Path) -> None:
    fill(folder, 2)
    theirs = tmp_path / "theirs.safetensors"
    save_file({"w": torch.ones(2)}, theirs)
    before = theirs.read_bytes()
    with pytest.raises(DataError, match=r"theirs\.safetensors: exists, and was not made by"):
        gather(folder, "last", theirs)
    assert theirs.read_bytes() == before
    with pytest.raises(
        DataError,
        match=r"model\.pt: the output is a safetensors file.*\n  hint: name it .*model\.saf",
    ):
        gather(folder, "last", tmp_path / "model.pt")
    with pytest.raises(DataError, match="is a folder"):
        gather(folder, "last", tmp_path)
    with pytest.raises(DataError, match="is in the folder of the checkpoints"):
        gather(folder, "last", Path(folder.where) / "out.safetensors")
    out = tmp_path / "out.safetensors"
    flip(path_of(folder, 1, "rank-*"))
    with pytest.raises(RunFolderError, match="SHA-256 differs"):
        gather(folder, "last", out)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["theirs.safetensors"]


def test_a_full_disk_leaves_no_partial_export(folder: CheckpointFolder, tmp_path: Path) -> None:
    with saver(folder, Table(rows=20_000, dim=7)) as saving:
        saving.save(1, {}, {})
    with small_disk(tmp_path / "disk", 256) as disk:
        with pytest.raises(DataError, match=r"item\.safetensors: no space left on the device"):
            gather(folder, "last", disk / "item.safetensors")
        assert list(disk.iterdir()) == []
