"""Statistics that cannot be read raise an error that names the file and the fix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ziggurat.core.errors import DataError
from ziggurat.core.statistics import DatasetStatistics, TableStatistics


@pytest.mark.parametrize("name", ["statistics.json", "statistics.safetensors"])
@pytest.mark.parametrize("length", [None, 0, 40])
def test_missing_and_damaged_files_are_named(tmp_path: Path, name: str, length: int | None) -> None:
    table = TableStatistics("user", 3, np.array([1, 2, 3], np.int64))
    DatasetStatistics({"train": 6}, {}, tables={"user": table}).save(tmp_path)
    assert DatasetStatistics.load(tmp_path).tables["user"].accesses.tolist() == [1, 2, 3]
    content = (tmp_path / name).read_bytes()
    if length is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content[:length])
    fault = "is (damaged|not valid JSON)"
    if length is None:
        fault = "no statistics" if name.endswith("json") else "is missing"
    with pytest.raises(DataError, match=fault) as caught:
        DatasetStatistics.load(tmp_path)
    assert caught.value.problem.startswith(f"{tmp_path / name}: ")
    assert caught.value.hint == "delete the prepared folder and run `ziggurat prepare` again"
