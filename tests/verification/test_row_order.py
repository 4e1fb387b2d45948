"""``row_order.safetensors``: damage, another run's order, and what is no order at all are named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from damage_kit import damages
from safetensors.numpy import load_file, save_file

from ziggurat.core.digests import digest_of_parts
from ziggurat.core.errors import RunFolderError
from ziggurat.core.row_order import FrequencyRanks
from ziggurat.training.placement.plan_resolution import read_plan, row_ranks
from ziggurat.training.process_group import process_group
from ziggurat.training.run_folder.run import open_run
from ziggurat.verification.verify import verify


def ranks(folder: Path) -> dict[str, FrequencyRanks]:
    """Returns the order of rows of two tables, which is stored in the run folder if it is not there yet."""
    run = open_run(folder)
    dataset = run.dataset()
    plan = read_plan(run.files)
    assert plan is not None
    for table in ("user", "item"):
        plan = plan.placed(table, "table_wise", (0,), fast_rows=3)
    with process_group(torch.device("cpu")):
        return row_ranks(plan, run.experiment.layout(dataset.schema), dataset.folder, folder)


@pytest.fixture
def folder(two_runs: tuple[Path, Path], tmp_path: Path) -> Path:
    shutil.copytree(two_runs[0] / "run", tmp_path / "run")
    return tmp_path / "run"


def test_damage_is_named_or_harmless(folder: Path) -> None:
    expected = ranks(folder)
    assert expected.keys() == {"user", "item"}
    path = folder / "row_order.safetensors"
    whole, named = path.read_bytes(), 0
    assert verify(folder).whole
    for kind, damage in damages(len(whole), np.random.default_rng(3)):
        damage(path)
        try:
            found = ranks(folder)
        except RunFolderError as error:
            named += 1
            problem = error.problem
            assert not verify(folder).whole, kind
        else:
            problem = str(path)
            assert all(np.array_equal(found[table], expected[table]) for table in expected), kind
        assert str(path) in problem, kind
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
    assert named > 8


def test_the_order_of_another_run_is_named(two_runs: tuple[Path, Path], folder: Path, tmp_path: Path) -> None:
    shutil.copytree(two_runs[1] / "run", tmp_path / "other")
    ranks(folder)
    ranks(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "row_order.safetensors", folder)
    with pytest.raises(RunFolderError, match=r"row_order\.safetensors: belongs to run"):
        ranks(folder)


@pytest.mark.parametrize("forged", ["repeated", "negative", "too large", "no checksum"])
def test_what_is_no_order_is_named(folder: Path, forged: str) -> None:
    ranks(folder)
    path = folder / "row_order.safetensors"
    arrays = load_file(path)
    arrays["user"][2] = {"repeated": arrays["user"][3], "negative": -1, "too large": 10**6}.get(forged, 2)
    parts = (part for name in sorted(arrays) for part in (name.encode(), arrays[name]))
    metadata = {"run_id": open_run(folder).files.run_id, "xxh3_128": digest_of_parts(parts)}
    if forged == "no checksum":
        del metadata["xxh3_128"]
    save_file(arrays, path, metadata)
    with pytest.raises(RunFolderError, match=r"row_order\.safetensors: (table 'user': is no order|has no checksum)"):
        ranks(folder)
