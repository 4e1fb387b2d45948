"""Differences between checkpoints match those computed from the tensors, for any size of portions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from checkpoint_kit import Table, load_tensors, saver
from hypothesis import given, settings
from hypothesis import strategies as st
from inspection_kit import DENSE, RecordedProgress, add_legacy_checkpoint, fill, flip, path_of

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.inspect import differences as differences_module
from ziggurat.checkpoint.inspect.differences import Difference, differences
from ziggurat.core.errors import RunFolderError


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "run" / "checkpoints", keep=100)


def by_name(found: list[Difference]) -> dict[str, Difference]:
    return {f"{each.group}/{each.name}": each for each in found}


@pytest.mark.parametrize("size", [1, 100, 1_000, 10**9])
def test_differences_match_the_values(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(differences_module, "RANGE_BYTES", size)
    monkeypatch.setattr(differences_module, "_CHUNK_VALUES", 50)
    user, item = Table("user", 90, 3, seed=1), Table("item", 300, 7)
    item.weight_RD[5, 2] = math.nan  # the same NaN in both is not a difference
    dense = {"dense/w": torch.arange(6.0).view(2, 3), "dense/one": torch.tensor(1.0), "dense/none": torch.zeros(0)}
    with saver(folder, user, item, policy="consecutive") as saving:
        saving.save(1, dense, {})
        before = item.weight_RD.clone()
        item.dirty.touch(torch.tensor([3, 200]))
        item.weight_RD[3] += 2
        item.weight_RD[200, 6] -= 3
        after = item.weight_RD.clone()
        saving.save(2, {**dense, "dense/w": dense["dense/w"] * 2}, {})
    progress = RecordedProgress()
    found = by_name(differences(folder.load(1), folder.load(2), progress))
    assert list(found) == ["tables/user", "tables/item", "dense/none", "dense/one", "dense/w"]
    assert {name for name, each in found.items() if each.state == "identical"} == {
        "tables/user", "dense/one", "dense/none",
    }  # fmt: skip
    changed = found["tables/item"]
    assert (changed.state, changed.counted, changed.different) == ("different", 300, 2)
    gap = (after.double() - before.double()).nan_to_num().abs()
    assert changed.largest == float(gap.max())
    assert changed.mean == pytest.approx(float(gap.sum()) / 2100, rel=1e-12)
    assert math.isnan(changed.relative)  # the norm contains the NaN
    weights = found["dense/w"]
    assert (weights.counted, weights.different, weights.largest) == (6, 5, 5.0)
    assert (weights.mean, weights.relative) == (2.5, pytest.approx(1.0))
    assert found["tables/user"].counted == 90
    assert progress.totals["compare"] == progress.done["compare"] == 4 * (90 * 3 + 300 * 7 + 7)


@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(
        st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2).flatmap(lambda ab: st.sampled_from([ab, (ab[0], ab[0])])),
        min_size=4, max_size=40,
    )
)  # fmt: skip
def test_accumulating_over_ranges_equals_comparing_at_once(numbers: list[tuple[float, float]]) -> None:
    a, b = (torch.tensor(each).view(-1, 1).expand(-1, 2).contiguous() for each in zip(*numbers, strict=True))
    compared = differences_module._Comparison(by_row=True)  # pyright: ignore[reportPrivateUsage] - the sums alone
    for begin in range(0, len(a), 3):
        compared.add(a[begin : begin + 3], b[begin : begin + 3])
    found = compared.result(("tables", "t"), ((len(a), 2), (len(a), 2)))
    gap = (b.double() - a.double()).abs()
    assert found.different == sum(
        torch.tensor(x).view(torch.int32) != torch.tensor(y).view(torch.int32) for x, y in numbers
    )
    assert found.largest == float(gap.max())
    assert found.mean == pytest.approx(float(gap.mean()), rel=1e-9)
    norm = float(a.double().norm())
    expected = float(gap.norm()) / norm if norm else math.inf if gap.any() else 0.0
    assert found.relative == pytest.approx(expected, rel=1e-9)


def test_differences_of_two_runs(folder: CheckpointFolder, tmp_path: Path) -> None:
    fill(folder, 1)
    other = CheckpointFolder(tmp_path / "other", keep=100)
    wide, more = Table("item", 300, 8), Table("more", 10, 2)
    with saver(other, wide, more) as saving:
        saving.save(5, {**DENSE, "dense/w": torch.arange(6.0).double().view(2, 3)}, {})
    found = by_name(differences(folder.load(1), other.load(5)))
    assert {name: each.state for name, each in found.items()} == {
        "tables/user": "first only", "tables/item": "shapes", "tables/more": "second only",
        "dense/count": "identical", "dense/w": "shapes",
    }  # fmt: skip
    assert found["tables/item"].shapes == ((300, 7), (300, 8))
    assert found["tables/more"].shapes == (None, (10, 2))
    assert all(each.state == "identical" for each in differences(other.load(5), other.load(5)))
    old = add_legacy_checkpoint(other, 6)
    found = by_name(differences(folder.load(1), other.load(6)))
    assert found["tables/item"].different == 300
    gap = (old["tables/item"].double() - load_tensors(folder, 1)["tables/item"].double()).abs()
    assert found["tables/item"].largest == float(gap.max())
    assert found["dense/w"].state == "identical"
    flip(path_of(folder, 1, "rank-*"))
    with pytest.raises(RunFolderError, match="SHA-256 differs"):
        differences(folder.load(1), other.load(6))


def test_nan_and_negative_zero(folder: CheckpointFolder) -> None:
    weights = {"dense/zero": torch.tensor([0.0, 0.0]), "dense/nan": torch.ones(2), "dense/small": torch.zeros(2)}
    with saver(folder, Table()) as saving:
        saving.save(1, weights, {})
        changed = {"dense/zero": torch.tensor([0.0, -0.0]), "dense/nan": torch.tensor([1.0, math.nan])}
        saving.save(2, {**changed, "dense/small": torch.tensor([0.0, 1e-30])}, {})
    found = by_name(differences(folder.load(1), folder.load(2)))
    zero = found["dense/zero"]
    assert (zero.state, zero.different, zero.largest, zero.relative) == ("different", 1, 0.0, 0.0)
    assert math.isnan(found["dense/nan"].largest)
    assert math.isnan(found["dense/nan"].mean)
    assert found["dense/small"].relative == math.inf
