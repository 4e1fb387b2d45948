"""How far the best trial is ahead of the config as it is, and how much of that the choice of validation rows may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ziggurat.core.files import write_json
from ziggurat.core.progress import Progress
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import read_json_object
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.search.same_search import DAMAGE
from ziggurat.training.ensemble.ensemble import Candidate
from ziggurat.training.ensemble.measured import Measured, measure
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.run_folder.run_files import CONFIG_FILE
from ziggurat.training.train_state import parts_of

LEAD_FILE = "lead.json"
_OF_ROWS = frozenset({"log_loss", "ne", "relative_loss"})
"""Monitored metrics that are means over rows of the loss that training minimises, or multiples of it."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The lead of a trial over the config as it is.

    Attributes:
        trial: its number.
        ahead: by how much less the monitored metric is on validation.
        error: the standard error of that, over the validation rows. Those of one user are taken as independent, and
            that another seed trains another model is not in it: the true error is greater.
        rows: the validation rows.
        metric: the monitored metric.
    """

    trial: int
    ahead: float
    error: float
    rows: int
    metric: str = ""

    @property
    def is_noise(self) -> bool:
        """Whether the lead is no greater than its error."""
        return self.ahead <= self.error

    def __str__(self) -> str:
        return f"{self.ahead:.2g} ± {self.error:.2g} in {self.metric} on {self.rows:,} validation rows"


def lead_of(
    search: Path,
    monitor: str,
    first: Path,
    best: Path,
    figures: Mapping[str, float | None],
    number: int,
    dataset: Dataset,
    progress: Progress,
) -> Lead | None:
    """Returns the lead of the best trial, which is computed once; None if it cannot be told.

    It cannot of a metric that is no mean over rows, such as AUC, and if the run of the config as it is was deleted.

    Args:
        search: the folder of the search.
        monitor: the monitored metric.
        first: the run of the config as it is.
        best: the run of the best trial.
        figures: the figures of the config as it is, on validation.
        number: the number of the best trial.
        dataset: the prepared data of the search.
        progress: where to show progress.
    """
    if monitor.rpartition("/")[2] not in _OF_ROWS or not (first / CONFIG_FILE).is_file():
        return None
    path = search / LEAD_FILE
    stored = declared(Lead, read_json_object(path, DAMAGE), path, DAMAGE) if path.exists() else None
    if stored is None or (stored.trial, stored.metric) != (number, monitor):
        runs = [open_run(first), open_run(best)]
        candidates = [Candidate(run, run.checkpoints.find("best")) for run in runs]
        measured = measure(candidates, search, dataset, progress)
        lead_B = _leads(measured, figures, parts_of(monitor, runs[0].experiment.tasks()))
        rows = len(lead_B)
        error = math.sqrt(rows * float(lead_B.var(unbiased=rows > 1)))
        stored = Lead(number, float(lead_B.sum()), error, rows, monitor)
        write_json(path, asdict(stored))
    return stored


@torch.no_grad()
def _leads(measured: Measured, figures: Mapping[str, float | None], parts: list[tuple[int, str, float]]) -> Tensor:
    """Returns what each row adds to the lead in the monitored metric, (B,).

    The figure of a label is a multiple of its mean loss; for NE, that is one over the entropy of the labels. It depends
    on the labels alone, and is taken from the figures of the config as it is.
    """
    lead_B = torch.zeros(len(measured.labels_BT), dtype=torch.float64)
    for label, name, weight in parts:
        first_B, best_B = (measured.shares(label, columns_BC) for columns_BC in measured.columns_of(label))
        loss, figure = float(first_B.sum()), figures[name]
        scale = (figure or 0.0) / loss if loss else 0.0
        lead_B += weight * scale * (first_B - best_B)
    return lead_B / sum(weight for *_, weight in parts)
