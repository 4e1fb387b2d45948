"""What those who run a server may do with its versions: list them, pin one, go back, follow again."""

from __future__ import annotations

from typing import Any

from ziggurat.core.errors import ConfigError
from ziggurat.serving.versions.folder import VersionFolder
from ziggurat.serving.versions.record import VersionRecord
from ziggurat.serving.versions.workers_seen import wait_for_workers, workers_seen

_REACHED_S = 10.0
"""For how long a change waits until all workers have it."""


class NotKept(ConfigError):
    """A version is not kept, or never was."""


class Conflict(ConfigError):
    """There is no version to do this with."""


def pin(folder: VersionFolder, version: str) -> dict[str, Any]:
    """Serves a version until another one is chosen; returns :func:`state` once all workers have it.

    Raises:
        NotKept: it is not kept.
    """
    with folder.locked():
        records = folder.records()
        found = next((each for each in reversed(records) if each.short == version), None)
        if found is None:
            raise NotKept(
                f"there is no version {version[:80]!r}", f"kept: {', '.join(_words(records))}; see GET /admin/versions"
            )
        folder.choose(found.number, "pinned")
    return _reached(folder, found.number)


def roll_back(folder: VersionFolder) -> dict[str, Any]:
    """Serves the version before the one that is served, and pins it; returns :func:`state` once all workers have it.

    Raises:
        Conflict: there is none.
    """
    with folder.locked():
        records, pointer = folder.records(), folder.pointer()
        served = folder.record(pointer.number)
        before = [each for each in records if each.number < served.number and each.short != served.short]
        if not before:
            raise Conflict(f"there is no version before {served.short}", f"kept: {', '.join(_words(records))}")
        folder.choose(before[-1].number, "pinned")
    return _reached(folder, before[-1].number)


def follow(folder: VersionFolder) -> dict[str, Any]:
    """Serves the newest version, and each newer one; returns :func:`state` once all workers have the newest."""
    with folder.locked():
        newest = folder.records()[-1].number
        folder.choose(newest, "following")
    return _reached(folder, newest)


def state(folder: VersionFolder) -> dict[str, Any]:
    """Returns the versions that are kept, which is served, and what the updater tells."""
    pointer, status = folder.pointer(), folder.status()
    records = {each.short: each for each in folder.records()}  # of those that compaction made, the last one
    numbers = {each.number: each.short for each in folder.records()}
    served = folder.record(pointer.number).short
    return {
        "mode": pointer.mode,
        "current": served,
        "since": pointer.since,
        "versions": [_shown(each, served) for each in sorted(records.values(), key=lambda each: each.number)],
        "workers": {str(worker): numbers.get(number) for worker, number in workers_seen(folder.root).items()},
        "updates": {
            "process": status.updater,
            "checked_at": status.checked,
            "taken": status.taken,
            "merged": status.merged,
            "compacted": status.compacted,
            "bytes_written": status.bytes,
            "bytes_written_24h": status.day_bytes,
            "budget_bytes_24h": None if status.budget_bytes < 0 else status.budget_bytes,
            "waits_for_budget_until": status.waits_until or None,
            "table_waits_for_budget_until": status.table_waits_until or None,
            "seconds_from_checkpoint": status.seconds or None,
            "failures": status.failures,
            "problem": status.problem or None,
        },
    }


def _shown(record: VersionRecord, served: str) -> dict[str, Any]:
    return {
        "version": record.short,
        "step": record.step,
        "checkpoint": record.checkpoint or None,
        "made_at": record.made,
        "taken_at": record.taken,
        "bytes": record.bytes,
        "rows_changed_since_base": sum(each.changed for each in record.tables.values()),
        "current": record.short == served,
    }


def _reached(folder: VersionFolder, number: int) -> dict[str, Any]:
    reached = wait_for_workers(folder.root, number, _REACHED_S)
    return state(folder) | {"reached_all_workers": reached}


def _words(records: list[VersionRecord]) -> list[str]:
    return list(dict.fromkeys(each.short for each in records))
