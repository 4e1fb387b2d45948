"""Results on disk: one JSON file a benchmark, and whether what it measured is still what is in the tree."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench import provenance
from bench.benchmark import Benchmark, Figure, Result, judge
from ziggurat.core.files import write_json

FORMAT_VERSION = 1

State = Literal["current", "stale", "never run"]


@dataclass(frozen=True, slots=True)
class Status:
    """A benchmark's stored result beside the tree as it is now.

    Attributes:
        name: the benchmark.
        state: ``current``: the files it depends on are byte for byte those that were measured.
        holds: whether the stored figures reach the benchmark's targets of today; None when never run.
        figure, target: the figure that clears its target by least.
        commit, dirty, date: when and on what it was measured.
        changed: files that differ since, as far as git can tell.
    """

    name: str
    state: State
    holds: bool | None = None
    figure: str = ""
    target: str = ""
    commit: str = ""
    dirty: bool = False
    date: str = ""
    changed: tuple[str, ...] = ()


def result_path(root: Path, name: str) -> Path:
    """``bench/results/NAME.json``."""
    return root / "bench" / "results" / f"{name}.json"


def origin(benchmark: Benchmark, root: Path) -> dict[str, Any]:
    """Where figures come from. Taken before the run: what is edited while it runs makes the result stale."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": provenance.commit(root),
        "dirty": bool(provenance.dirty_files(root, benchmark.depends_on)),
        "sources_sha256": provenance.digest(root, benchmark.depends_on),
        "machine": provenance.machine(),
    }


def describe(benchmark: Benchmark, result: Result, origin: dict[str, Any]) -> dict[str, Any]:
    """Everything that is stored: figures, their targets, and where they come from."""
    verdict = judge(benchmark.targets, result.figures)
    figures: list[dict[str, Any]] = []
    for figure in result.figures:
        target = benchmark.targets.get(figure.name)
        entry = figure.to_json()
        entry["target"] = target.text(figure.unit) if target else None
        entry["holds"] = target.holds(figure.value) if target else None
        figures.append(entry)
    return {
        "format_version": FORMAT_VERSION,
        "name": benchmark.name,
        "claim": benchmark.claim,
        "layout": benchmark.layout,
        "holds": verdict.holds,
        "figures": figures,
        "warmups": result.warmups,
        "repeats": result.repeats,
        "notes": list(result.notes),
        **({"cases": result.cases} if result.cases else {}),
        **origin,
        "versions": {**provenance.versions(), **result.versions},
    }


def store(root: Path, stored: dict[str, Any]) -> Path:
    """Atomically write a described result to its place."""
    path = result_path(root, stored["name"])
    write_json(path, stored)
    return path


def load(root: Path, name: str) -> dict[str, Any] | None:
    """The stored result, or None when the benchmark was never run (or by another format)."""
    try:
        stored: dict[str, Any] = json.loads(result_path(root, name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return stored if stored.get("format_version") == FORMAT_VERSION else None


def status(root: Path, benchmark: Benchmark) -> Status:
    """Compare the stored result with the tree and with the targets of today."""
    stored = load(root, benchmark.name)
    if stored is None:
        return Status(benchmark.name, "never run")
    figures = tuple(Figure.from_json(entry) for entry in stored["figures"])
    verdict = judge(benchmark.targets, figures)
    current = stored["sources_sha256"] == provenance.digest(root, benchmark.depends_on)
    commit = stored["commit"] or ""
    changed = () if current or not commit else provenance.changed_since(root, commit, benchmark.depends_on)
    return Status(
        name=benchmark.name,
        state="current" if current else "stale",
        holds=verdict.holds,
        figure=verdict.figure,
        target=verdict.target,
        commit=commit,
        dirty=stored["dirty"],
        date=stored["date"],
        changed=tuple(changed),
    )
