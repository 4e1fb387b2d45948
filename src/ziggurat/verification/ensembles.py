"""Verifies an ensemble: its file, that its members are the runs it was made of, and each of these runs."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.progress import Progress
from ziggurat.training.ensemble.ensemble import Ensemble, member_folders, shown_path
from ziggurat.training.run_folder.run import ENSEMBLE_FILE
from ziggurat.verification.findings import Findings
from ziggurat.verification.runs import verify_run

_RESTORE = "restore the run, or make the ensemble again without it"


def verify_ensemble(folder: Path, findings: Findings, progress: Progress) -> None:
    """Reads the file of an ensemble, and all files of its runs.

    Args:
        folder: the folder of the ensemble.
        findings: gets what is found.
        progress: where to show progress.
    """
    places = findings.read(ENSEMBLE_FILE, lambda: member_folders(folder))
    if places is None:
        return
    for place in sorted({shown_path(each) for each in places}):
        within = findings.within(f"{place}/")
        if place.is_dir():
            verify_run(place, within, progress)
        else:
            within.damaged("", f"{place}: is missing, and {folder / ENSEMBLE_FILE} names it as a member", _RESTORE)
    if not findings.problems:
        findings.read("members", lambda: Ensemble.open(folder))
