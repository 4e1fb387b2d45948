"""Verifies a scaling sweep: its results, and each of its runs."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.errors import ZigguratError
from ziggurat.core.progress import Progress
from ziggurat.training.run_folder.run import SWEEP_FILE, open_run
from ziggurat.training.scaling.json_values import REWRITE
from ziggurat.training.scaling.result import ScaleResult
from ziggurat.verification.findings import Findings
from ziggurat.verification.runs import verify_run


def verify_sweep(folder: Path, findings: Findings, progress: Progress) -> None:
    """Reads all files of a sweep and of its runs.

    Args:
        folder: the folder of the sweep.
        findings: gets what is found.
        progress: where to show progress.
    """
    result = findings.read(SWEEP_FILE, lambda: _checked_result(folder))
    runs = {path.parent for path in folder.glob("rung-*/seed-*/*.*") if path.parent.is_dir()}
    if result is not None:
        runs |= {folder / run.folder for size in result.sizes for run in size.runs}
    for run in sorted(runs):
        verify_run(run, findings.within(f"{run.relative_to(folder).as_posix()}/"), progress)


def _checked_result(folder: Path) -> ScaleResult:
    """Returns the results of a sweep, which must agree with those of its runs.

    Raises:
        RunFolderError: they are damaged, or those of another sweep.
    """
    result = ScaleResult.load(folder)
    for size in result.sizes:
        for run in size.runs:
            path = folder / run.folder
            if not path.resolve().is_relative_to(folder.resolve()):
                raise REWRITE.of(folder / SWEEP_FILE, f"names the run {run.folder!r}, which is not in this folder")
            try:
                found = open_run(path).results
            except ZigguratError:  # reported when the run is verified
                continue
            figures = {} if found is None else found["figures"]
            if found is None or found["steps"] != run.steps or str(figures) != str(dict(run.figures)):
                raise REWRITE.of(folder / SWEEP_FILE, f"does not have the results of {path}")
    return result
