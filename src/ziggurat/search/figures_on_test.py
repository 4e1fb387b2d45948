"""The figures of the best trial on the test split, which are computed once."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from ziggurat.core.files import write_json
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import read_json_object
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.search.same_search import DAMAGE
from ziggurat.training.evaluate_run import evaluate

TEST_FILE = "test.json"


@dataclass(frozen=True, slots=True)
class _StoredTest:
    trial: int
    figures: dict[str, float | None]


def figures_on_test(search: Path, run: Path, trial: int, dataset: Dataset) -> dict[str, float]:
    """Returns the figures of a trial on the test split, those that are stored if they are of it; empty without rows.

    Args:
        search: the folder of the search.
        run: the run of the trial.
        trial: its number.
        dataset: the prepared data of the search.

    Raises:
        RunFolderError: the stored figures are damaged.
    """
    if not dataset.split("test").rows:
        return {}
    path = search / TEST_FILE
    stored = declared(_StoredTest, read_json_object(path, DAMAGE), path, DAMAGE) if path.exists() else None
    if stored is None or stored.trial != trial:
        figures = evaluate(run, "test", prepared=dataset.folder).compute()
        stored = _StoredTest(trial, {key: each if math.isfinite(each) else None for key, each in figures.items()})
        write_json(path, asdict(stored))
    return {key: math.nan if value is None else value for key, value in stored.figures.items()}
