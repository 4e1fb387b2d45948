"""Opens what is exported, a run or an ensemble: on the CPU, without a compiler, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.core.memory import explained_thread_limit
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.parallel.environment import has_other_ranks
from ziggurat.training.ensemble.combined import CombinedRecommender, check_no_checkpoint, open_model
from ziggurat.training.ensemble.ensemble import Ensemble, open_run_or_ensemble
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.process_group import process_group, refuse_fork
from ziggurat.training.recommender import Recommender
from ziggurat.training.run_folder.run import Run


@dataclass(frozen=True, slots=True)
class ExportedMember:
    """A checkpoint that is exported, alone or with others.

    Attributes:
        run: its run.
        step: its step.
        prefix: what the names of its tables and inputs begin with in the export; empty if it is exported alone.
        weights: label -> the weight of its outputs; empty if it is exported alone.
    """

    run: Run
    step: int
    prefix: str
    weights: Mapping[str, float]


def check_new(out: Path) -> None:
    """Refuses a folder that exists.

    Raises:
        ConfigError: it does.
    """
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists", "name a new folder, or delete this one")


def open_exportable(run: Run | Ensemble | str | Path) -> Run | Ensemble:
    """Returns the run or the ensemble.

    Raises:
        RunFolderError: there is none; or a member is missing, damaged, or has other prepared data.
    """
    return run if isinstance(run, Run | Ensemble) else open_run_or_ensemble(run)


@overload
def on_cpu(opened: Run, **changes: Any) -> Run: ...
@overload
def on_cpu(opened: Run | Ensemble, **changes: Any) -> Run | Ensemble: ...
def on_cpu(opened: Run | Ensemble, **changes: Any) -> Run | Ensemble:
    """Returns the run or the ensemble as it predicts on the CPU without a compiler.

    Args:
        opened: the run or the ensemble.
        changes: further settings of the section ``training``.
    """
    if isinstance(opened, Ensemble):
        return Ensemble(opened.folder, tuple(replace(each, run=on_cpu(each.run, **changes)) for each in opened.members))
    training = opened.experiment.training.model_copy(update={"device": "cpu", "compile": False, **changes})
    return Run(opened.folder, opened.experiment.model_copy(update={"training": training}))


def members_of(opened: Run | Ensemble, checkpoint: str) -> tuple[ExportedMember, ...]:
    """Returns what is exported: a checkpoint of a run, or all members of an ensemble.

    Raises:
        ConfigError: a checkpoint of an ensemble was asked for.
        RunFolderError: there is no such checkpoint.
    """
    if isinstance(opened, Run):
        return (ExportedMember(opened, opened.checkpoints.find(checkpoint), "", {}),)
    check_no_checkpoint(opened, checkpoint)
    return tuple(
        ExportedMember(each.run, each.step, f"{number}/", each.weights) for number, each in enumerate(opened.members, 1)
    )


@contextlib.contextmanager
def opened_model(
    opened: Run | Ensemble, dataset: Dataset, step: int, progress: Progress
) -> Generator[Recommender | CombinedRecommender]:
    """Opens the model of a run or of an ensemble in evaluation mode.

    Args:
        opened: the run or the ensemble.
        dataset: its prepared dataset.
        step: the checkpoint of a run; an ensemble has its own.
        progress: where to show notes.

    Raises:
        EnvironmentMismatch: the process is one of several ranks.
    """
    check_engine()
    refuse_fork()
    if has_other_ranks():
        raise EnvironmentMismatch("an export runs in one process", "export without torchrun and --nproc")
    device, folder = torch.device("cpu"), dataset.folder
    if isinstance(opened, Run):
        layout = opened.experiment.layout(dataset.schema)
        opening = open_recommender(opened, layout, device, prepared=folder, checkpoint=step)
    else:
        opening = open_model(opened, dataset.schema, device, prepared=folder)
    with explained_thread_limit(), process_group(device), opening as found:
        if found.note:
            progress.note(found.note)
        found.recommender.eval()
        yield found.recommender


def recommenders_of(model: Recommender | CombinedRecommender) -> list[Recommender]:
    """Returns the recommenders of the members, in their order."""
    return [model] if isinstance(model, Recommender) else list(model.members)
