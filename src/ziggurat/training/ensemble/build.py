"""Makes an ensemble of checkpoints: computes the outputs of each on the validation rows, and chooses the weights.

One model is in memory at a time. The outputs of all candidates are: four bytes for each row, candidate and column.

Shape legend: B rows, M candidates, C columns, T labels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ziggurat.checkpoint.snapshots import snapshots
from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.core.memory import explained_thread_limit
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset, SplitBlocks
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.features.outside_encoders import check_outside_encoders
from ziggurat.objectives.outputs import Outputs
from ziggurat.objectives.task import column_slices
from ziggurat.parallel.environment import has_other_ranks
from ziggurat.training.ensemble.ensemble import (
    MOST_MEMBERS,
    Candidate,
    Ensemble,
    Member,
    check_together,
    of_member,
)
from ziggurat.training.ensemble.weights import Chosen, choose, equal
from ziggurat.training.malloc_tuning import keep_freed_memory
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.process_group import pick_device, process_group, refuse_fork
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
        measured = _measure(candidates, folder, dataset, progress or Silent())
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


@dataclass(frozen=True, slots=True)
class _Measured:
    """The outputs of all candidates on the validation rows.

    Attributes:
        outputs: turns columns and labels into losses.
        columns_MBC: the columns of each candidate.
        labels_BT: the labels.
        weights_BT: what each row counts for each label.
    """

    outputs: Outputs
    columns_MBC: list[Tensor]
    labels_BT: Tensor
    weights_BT: Tensor

    @torch.no_grad()
    def chosen(self, number: int, equal_weights: bool) -> Chosen:
        """Returns the weights for the label of this number."""
        at = column_slices(self.outputs.tasks)[number]
        columns = [columns_BC[:, at].contiguous() for columns_BC in self.columns_MBC]
        choice = equal if equal_weights else choose
        return choice(columns, partial(self._loss, number))

    def _loss(self, number: int, columns_BC: Tensor) -> float:
        losses_B = self.outputs.losses_of(number, columns_BC, self.labels_BT[:, number]).double()
        weights_B = self.weights_BT[:, number]
        return float((losses_B * weights_B).sum() / weights_B.sum())


def _measure(candidates: Sequence[Candidate], folder: Path, dataset: Dataset, progress: Progress) -> _Measured:
    """Computes the outputs of each candidate on the validation rows."""
    keep_freed_memory()
    blocks = dataset.split("validation")
    device = pick_device(candidates[0].run.experiment.training.device)
    columns: list[Tensor] = []
    outputs: Outputs | None = None
    progress.start("outputs on validation", len(candidates) * blocks.rows, "rows")
    with explained_thread_limit(), process_group(device):
        for number, candidate in enumerate(candidates):
            experiment = candidate.run.experiment
            with (
                of_member(folder, candidate),
                open_recommender(
                    candidate.run,
                    experiment.layout(dataset.schema),
                    device,
                    prepared=dataset.folder,
                    checkpoint=candidate.step,
                ) as found,
                torch.no_grad(),
            ):
                found.recommender.eval()
                parts: list[Tensor] = []
                for batch, _ in _loader(blocks, dataset, experiment.evaluation.batch_size).epoch(Cursor()):
                    parts.append(found.recommender(batch.to(device))[0].cpu())
                columns.append(torch.cat(parts))
                outputs = found.recommender.outputs.cpu()
            progress.advance((number + 1) * blocks.rows)
    progress.finish()
    assert outputs is not None
    labels_BT, weights_BT = _labels(blocks, dataset, outputs)
    return _Measured(outputs, columns, labels_BT, weights_BT)


def _labels(blocks: SplitBlocks, dataset: Dataset, outputs: Outputs) -> tuple[Tensor, Tensor]:
    """Returns the labels (B, T) of a split, and what each row counts for each label, as metrics count it."""
    labels: list[Tensor] = []
    weights: list[Tensor] = []
    kept_T = torch.tensor([task.known_rate for task in outputs.tasks], dtype=torch.float64)
    for batch, _ in _loader(blocks, dataset, 2**16).epoch(Cursor()):
        weights_BT = torch.ones_like(batch.labels_BT, dtype=torch.float64)
        if batch.weights_B is not None:
            weights_BT = weights_BT * batch.weights_B[:, None]
        if batch.counts_BT is not None:
            weights_BT = weights_BT * batch.counts_BT
        labels.append(batch.labels_BT)
        weights.append(torch.where(batch.labels_BT == 0, weights_BT / kept_T, weights_BT))
    return torch.cat(labels), torch.cat(weights)


def _loader(blocks: SplitBlocks, dataset: Dataset, batch_size: int) -> Loader:
    return Loader(blocks, dataset.schema, batch_size, shuffle=False)
