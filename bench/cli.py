"""The command line of the benchmarks: `list`, `run`, `smoke`, `status` and `docs`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import docs, results
from bench.benchmark import Benchmark, Context, judge
from bench.catalogue import BENCHMARKS
from bench.smoke import smoke
from bench.tables import markdown, stored_table
from ziggurat.core.errors import ZigguratError

ROOT = Path(__file__).resolve().parents[1]

_CHANGED_SHOWN = 4
"""The number of changes that `status` prints for each stale result."""


def main(
    arguments: Sequence[str] | None = None, benchmarks: Mapping[str, Benchmark] = BENCHMARKS, root: Path = ROOT
) -> int:
    """Runs a command and returns the exit status.

    Returns:
        0 if all targets are met or a quick run ended, 1 if a target is missed, 2 if the run failed.
    """
    options = _parser(benchmarks).parse_args(arguments)
    try:
        match options.command:
            case "list":
                return _list(benchmarks, options.names)
            case "run":
                return _run(benchmarks[options.name], options.quick, options.data, root)
            case "smoke":
                return smoke(list(benchmarks))
            case "status":
                return _status(benchmarks, root, options.json)
            case _:
                changed = docs.rewrite(root, benchmarks.values())
                print(f"{docs.page_path(root)}: {'rewritten' if changed else 'unchanged'}")
                return 0
    except ZigguratError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser(benchmarks: Mapping[str, Benchmark]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks, each backing one claim.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="every benchmark and the claim it backs")
    listing.add_argument("--names", action="store_true", help="print only the names, one per line")
    run = commands.add_parser("run", help="measure, print the table, store the result")
    run.add_argument("name", choices=list(benchmarks), metavar="NAME", help=", ".join(benchmarks))
    run.add_argument(
        "--quick",
        action="store_true",
        help="a smoke run of seconds, not judged or stored; leaderboards train on generated rows and ignore --data",
    )
    run.add_argument(
        "--data", type=Path, default=None, metavar="DIR", help="folder of real data, for benchmarks that can use it"
    )
    commands.add_parser("smoke", help="a quick run of every benchmark, two at a time")
    status = commands.add_parser("status", help="stored results, and whether the code has changed since")
    status.add_argument("--json", action="store_true", help="print JSON with all changes")
    commands.add_parser("docs", help="rewrite the tables in docs/benchmarks.md")
    return parser


def _list(benchmarks: Mapping[str, Benchmark], names_only: bool) -> int:
    for benchmark in benchmarks.values():
        if names_only:
            print(benchmark.name)
            continue
        print(f"{benchmark.name}: {benchmark.claim}")
        for name, target in {**benchmark.targets, **benchmark.data_targets}.items():
            print(f"    {name} {target.text('')}")
    return 0


def _run(benchmark: Benchmark, quick: bool, data: Path | None, root: Path) -> int:
    def say(line: str) -> None:
        print(f"[{benchmark.name}] {line}", file=sys.stderr, flush=True)

    if quick and (lacking := benchmark.missing()) is not None:
        print(f"{benchmark.name}: skipped: {lacking}")
        return 0
    cache = root / "bench" / ".cache"
    cache.mkdir(parents=True, exist_ok=True)
    origin = {} if quick else results.origin(benchmark, root)
    result = benchmark.run(Context(quick, data, cache, say))
    stored = results.describe(benchmark, result, origin)
    print(stored_table(stored))
    for note in result.notes:
        print(f"- {note}")
    verdict = judge(benchmark.targets_of(result.figures), result.figures)
    figure = f"{verdict.figure} (target {verdict.target})"
    if quick:
        print(f"{benchmark.name}: quick run, not judged: {figure}")
        return 0
    path = results.store(root, stored)
    say(f"wrote {path.relative_to(root)}")
    print(f"{benchmark.name}: {'holds' if verdict.holds else 'falls short'}: {figure}")
    return 0 if verdict.holds else 1


def _status(benchmarks: Mapping[str, Benchmark], root: Path, as_json: bool) -> int:
    found = results.statuses(root, list(benchmarks.values()))
    if as_json:
        print(json.dumps([asdict(status) for status in found], indent=2))
        return 0
    rows = [("benchmark", "state", "verdict", "tightest figure", "target", "commit", "date")]
    for status in found:
        verdict = {True: "holds", False: "falls short", None: ""}[status.holds]
        commit = status.commit[:12] + ("+" if status.dirty else "")
        rows.append((status.name, status.state, verdict, status.figure, status.target, commit, status.date[:10]))
    print(markdown(rows))
    for status in found:
        if status.changed:
            shown = ", ".join(status.changed[:_CHANGED_SHOWN])
            more = len(status.changed) - _CHANGED_SHOWN
            rest = f" and {more} more (see --json)" if more > 0 else ""
            print(f"{status.name}: changed since the measurement: {shown}{rest}")
        if status.reason:
            print(f"{status.name}: {status.reason}")
    return 0
