"""How far the best trial is ahead of the config as it is, and how much of that the choice of validation rows may be."""

from __future__ import annotations

import math
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

LEAD_FILE = "lead.json"
_OF_ROWS = frozenset({"log_loss", "ne", "relative_loss", "loss"})
"""Monitored metrics that are means over rows of the loss that training minimises, or multiples of it."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The lead of a trial over the config as it is.

    Attributes:
        trial: its number.
        ahead: by how much less its loss is on validation; the mean over the labels.
        error: the standard error of that, over the validation rows. Those of one user are taken as independent, and
            that another seed trains another model is not in it: the true error is greater.
        rows: the validation rows.
    """

    trial: int
    ahead: float
    error: float
    rows: int

    @property
    def is_noise(self) -> bool:
        """Whether the lead is no greater than its error."""
        return self.ahead <= self.error

    def __str__(self) -> str:
        return f"{self.ahead:.2g} ± {self.error:.2g} in loss on {self.rows:,} validation rows"


def lead_of(
    search: Path, monitor: str, first: Path, best: Path, number: int, dataset: Dataset, progress: Progress
) -> Lead | None:
    """Returns the lead of the best trial, which is computed once; None if it cannot be told.

    It cannot of a metric that is no mean over rows, such as AUC, and if the run of the config as it is was deleted.

    Args:
        search: the folder of the search.
        monitor: the monitored metric.
        first: the run of the config as it is.
        best: the run of the best trial.
        number: its number.
        dataset: the prepared data of the search.
        progress: where to show progress.
    """
    if monitor.rpartition("/")[2] not in _OF_ROWS or not (first / CONFIG_FILE).is_file():
        return None
    path = search / LEAD_FILE
    stored = declared(Lead, read_json_object(path, DAMAGE), path, DAMAGE) if path.exists() else None
    if stored is None or stored.trial != number:
        runs = [open_run(first), open_run(best)]
        candidates = [Candidate(run, run.checkpoints.find("best")) for run in runs]
        label = monitor.rpartition("/")[0]
        labels = [each.name for each in runs[0].experiment.data.labels]
        numbers = [labels.index(label)] if label in labels else list(range(len(labels)))
        stored = _measured_lead(number, measure(candidates, search, dataset, progress), numbers)
        write_json(path, asdict(stored))
    return stored


def _measured_lead(trial: int, measured: Measured, labels: list[int]) -> Lead:
    leads: list[Tensor] = []
    for label in labels:
        first_B, best_B = (measured.shares(label, columns_BC) for columns_BC in measured.columns_of(label))
        leads.append(first_B - best_B)
    lead_B = torch.stack(leads).mean(dim=0)
    rows = len(lead_B)
    error = math.sqrt(rows * float(lead_B.var(unbiased=rows > 1)))
    return Lead(trial, float(lead_B.sum()), error, rows)
