"""The ensemble of a search: its best trials, averaged with weights that validation chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.search.study import TrialRecord
from ziggurat.training.ensemble.build import BuiltEnsemble, build
from ziggurat.training.ensemble.ensemble import Candidate, is_ensemble, member_folders
from ziggurat.training.evaluate_run import evaluate
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.run_folder.run_files import CONFIG_FILE

ENSEMBLE = "ensemble"
"""The folder of the ensemble in that of the search."""


@dataclass(frozen=True, slots=True)
class SearchedEnsemble:
    """The ensemble of a search.

    Attributes:
        built: the ensemble, with the weights and losses of the trials that were considered.
        trials: their numbers, in the same order: the best trial first.
        validation: its figures on validation.
        test: its figures on the test split; empty if there is none.
    """

    built: BuiltEnsemble
    trials: tuple[int, ...]
    validation: Mapping[str, float]
    test: Mapping[str, float]

    @property
    def folder(self) -> Path:
        """Its folder, which is evaluated and predicts as a run does."""
        return self.built.ensemble.folder


def best_trials(records: Sequence[TrialRecord], count: int, *, higher_is_better: bool) -> list[int]:
    """Returns the numbers of the ``count`` best trials that were trained to their end, the best first.

    Of equal ones the earlier is first.
    """
    trained = [each for each in records if each.state == "complete" and each.same_as is None]
    valued = [(each.value, each.number) for each in trained if each.value is not None]
    ordered = sorted(valued, key=lambda each: (-each[0] if higher_is_better else each[0], each[1]))
    return [number for _, number in ordered[:count]]


def named_folders(search: Path) -> set[Path]:
    """Returns the run folders that the search's ensemble names, resolved; they must stay.

    Raises:
        RunFolderError: its file is damaged.
    """
    folder = search / ENSEMBLE
    return {each.resolve() for each in member_folders(folder)} if is_ensemble(folder) else set()


def make_ensemble(
    search: Path,
    records: Sequence[TrialRecord],
    count: int,
    run_folder: Callable[[int], Path],
    dataset: Dataset,
    progress: Progress,
    *,
    higher_is_better: bool,
) -> SearchedEnsemble:
    """Makes the ensemble of the best trials, and computes its figures.

    Args:
        search: the folder of the search.
        records: all trials.
        count: how many of the best complete trials are considered.
        run_folder: returns the run folder of a trial.
        dataset: the prepared data of the search.
        progress: where to show progress.
        higher_is_better: the direction of the monitored metric.

    Raises:
        RunFolderError: the runs of fewer than two trials are there; those of others were deleted by an earlier call.
    """
    ranked = best_trials(records, len(records), higher_is_better=higher_is_better)
    kept = [number for number in ranked if (run_folder(number) / CONFIG_FILE).is_file()][:count]
    if len(kept) < 2:
        raise RunFolderError(
            f"{search}: an ensemble needs the runs of two complete trials or more, and has those of {len(kept)}",
            "raise --trials: the runs of further trials are kept; those of earlier ones are only kept by a search that "
            "has --ensemble from the beginning",
        )
    gone = [number for number in ranked[:count] if number not in kept]
    if gone:
        progress.note(
            f"{search}: the runs of {len(gone)} of the best {count} trials were deleted before --ensemble was given; "
            "the next best take their places"
        )
    runs = [open_run(run_folder(number)) for number in kept]
    candidates = [Candidate(run, run.checkpoints.find("best")) for run in runs]
    built = build(candidates, search / ENSEMBLE, prepared=dataset.folder, progress=progress)
    figures = {
        split: evaluate(built.ensemble, split, prepared=dataset.folder).compute()
        for split in ("validation", "test")
        if dataset.split(split).rows
    }
    return SearchedEnsemble(built, tuple(kept), figures["validation"], figures.get("test", {}))
