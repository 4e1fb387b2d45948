"""Opens a run to export it: on the CPU, without a compiler, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import torch

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.core.memory import explained_thread_limit
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.parallel.environment import has_other_ranks
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.process_group import process_group, refuse_fork
from ziggurat.training.recommender import Recommender
from ziggurat.training.run_folder.run import ENSEMBLE_FILE, Run, open_run


def check_new(out: Path) -> None:
    """Refuses a folder that exists.

    Raises:
        ConfigError: it does.
    """
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists", "name a new folder, or delete this one")


def open_exportable(run: Run | str | Path) -> Run:
    """Returns a run that can be exported.

    Raises:
        ConfigError: it is an ensemble.
        RunFolderError: there is no such run.
    """
    if isinstance(run, Run):
        return run
    folder = Path(run)
    if (folder / ENSEMBLE_FILE).is_file():
        raise ConfigError(
            f"{folder}: is an ensemble; an export holds the tables and the dense part of a single run",
            "export one of its members; `evaluate` and `predict` take ensembles",
        )
    return open_run(folder)


def on_cpu(run: Run) -> Run:
    """Returns the run as it predicts on the CPU without a compiler."""
    training = run.experiment.training.model_copy(update={"device": "cpu", "compile": False})
    return Run(run.folder, run.experiment.model_copy(update={"training": training}))


@contextlib.contextmanager
def opened_recommender(run: Run, dataset: Dataset, step: int, progress: Progress) -> Generator[Recommender]:
    """Opens the recommender of a run in evaluation mode.

    Raises:
        EnvironmentMismatch: the process is one of several ranks.
    """
    check_engine()
    refuse_fork()
    if has_other_ranks():
        raise EnvironmentMismatch("an export runs in one process", "export without torchrun and --nproc")
    layout, device = run.experiment.layout(dataset.schema), torch.device("cpu")
    opening = open_recommender(run, layout, device, prepared=dataset.folder, checkpoint=step)
    with explained_thread_limit(), process_group(device), opening as found:
        if found.note:
            progress.note(found.note)
        found.recommender.eval()
        yield found.recommender
