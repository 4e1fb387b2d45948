"""The quality benchmarks: they train the models of a leaderboard with all seeds and compare them with publications."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.quality.board import ROOT, Board, load_board
from bench.quality.stand_in import stand_in
from bench.quality.trials import Trial, prepared, run_quickly, run_trials
from ziggurat.core.errors import DataError
from ziggurat.core.progress import Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.report.baselines.compare import compare
from ziggurat.report.baselines.store import BaselineStore
from ziggurat.report.inputs import ComparisonRow
from ziggurat.training.experiment import Experiment

FIGURES = ("auc", "log_loss", "ne", "rmse", "mae")

Outcomes = Mapping[str, Sequence[Mapping[str, Any]]]
"""Model -> the outcomes of the trainings, one per seed."""

Derive = Callable[[Outcomes], list[Figure]]
"""A function that computes further figures from the outcomes of several models."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The generated data of a leaderboard.

    Attributes:
        make: a function that writes the data if it is missing, and returns the folder that the experiment reads.
        sources: the files that determine the data.
    """

    make: Callable[[Context], Path]
    sources: tuple[str, ...]


def quality(
    board: str,
    claim: str,
    targets: Mapping[str, Target],
    name: str = "",
    derive: Derive = lambda outcomes: [],
    generated: Generated | None = None,
    baselines: bool = False,
) -> Benchmark:
    """Creates the benchmark of a leaderboard.

    Args:
        board: the name of the leaderboard.
        claim: the claim (see :class:`~bench.benchmark.Benchmark`).
        targets: ``model.figure`` -> its target.
        name: the name of the benchmark; default: ``quality_BOARD``.
        derive: a function that computes further figures from all outcomes.
        generated: the generated data, for a leaderboard that does not need ``--data``.
        baselines: whether the baselines of ``ziggurat report`` are trained beside the models: on the same columns,
            tuned on the same validation rows, once per seed. Their outcomes have the figures of the test split alone.
    """
    path = f"bench/quality/boards/{board}.yaml"
    made_by = () if generated is None else generated.sources
    return Benchmark(
        name=name or f"quality_{board}",
        claim=claim,
        targets=targets,
        depends_on=(
            "bench/quality/quality.py",
            path,
            str(load_board(board).experiment.relative_to(ROOT)),
            *made_by,
        ),
        run=_runner(board, derive, generated, baselines),
        layout="board",
    )


def _runner(name: str, derive: Derive, generated: Generated | None, baselines: bool) -> Callable[[Context], Result]:
    def run(context: Context) -> Result:
        board = load_board(name)
        outcomes = _train(board, context, _data(board, context, generated), baselines)
        figures = [figure for model, found in outcomes.items() for figure in _figures(model, board, found)]
        figures += [] if context.quick else derive(outcomes)
        return Result(tuple(figures), 0, len(next(iter(outcomes.values()))), _notes(board, context.quick, outcomes))

    return run


def _data(board: Board, context: Context, generated: Generated | None) -> Path | None:
    """Returns the folder of the raw data, or None for a quick run, which generates random rows.

    Raises:
        DataError: ``--data`` is missing, or it is given but would not be read.
    """
    if context.quick or generated is not None:
        if context.data is not None:
            unread = "--quick trains on a stand-in of random rows" if context.quick else "its data is generated"
            raise DataError(
                f"board {board.name}: {unread}, --data {context.data} would not be read",
                "leave out one of the two" if context.quick else "leave it out",
            )
        return None if generated is None or context.quick else generated.make(context)
    if context.data is None:
        raise DataError(f"board {board.name}: no data", f"give the folder that {board.experiment.name} reads: --data")
    return context.data


def _train(board: Board, context: Context, data: Path | None, baselines: bool) -> dict[str, list[dict[str, Any]]]:
    """Returns model -> outcomes, one per seed; with ``baselines`` theirs follow those of the models."""
    seeds = board.seeds[:1] if context.quick else board.seeds
    context.say(f"{len(board.entries)} models, seeds {', '.join(map(str, seeds))}")
    found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in board.entries}
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="quality-") as scratch:
        changes = stand_in(Path(scratch), _has_numbers(board)) if context.quick else {}
        trials = [
            Trial(f"{name}/{seed}", entry.experiment(data, seed, changes))
            for name, entry in board.entries.items()
            for seed in seeds
        ]
        folder = Path(scratch) if context.quick else context.cache / "quality" / board.name
        dataset = prepared(trials[0].experiment, folder)
        run = run_quickly(trials, dataset) if context.quick else run_trials(trials, dataset, folder, context.say)
        for trial, outcome in run:
            found[trial.name.partition("/")[0]][trial.experiment.training.seed] = outcome
        if baselines:
            found |= _train_baselines(trials[0].experiment, dataset, seeds, folder, context)
    return {name: [by_seed[seed] for seed in seeds] for name, by_seed in found.items()}


def _train_baselines(
    experiment: Experiment, dataset: Dataset, seeds: Sequence[int], folder: Path, context: Context
) -> dict[str, dict[int, dict[str, Any]]]:
    """Returns baseline -> seed -> outcome, each tuned with this seed.

    Raises:
        DataError: the baselines cannot be trained on this data.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {}
    store, tasks = BaselineStore(folder / "baselines.json", dataset.fingerprint), experiment.tasks(dataset.schema)
    for seed in seeds:
        notes: list[str] = []
        ours = [ComparisonRow(task.name, "", True, {}) for task in tasks]
        rows = [row for row in compare(dataset, "test", ours, tasks, seed, store, Silent(), notes) if not row.ours]
        if not rows:
            raise DataError(" ".join(notes), "leave the baselines of this leaderboard out")
        for row in rows:
            name, prefix = row.model.lower().replace(" ", "_"), f"{row.task}/" if len(tasks) > 1 else ""
            empty = {"figures": {"test": {}}, "seconds": 0.0, "notes": []}
            outcome = found.setdefault(name, {}).setdefault(seed, empty)
            outcome["figures"]["test"] |= {prefix + figure: value for figure, value in row.figures.items()}
            outcome["seconds"] += row.seconds or 0.0
            outcome["notes"].append(f"{row.model}{f' of {row.task}' if prefix else ''}, seed {seed}: {row.settings}")
            context.say(f"{name}/{seed}: {row.settings}")
    return found


