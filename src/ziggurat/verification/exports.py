"""Verifies an export: its manifest, every file that it names, and that the dense part can be loaded."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.progress import Progress
from ziggurat.features.transform import Transform
from ziggurat.planning.quantities import format_bytes
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.manifest import MANIFEST_FILE, TRANSFORM, Manifest
from ziggurat.serving.model.scorer import open_dense
from ziggurat.verification.findings import Findings


def verify_export(folder: Path, findings: Findings, progress: Progress) -> None:
    """Reads all files of an export and compares them with their checksums.

    Args:
        folder: the folder of the export.
        findings: gets what is found.
        progress: where to show progress.
    """
    found = findings.read(MANIFEST_FILE, lambda: Manifest.open(folder))
    if found is None:
        return
    progress.start("verify", sum(each.bytes for each in found.files.values()), "bytes")
    done = 0
    for name, stored in found.files.items():
        findings.read(
            name,
            lambda name=name, stored=stored: stored.checksum.check(folder / name, DAMAGED),
            format_bytes(stored.bytes),
        )
        done += stored.bytes
        progress.advance(done)
    progress.finish()
    if not findings.problems:
        findings.read("the dense part", lambda: open_dense(folder, found))
        findings.read("the encoders", lambda: Transform.load(folder / TRANSFORM))
    known = {MANIFEST_FILE, *found.files}
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    findings.notes += [f"{folder / name}: does not belong to the export" for name in names if name not in known]
