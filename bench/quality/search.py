"""Random search over the settings of a model on a leaderboard; records the validation figures of every trial.

python -m bench.quality.search BOARD MODEL --data DIR [--trials 20] [--first 0]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import provenance
from bench.quality.board import ROOT, Entry, load_board
from bench.quality.trials import Trial, judged, prepared, run_trials
from ziggurat.core.errors import ConfigError, ZigguratError
from ziggurat.core.files import atomic_file

TRIALS = Path(__file__).with_name("trials")


def draw(entry: Entry, seed: int) -> dict[str, Any]:
    """Draws the settings of trial ``seed`` uniformly and reproducibly from the values of each key.

    Raises:
        ConfigError: the entry declares no values.
    """
    if not entry.search:
        raise ConfigError(f"board entry {entry.name}: no `search`", "declare the values to draw from")
    random_ = random.Random(seed)
    return {key: random_.choice(values) for key, values in sorted(entry.search.items())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a search and returns the exit status: 0, or 2 if the search is impossible."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality.search", description="Random search on a board.")
    parser.add_argument("board")
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True, help="folder of the raw data")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial, to continue a search")
    options = parser.parse_args(arguments)
    try:
        _search(options.board, options.model, options.data, range(options.first, options.first + options.trials))
    except ZigguratError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _search(board: str, model: str, data: Path, numbers: range) -> None:
    found = load_board(board)
    entry = found.entry(model)
    if not entry.search:
        declared = f"bench/quality/boards/{board}.yaml"
        hint = f"declare the values to draw from in {declared}"
        raise ConfigError(
            f"board {board}: {model} has no `search`",
            f"take one that has: {', '.join(found.searchable)}; or {hint}" if found.searchable else hint,
        )
    if not numbers or numbers.start < 0:
        raise ConfigError(
            f"search: received --first {numbers.start} and --trials {len(numbers)}",
            "make 1 trial or more, numbered from 0",
        )
    drawn = {number: draw(entry, number) for number in numbers}
    trials = [Trial(f"{model}/{number}", entry.experiment(data, 0, drawn[number])) for number in numbers]
    cache = ROOT / "bench" / ".cache" / "quality" / board
    dataset = prepared(trials[0].experiment, cache)
    path = TRIALS / f"{board}_{model}.jsonl"
    commit = (provenance.commit(ROOT) or "")[:12]
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    for trial, outcome in run_trials(trials, dataset, cache, say):
        number = int(trial.name.rpartition("/")[2])
        row = {
            "trial": number,
            "commit": commit,
            "settings": drawn[number],
            "validation": judged(outcome["figures"]["validation"]),
            "seconds": round(outcome["seconds"]),
        }
        record(path, row)


def record(path: Path, row: dict[str, Any]) -> None:
    """Appends a trial to the file, or replaces the line of the same trial, settings and commit."""
    same = lambda other: all(other[key] == row[key] for key in ("trial", "commit", "settings"))  # noqa: E731
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    place = next((index for index, other in enumerate(rows) if same(other)), len(rows))
    rows[place : place + 1] = [row]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
