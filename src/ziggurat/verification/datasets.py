"""Verifies a prepared dataset: its manifest, fitted transform, statistics, and every block of its splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ziggurat.core.errors import DataError, ZigguratError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import DAMAGED, ENCODERS, MANIFEST_FILE, SPLITS, Split
from ziggurat.features.dataset_schema import check_schema
from ziggurat.features.saved_transform import TRANSFORM_FILE, SavedTransform
from ziggurat.features.versions import DAMAGED as DAMAGED_TRANSFORM
from ziggurat.planning.quantities import format_bytes
from ziggurat.verification.findings import Checked, DamageReport, Findings, State

_MISSING_ROWS = "restore the folder, or delete the prepared folder and prepare again: `ziggurat prepare`"
"""What to do about a split without its rows."""
_KNOWN = {MANIFEST_FILE, ENCODERS, "statistics.json", "statistics.safetensors", "quarantine.jsonl", ".staging", *SPLITS}


def verify_dataset(folder: Path, findings: Findings, progress: Progress, *, copied: bool = False) -> None:
    """Reads all files of a dataset and compares them with their checksums.

    Args:
        folder: the dataset's folder.
        findings: gets what is found.
        progress: where to show progress.
        copied: whether it was copied from readers, so that its training rows are elsewhere.
    """
    dataset = findings.read(MANIFEST_FILE, lambda: Dataset(folder), has_checksum=_has_checksums)
    saved = verify_transform(folder / ENCODERS, findings, None if dataset is None else dataset.checksum(ENCODERS))
    if dataset is None:
        return
    if not _has_checksums(dataset):
        findings.notes.append(
            f"{folder}: has format 1, without checksums of the rows: only contradictions are found; prepare it again "
            "for checksums"
        )
    elif dataset.checksum(ENCODERS) is None:
        findings.damaged(MANIFEST_FILE, f"{folder / MANIFEST_FILE}: lacks checksums.{ENCODERS}", DAMAGED.hint)
    statistics = findings.read("statistics", dataset.statistics, has_checksum=lambda found: _has_checksums(dataset))
    if saved is not None:
        rows = None if statistics is None else {name: table.rows for name, table in statistics.tables.items()}
        _verify_schema(dataset, saved, rows, findings)
    splits: list[Split] = [split for split in SPLITS if not (copied and split == "train")]
    progress.start("verify", sum(dataset.split(split).rows for split in splits), "rows")
    done = 0
    for split in splits:
        done = _verify_split(dataset, split, findings, done, progress.advance)
    progress.finish()
    _add_foreign(folder, dataset, findings)


def _verify_schema(dataset: Dataset, saved: SavedTransform, rows: dict[str, int] | None, findings: Findings) -> None:
    try:
        check_schema(dataset, saved, rows)
    except ZigguratError as error:
        findings.damaged(MANIFEST_FILE, error.problem, error.hint)


def verify_transform(folder: Path, findings: Findings, checksum: str | None) -> SavedTransform | None:
    """Reads the files of a saved transform and compares them with their checksums; returns it unless it is damaged.

    Args:
        folder: the transform's folder.
        findings: gets what is found.
        checksum: the checksum that it must have, if that was recorded.
    """
    saved = findings.read(
        f"{ENCODERS}/{TRANSFORM_FILE}",
        lambda: SavedTransform.open(folder, checksum),
        has_checksum=lambda found: found.files is not None,
    )
    if saved is None:
        return None
    if saved.files is None:  # version 1; with a recorded checksum, all files have been compared
        for table in saved.tables():
            findings.read(
                f"{ENCODERS}/table.{table}.*",
                lambda table=table: saved.encoder(table),
                has_checksum=lambda found: False,
            )
        return saved
    for name, recorded in saved.files.items():
        findings.read(
            f"{ENCODERS}/{name}",
            lambda name=name, recorded=recorded: recorded.check(folder / name, DAMAGED_TRANSFORM),
            format_bytes(recorded.bytes),
        )
    return saved


def _has_checksums(dataset: Dataset) -> bool:
    return dataset.format_version > 1


def _verify_split(
    dataset: Dataset, split: Split, findings: Findings, done: int, advance: Callable[[float], None]
) -> int:
    """Reads every block of a split; returns the number of rows read so far."""
    blocks = dataset.split(split)
    problems: list[DamageReport] = []
    if blocks.blocks and not (dataset.folder / split).is_dir():
        findings.damaged(split, f"{dataset.folder / split}: is missing", _MISSING_ROWS)
        return done + blocks.rows
    for number, (_, _, rows) in enumerate(blocks.blocks):
        try:
            blocks.read(number)
        except DataError as error:
            problem = DamageReport(error.problem, error.hint)
            if problem not in problems:  # a missing file has many blocks
                problems.append(problem)
        done += rows
        advance(done)
    state: State = "damaged" if problems else "whole" if blocks.checksums is not None else "no checksum"
    detail = f"{len(blocks.blocks):,} blocks, {blocks.rows:,} rows"
    findings.checked.append(Checked(f"{findings.prefix}{split}", state, detail))
    findings.problems.extend(problems)
    return done


def _add_foreign(folder: Path, dataset: Dataset, findings: Findings) -> None:
    """Notes the files that the manifest does not list."""
    foreign = [path.name for path in folder.iterdir() if path.name not in _KNOWN]
    for split in SPLITS:
        known = {name for name, _, _ in dataset.split(split).blocks}
        if (folder / split).is_dir():
            foreign += [f"{split}/{path.name}" for path in (folder / split).iterdir() if path.name not in known]
    findings.notes += [f"{folder / name}: does not belong to the dataset" for name in sorted(foreign)]
