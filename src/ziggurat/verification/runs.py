"""Verifies a run folder: each of its files, the fitted transform, and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.inspect.verification import verify as verify_checkpoint_files
from ziggurat.checkpoint.reader import folder_of
from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Progress
from ziggurat.planning.quantities import format_bytes
from ziggurat.report.baselines.store import BASELINES_FILE, read_baselines
from ziggurat.training.placement.counted_lookups import read_lookups
from ziggurat.training.placement.plan_resolution import read_plan, read_ranks
from ziggurat.training.run_folder.metrics_log import foreign_end, read_metrics_log, record_faults
from ziggurat.training.run_folder.run import Run, open_run
from ziggurat.training.run_folder.run_files import (
    CONFIG_FILE,
    DAMAGED,
    DATASET_FILE,
    ENVIRONMENT_FILE,
    LOOKUPS_FILE,
    METRICS_FILE,
    PLAN_FILE,
    RESULTS_FILE,
    ROW_ORDER_FILE,
    WARM_START_FILE,
    RunFiles,
)
from ziggurat.training.warm_start.load import read_warm_start
from ziggurat.verification.datasets import verify_dataset, verify_transform
from ziggurat.verification.findings import Checked, DamageReport, Findings

_TRAIN_AGAIN = "run `ziggurat train` with the run's config again, which writes it anew"
_NO_CHECKPOINT = "restore the checkpoints, or delete the run and train again"
_OTHER_CHECKPOINT = "use another checkpoint (`ziggurat checkpoint list`); training continues from the newest intact one"


def verify_run(folder: Path, findings: Findings, progress: Progress) -> None:
    """Reads all files of a run and compares them with their checksums.

    Args:
        folder: the run folder.
        findings: gets what is found.
        progress: where to show progress.
    """
    files = findings.read(ENVIRONMENT_FILE, lambda: RunFiles.open(folder))
    if files is None:
        findings.notes.append(f"{folder}: without {ENVIRONMENT_FILE} only its checkpoints can be checked")
        verify_checkpoints(CheckpointFolder(folder / "checkpoints"), findings.within("checkpoints/"), progress)
        return
    has_checksums = files.has_checksums
    if not has_checksums:
        findings.notes.append(f"{folder}: has format 1, whose files need not have checksums")
    run = findings.read(CONFIG_FILE, lambda: open_run(folder), has_checksum=lambda found: has_checksums)
    if run is None:
        verify_checkpoints(CheckpointFolder(folder / "checkpoints"), findings.within("checkpoints/"), progress)
        return
    has_checkpoint = _has_checkpoint(run)
    _verify_data(run, findings, progress, has_checkpoint)
    _verify_plan(run, files, findings, has_checkpoint)
    has_warm_start = has_checkpoint and run.experiment.training.warm_start is not None
    _verify_file(run, WARM_START_FILE, findings, lambda: read_warm_start(run), has_warm_start, DAMAGED.hint)
    logged = _verify_results(run, files, findings, has_checkpoint)
    baselines = folder / BASELINES_FILE
    _verify_file(run, BASELINES_FILE, findings, lambda: read_baselines(baselines, files.run_id), False, "")
    if has_checkpoint:
        verify_checkpoints(run.checkpoints, findings.within("checkpoints/"), progress)
        _verify_logged(run, logged, findings)
    elif (folder / RESULTS_FILE).is_file():
        findings.damaged("checkpoints", f"{folder}: training has ended, and there is no checkpoint", _NO_CHECKPOINT)
    elif logged:
        problem = (
            f"{run.checkpoints.where}: there is no checkpoint, and {METRICS_FILE} records that of step {logged[-1]}"
        )
        findings.damaged("checkpoints", problem, _NO_CHECKPOINT)
    else:
        findings.notes.append(f"{folder}: has no checkpoint")


def verify_checkpoints(
    folder: CheckpointFolder, findings: Findings, progress: Progress, steps: list[int] | None = None
) -> None:
    """Verifies checkpoints, as ``ziggurat checkpoint verify`` does.

    Args:
        folder: the checkpoints.
        findings: gets what is found.
        progress: where to show progress.
        steps: which ones; default: all.
    """
    try:
        found = verify_checkpoint_files(folder, steps, progress)
    except RunFolderError as error:
        findings.damaged("", error.problem, error.hint)
        return
    for verdict in found.verdicts:
        state = "whole" if verdict.state in {"whole", "deleted"} else "damaged"
        detail = f"{verdict.files:,} files, {format_bytes(verdict.bytes)}"
        findings.checked.append(Checked(f"{findings.prefix}step {verdict.step}", state, detail))
        if state == "damaged":
            problems = (f"{folder.where}: step {verdict.step}: {each}" for each in verdict.problems)
            findings.problems += [DamageReport(each, _OTHER_CHECKPOINT) for each in problems]
    if found.best_problem is not None:
        hint = "delete it: the best checkpoint is then taken from the newest manifest"
        findings.damaged("best.json", found.best_problem, hint)
    findings.notes += [f"{folder.where}/{name}: is unfinished" for name in found.unfinished]
    findings.notes += [f"{folder.where}/{name}: belongs to no checkpoint" for name in found.foreign]


def _has_checkpoint(run: Run) -> bool:
    """Returns whether the run has a checkpoint."""
    try:
        return run.checkpoints.last() is not None
    except RunFolderError:  # reported when the checkpoints are verified
        return True


def _verify_file(
    run: Run, name: str, findings: Findings, read: Callable[[], object], expected: bool, hint: str
) -> None:
    """Checks a file that need not exist unless it is ``expected``."""
    path = run.folder / name
    if path.exists() or path.is_symlink():
        has_checksums = run.files.has_checksums
        findings.read(name, read, has_checksum=lambda found: has_checksums)
    elif expected:
        findings.damaged(name, f"{path}: is missing", hint)


def _verify_data(run: Run, findings: Findings, progress: Progress, has_checkpoint: bool) -> None:
    """Checks which dataset the run names, the run's copy of the transform, and the dataset if it is the run's own."""
    _verify_file(run, DATASET_FILE, findings, run.pointer, has_checkpoint, _TRAIN_AGAIN)
    try:
        pointer = run.pointer()
    except RunFolderError:
        pointer = None
    if pointer is None:
        if has_checkpoint:
            verify_transform(run.folder / "encoders", findings, None)
        return
    verify_transform(run.folder / "encoders", findings, pointer.encoders)
    own = run.folder / "dataset"
    if own.is_dir():
        verify_dataset(own, findings.within("dataset/"), progress, copied=True)
    else:
        findings.notes.append(
            f"its prepared dataset is not part of the run: `ziggurat verify {pointer.folder}` checks it"
        )


def _verify_plan(run: Run, files: RunFiles, findings: Findings, has_checkpoint: bool) -> None:
    _verify_file(run, PLAN_FILE, findings, lambda: read_plan(files), has_checkpoint, _TRAIN_AGAIN)
    _verify_file(run, ROW_ORDER_FILE, findings, lambda: read_ranks(files), False, "")
    _verify_file(run, LOOKUPS_FILE, findings, lambda: read_lookups(files), False, "")


def _verify_results(run: Run, files: RunFiles, findings: Findings, has_checkpoint: bool) -> list[int]:
    """Verifies results and metrics; returns the steps whose checkpoints the metrics record, ascending."""
    path = run.metrics_path
    _verify_file(run, RESULTS_FILE, findings, lambda: run.results, False, "")
    restore = "restore it; only the report's curves and a sweep's times are made from it"
    _verify_file(run, METRICS_FILE, findings, lambda: read_metrics_log(path, files), has_checkpoint, restore)
    try:
        results, written, last = run.results, run.written_records, run.checkpoints.last()
        records, end = read_metrics_log(path, files), foreign_end(path)
    except RunFolderError:  # reported above
        return []
    if results is None:
        findings.notes.append(f"{run.folder}: has no {RESULTS_FILE}, as training has not finished")
    is_finished = results is not None and last is not None and last >= results["steps"]
    faults = record_faults(records, written if is_finished and path.exists() else None)
    if faults is not None:
        findings.damaged(METRICS_FILE, f"{path}: is not as it was written: {faults}", restore)
    if end is not None:
        findings.damaged(METRICS_FILE, f"{path}: {end}", restore)
    return sorted({record["step"] for record in records if record["split"] == "checkpoint"})


def _verify_logged(run: Run, logged: list[int], findings: Findings) -> None:
    """Looks for the checkpoints that the metrics record, and that training has not deleted since.

    That of the newest step is always there. Older ones may have been deleted by ``ziggurat checkpoint prune``.
    """
    folder = run.checkpoints
    try:
        steps, best = folder.steps(), folder.best()
    except RunFolderError:  # reported above
        return
    kept = sorted({*logged, *steps})[-run.experiment.training.keep :]
    for step in (step for step in logged if step not in steps):
        missing = folder.missing_file(step)
        recorded = f"although {METRICS_FILE} records that checkpoint"
        name = f"checkpoints/step {step}"
        is_best = best is not None and best["step"] == step
        if missing is not None and (step in kept or is_best):
            findings.damaged(name, f"{missing}, {recorded}", _OTHER_CHECKPOINT)
        elif step == kept[-1]:
            problem = f"{folder.store.where(folder_of(step)).rstrip('/')}: is missing, {recorded}"
            findings.damaged(name, problem, _OTHER_CHECKPOINT)
        elif step in kept and not is_best:  # otherwise best.json names it
            findings.notes.append(
                f"{folder.where}: step {step} is missing, {recorded}: somebody has deleted it, as "
                "`ziggurat checkpoint prune` does"
            )
