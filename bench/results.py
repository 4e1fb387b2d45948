"""Stored results: one JSON file per benchmark, and whether the code that it measured has changed since."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench import provenance
from bench.benchmark import Benchmark, Figure, Result, judge
from bench.sources import Reach, compare, reach_of_commit, sources_here
from bench.trees import CommitMissing, working_tree
from ziggurat.core.files import write_json

FORMAT_VERSION = 1

State = Literal["current", "moved", "stale", "unknown", "never run"]


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a benchmark's stored result.

    Attributes:
        name: the benchmark.
        state: ``current``: the code is what was measured; ``moved``: files moved or names changed, the code is the
            same; ``stale``: code or a declared file changed; ``unknown``: it cannot be compared.
        holds: whether the stored figures reach the benchmark's targets of today; None when never run.
        figure, target: the figure that clears its target by the smallest factor.
        commit, dirty, date: the measured commit, whether there were local changes, and the date.
        changed: the functions, classes and files that make it stale.
        reason: why the state is unknown.
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
    reason: str = ""


def result_path(root: Path, name: str) -> Path:
    """Returns ``bench/results/NAME.json``."""
    return root / "bench" / "results" / f"{name}.json"


def origin(benchmark: Benchmark, root: Path) -> dict[str, Any]:
    """Returns the origin of figures. Called before the run, so that edits during the run make the result stale."""
    found = sources_here(root, benchmark.depends_on)
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": provenance.commit(root),
        "dirty": bool(provenance.dirty_files(root, found.paths)),
        "sources_sha256": found.digest,
        "machine": provenance.machine(),
    }


def describe(benchmark: Benchmark, result: Result, origin: dict[str, Any]) -> dict[str, Any]:
    """Returns everything that is stored: figures, their targets, and their origin."""
    targets = benchmark.targets_of(result.figures)
    verdict = judge(targets, result.figures)
    figures: list[dict[str, Any]] = []
    for figure in result.figures:
        target = targets.get(figure.name)
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
    """Writes a described result to its place, atomically."""
    path = result_path(root, stored["name"])
    write_json(path, stored)
    return path


def load(root: Path, name: str) -> dict[str, Any] | None:
    """Returns the stored result; None if there is none, or if it has another format version."""
    try:
        stored: dict[str, Any] = json.loads(result_path(root, name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return stored if stored.get("format_version") == FORMAT_VERSION else None


def status(root: Path, benchmark: Benchmark) -> Status:
    """Compares a stored result with the working directory and with today's targets."""
    return statuses(root, [benchmark])[0]


def statuses(root: Path, benchmarks: Sequence[Benchmark]) -> list[Status]:
    """Returns the status of each benchmark; reads the working directory once."""
    reach = Reach(working_tree(root, [path for benchmark in benchmarks for path in benchmark.depends_on]))
    return [_status(root, benchmark, reach) for benchmark in benchmarks]


def _status(root: Path, benchmark: Benchmark, reach: Reach) -> Status:
    stored = load(root, benchmark.name)
    if stored is None:
        return Status(benchmark.name, "never run")
    figures = tuple(Figure.from_json(entry) for entry in stored["figures"])
    verdict = judge(benchmark.targets_of(figures), figures)
    state, changed, reason = _state(root, benchmark, stored, reach)
    return Status(
        name=benchmark.name,
        state=state,
        holds=verdict.holds,
        figure=verdict.figure,
        target=verdict.target,
        commit=stored["commit"] or "",
        dirty=stored["dirty"],
        date=stored["date"],
        changed=changed,
        reason=reason,
    )


def _state(
    root: Path, benchmark: Benchmark, stored: dict[str, Any], reach: Reach
) -> tuple[State, tuple[str, ...], str]:
    """Returns the state, what changed, and why the state is unknown."""
    new = reach.sources(benchmark.depends_on)
    if stored["sources_sha256"] == new.digest:
        return "current", (), ""
    if stored["dirty"] or not stored["commit"]:
        return "unknown", (), "it was measured with uncommitted changes" if stored["dirty"] else "no commit is stored"
    try:
        old = reach_of_commit(root, stored["commit"]).sources(benchmark.depends_on)
    except CommitMissing as error:
        return "unknown", (), str(error)
    except FileNotFoundError as error:
        return "unknown", (), f"commit {stored['commit'][:12]} has no {error}"
    difference = compare(old, new)
    if difference.code:
        return "stale", difference.code, ""
    return ("moved" if difference.places else "current"), (), ""
