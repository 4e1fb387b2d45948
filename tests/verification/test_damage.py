"""Every damage to a file of a dataset or a run that changes anything is named with its file, wherever the file is read.

Bit flips, zeros, truncation, deletion, pipes, links, and files of other runs and datasets, on each file. Whatever the
damage, reading either gives what was written or raises an error of ziggurat's that names the file.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage_kit import damages, files_of, restore, used_dataset, used_run

from ziggurat.core.errors import ZigguratError
from ziggurat.verification.verify import verify

Use = Callable[[Path], dict[str, Any]]
HARMLESS = {"warm_start.json", "baselines.json", "results.json"}
"""Files whose absence means that there was no warm start, no report, or no end of training."""


def outcome(use: Use, folder: Path) -> dict[str, Any] | ZigguratError:
    try:
        return use(folder)
    except ZigguratError as error:
        return error


@pytest.mark.parametrize(("name", "use"), [("prepared", used_dataset), ("run", used_run)])
def test_damage_is_named_or_harmless(two_runs: tuple[Path, Path], tmp_path: Path, name: str, use: Use) -> None:
    whole, folder = two_runs[0] / name, tmp_path / name
    shutil.copytree(whole, folder)
    expected = use(folder)
    named = 0
    for file in files_of(folder):
        path, rng = folder / file, np.random.default_rng(zlib.crc32(file.as_posix().encode()))
        for kind, damage in damages(path.stat().st_size, rng):
            damage(path)
            found, verified = outcome(use, folder), verify(folder)
            case = f"{file}, {kind}: {found if isinstance(found, ZigguratError) else ''}"
            if isinstance(found, ZigguratError):
                named += 1
                assert str(folder) in found.problem, case
                assert path.name in found.problem, case
                assert found.hint, case
                assert not verified.whole, case
                assert any(path.name in each.problem for each in verified.problems), case
            elif found != expected:
                assert kind == "deleted", case
                assert file.name in HARMLESS or not verified.whole, case
            else:
                assert verified.whole, (case, verified.problems)
            restore(whole / file, path)
    assert use(folder) == expected
    assert named > 100


@pytest.mark.parametrize(("name", "use"), [("prepared", used_dataset), ("run", used_run)])
def test_files_of_another_dataset_or_run_are_named(
    two_runs: tuple[Path, Path], tmp_path: Path, name: str, use: Use
) -> None:
    (whole, other), folder = (each / name for each in two_runs), tmp_path / name
    shutil.copytree(whole, folder)
    expected = use(folder)
    swapped = 0
    for file in files_of(folder):
        if not (other / file).is_file() or (other / file).read_bytes() == (whole / file).read_bytes():
            continue
        restore(other / file, folder / file)
        found, verified = outcome(use, folder), verify(folder)
        assert isinstance(found, ZigguratError), file
        assert str(folder) in found.problem, file
        assert not verified.whole, file
        restore(whole / file, folder / file)
        swapped += 1
    assert use(folder) == expected
    assert swapped >= (6 if name == "prepared" else 8)
