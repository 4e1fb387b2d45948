"""Makes an ensemble of checkpoints, whose weights are chosen by their outputs on the validation rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.checkpoint.snapshots import snapshots
from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.features.outside_encoders import check_outside_encoders
from ziggurat.parallel.environment import has_other_ranks
from ziggurat.training.ensemble.ensemble import (
    MOST_MEMBERS,
    Candidate,
    Ensemble,
    Member,
    check_together,
)
from ziggurat.training.ensemble.measured import measure
from ziggurat.training.ensemble.weights import Chosen
from ziggurat.training.process_group import refuse_fork
from ziggurat.training.run_folder.own_folder import check_own_folder
from ziggurat.training.run_folder.run import ENSEMBLE_FILE, Run, open_run


@dataclass(frozen=True, slots=True)
class BuiltEnsemble:
    """What :func:`build_ensemble` returns.

    Attributes:
        ensemble: the ensemble; candidates without weight are not among its members.
        candidates: all checkpoints that were considered, in order.
        chosen: label -> the weight and the validation loss of each candidate, and the loss of the ensemble; the losses
            are those that training minimises. Empty where there are no validation rows.
    """

    ensemble: Ensemble
    candidates: tuple[Candidate, ...]
    chosen: dict[str, Chosen]


def build_ensemble(
    runs: str | Path | Run | Sequence[str | Path | Run],
    folder: str | Path,
    *,
    equal_weights: bool = False,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> BuiltEnsemble:
    """Makes an ensemble of the snapshots of a run, or of several runs on one prepared dataset.

    A run that has snapshots, as one with a cyclic schedule has, contributes all of them; another one its best
    checkpoint. The runs stay where they are: the ensemble names them, and needs them.

    Args:
        runs: the run, or the runs, or their folders.
        folder: the folder of the ensemble; an ensemble in it is replaced.
        equal_weights: whether all checkpoints get the same weight; else members and weights are chosen by the loss on
            the validation rows.
        prepared: folder of the encoded dataset, if it has moved since the runs were trained.
        progress: where to show progress.

    Raises:
        ConfigError: there are fewer than two checkpoints, or no validation rows to choose weights by.
        RunFolderError: a run is missing, damaged, or does not go with the others; or the folder holds something else.
        DataError: the prepared dataset does not exist any more.
        EnvironmentMismatch: the process is one of several ranks.
    """
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    opened = [each if isinstance(each, Run) else open_run(each) for each in given]
    candidates = [candidate for run in opened for candidate in candidates_of(run)]
    if len(opened) == 1 and len(candidates) == 1:
        raise ConfigError(
            f"{opened[0].folder}: has no snapshots, so there is nothing to average",
            "train it with `training.schedule: {name: cyclic_cosine, cycles: 5}`, which keeps a snapshot at the end of "
            "each cycle, or name several runs on the same prepared data",
        )
    return build(candidates, folder, equal_weights=equal_weights, prepared=prepared, progress=progress)


def candidates_of(run: Run) -> list[Candidate]:
    """Returns the snapshots of a run, or its best checkpoint if it has none."""
    folder = run.checkpoints
    steps = snapshots(folder.steps(), folder.manifest) or [folder.resolve("best")]
    return [Candidate(run, folder.find(step)) for step in steps]


def build(
    candidates: Sequence[Candidate],
    folder: str | Path,
    *,
    equal_weights: bool = False,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> BuiltEnsemble:
    """Makes an ensemble of checkpoints; see :func:`build_ensemble`.

    Args:
        candidates: the checkpoints.
        folder, equal_weights, prepared, progress: as there.
    """
    check_engine()
    refuse_fork()
    if has_other_ranks():
        raise EnvironmentMismatch(
            f"an ensemble is made in one process, but a launcher started {os.environ['WORLD_SIZE']} ranks",
            "make it without torchrun and --nproc",
        )
    folder = Path(folder)
    _check_candidates(candidates)
    check_own_folder(folder, ENSEMBLE_FILE, "ensemble", "--out")
    first = candidates[0].run
    dataset = first.dataset(prepared)
    check_outside_encoders(first.folder / ENCODERS, first.experiment.features)
    rows = dataset.split("validation").rows
    if not rows and not equal_weights:
        raise ConfigError(
            f"{dataset.folder}: has no validation rows, by which weights are chosen", "add --equal for equal weights"
        )
    labels = [label.name for label in first.experiment.data.labels]
    chosen: dict[str, Chosen] = {}
    weights: list[dict[str, float]] = [dict.fromkeys(labels, 1 / len(candidates)) for _ in candidates]
    if rows:
        measured = measure(candidates, folder, dataset, progress or Silent())
        chosen = {label: measured.chosen(number, equal_weights) for number, label in enumerate(labels)}
        weights = [{label: chosen[label].weights_M[number] for label in labels} for number in range(len(candidates))]
    members = tuple(
        Member(each.run, each.step, weight)
        for each, weight in zip(candidates, weights, strict=True)
        if any(weight.values())
    )
    ensemble = Ensemble(folder, members)
    ensemble.save()
    return BuiltEnsemble(ensemble, tuple(candidates), chosen)


def _check_candidates(candidates: Sequence[Candidate]) -> None:
    """Raises ConfigError or RunFolderError for checkpoints of which no ensemble can be made."""
    if not 2 <= len(candidates) <= MOST_MEMBERS:
        raise ConfigError(
            f"an ensemble is made of 2 to {MOST_MEMBERS:,} checkpoints, received {len(candidates):,}",
            "name the folders of several runs, or of one with snapshots",
        )
    seen: set[tuple[Path, int]] = set()
    for each in candidates:
        key = (each.run.folder.resolve(), each.step)
        if key in seen:
            raise ConfigError(f"{each}: is named twice", "name each run once")
        seen.add(key)
    check_together(candidates)