def _has_numbers(board: Board) -> bool:
    """Whether the labels of a leaderboard are numbers."""
    labels = next(iter(board.entries.values())).values["data"]["labels"]
    return all(label.get("kind") == "regression" for label in labels)


def _figures(model: str, board: Board, outcomes: list[dict[str, Any]]) -> list[Figure]:
    published = board.entries[model].published if model in board.entries else {}
    figures: list[Figure] = []
    for name in outcomes[0]["figures"]["test"]:
        if name.rpartition("/")[2] in FIGURES:
            note = f"published {published[name]:g}" if name in published else ""
            samples = tuple(outcome["figures"]["test"][name] for outcome in outcomes)
            figures.append(Figure(f"{model}.{name}", "", samples, note, statistic="mean"))
    sizes = ("dense_parameters", "table_parameters", "flops")
    figures += [Figure(f"{model}.{name}", "", (float(outcomes[0][name]),)) for name in sizes if name in outcomes[0]]
    return [*figures, Figure(f"{model}.seconds", "s", tuple(outcome["seconds"] for outcome in outcomes))]


def _notes(board: Board, quick: bool, outcomes: Outcomes) -> tuple[str, ...]:
    if quick:
        return ("random rows, five steps per model: these figures mean nothing",)
    tuned = [note for found in outcomes.values() for note in found[0].get("notes", [])]
    if tuned:
        tuned.insert(0, "seconds of baselines: their tuning, anew for each seed")
    return (
        f"mean ± standard deviation over seeds {', '.join(map(str, board.seeds))}, on the test split; checkpoints and "
        "tuned settings are selected on the validation split; other settings are those of the example or the public "
        "leaderboard",
        "flops: forward pass of the dense part, per example; seconds: training until it stops early, on one thread, "
        "evaluations included, with two trainings at a time",
        *tuned,
    )


def published_within(board: str, figure: str, tolerance: float) -> dict[str, Target]:
    """Returns a target for each model with a published ``figure``: the published value minus the tolerance."""
    entries = load_board(board).entries
    return {
        f"{name}.{figure}": Target(round(entry.published[figure] - tolerance, 6))
        for name, entry in entries.items()
        if figure in entry.published
    }
