from __future__ import annotations

from pathlib import Path

import pytest
from damage_kit import make_run

from tests.training.conftest import make_experiment

__all__ = ["make_experiment"]


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders with a run and a dataset each, of other data."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("one", 1), ("two", 2)):
        make_run(folder / name, seed)
    return folder / "one", folder / "two"
