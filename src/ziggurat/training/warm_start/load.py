"""Starts a run from the weights of another run, instead of those that its seed draws.

This does not resume the other run: steps, data order, schedule and random state start from the beginning. Rows of
tables are matched by the values they represent, because a value can have another row in another vocabulary. Each rank
reads the rows that it holds, whatever the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ziggurat.checkpoint.format.manifest import TableShape
from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Progress
from ziggurat.core.sealed import declared
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.initial import fill_initial_rows
from ziggurat.features.matching import FittedTables, RowMatch, match_rows
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.parallel.world import World
from ziggurat.training.config import WarmStart
from ziggurat.training.experiment import Experiment
from ziggurat.training.recommender import Recommender
from ziggurat.training.recommender_state import restore_optimizer, table_shapes
from ziggurat.training.run_folder.run import Run
from ziggurat.training.run_folder.run_files import WARM_START_FILE, damage_of
from ziggurat.training.warm_start.checks import check_dense, check_optimizer, check_tables, rescaled, tables_to_take
from ziggurat.training.warm_start.rows import RowTransfer, take_rows
from ziggurat.training.warm_start.source import KEY, WarmStartSource, fitted_tables

BATCH_ROWS = 2**22
"""Tables are collected until they have this many rows together, then read."""


@dataclass(frozen=True, slots=True)
class WarmStarted:
    """What a warm start took from the other run, as ``warm_start.json`` records it.

    Attributes:
        run: folder of the other run, as the config names it.
        step: step of its checkpoint.
        tables: name -> {"rows": rows of the table, "taken": how many of them come from the other run}.
        new_tables: tables that the other run does not have.
        dense: number of dense tensors that were taken; None if none were requested.
        optimizer: whether optimizer states were taken.
        notes: further notes for the user.
    """

    run: str
    step: int
    tables: dict[str, dict[str, int]]
    new_tables: list[str]
    dense: int | None
    optimizer: bool
    notes: list[str]

    def summary(self) -> str:
        """Returns a summary in one line."""
        parts = [f"table {name}: {each['taken']:,} of {each['rows']:,} rows" for name, each in self.tables.items()]
        parts += [f"table {name}: not there" for name in self.new_tables]
        parts += [] if self.dense is None else [f"dense: {self.dense:,} tensors"]
        parts += ["with optimizer states"] if self.optimizer else []
        return f"warm start from {self.run}, step {self.step:,}: {'; '.join([*parts, *self.notes])}"


def check_warm_start(folder: Path, experiment: Experiment) -> None:
    """Refuses a warm start that cannot work, before hours go into preparing data.

    Args:
        folder: folder of the run that is to start; if it has a checkpoint, nothing is checked.
        experiment: its config.

    Raises:
        ConfigError: the run to start from does not exist, has no such checkpoint, or is this run.
    """
    start = experiment.training.warm_start
    if start is None or Run(folder, experiment).checkpoints.last() is not None:
        return
    if start.run.resolve() == folder.resolve():
        raise ConfigError(
            f"{KEY}.run: {start.run} is the run that is to start, and has no checkpoint yet",
            "name another run, or leave it out",
        )
    WarmStartSource.open(start)


def warm_start(run: Run, recommender: Recommender, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Loads the weights of the run that the config names into ``recommender``; does nothing if it names none.

    All ranks call it, before the first step.

    Args:
        run: the run that starts.
        recommender: its freshly assembled recommender.
        optimizer: the optimizer of the dense part.
        progress: gets a note on what was taken.

    Raises:
        ConfigError: the requested weights do not fit.
        RunFolderError: the checkpoint is damaged.
    """
    start, leads = run.experiment.training.warm_start, World.current().leads
    if start is None:
        if leads:  # left by an earlier attempt with another config
            (run.folder / WARM_START_FILE).unlink(missing_ok=True)
        return
    layout, here = recommender.lookup.layout, fitted_tables(run)
    states = table_shapes(recommender) if start.optimizer else {}
    step = on_first_rank(lambda: _checked(run.experiment, start, recommender, here, states))
    origin = WarmStartSource.open(start, step)
    taken = tables_to_take(origin, start, layout)
    sources = _sources(origin, recommender, taken, run.experiment.training.seed, start.optimizer)
    matches = _take_tables(origin, here, [spec for spec in taken if leads or spec.name in sources], sources)
    if start.optimizer:
        _take_counts(origin, recommender, taken)
    if start.dense:
        _take_dense(origin, recommender, optimizer if start.optimizer else None)
    if leads:
        record = _summary(origin, start, recommender, here, matches)
        run.files.write_json(WARM_START_FILE, asdict(record))
        progress.note(record.summary())


def read_warm_start(run: Run) -> WarmStarted | None:
    """Returns what a run's warm start took; None if the run had no warm start.

    Raises:
        RunFolderError: the file that records it is damaged.
    """
    values = run.files.read_json(WARM_START_FILE)
    return (
        None
        if values is None
        else declared(WarmStarted, values, run.folder / WARM_START_FILE, damage_of(WARM_START_FILE))
    )


def _summary(
    origin: WarmStartSource,
    start: WarmStart,
    recommender: Recommender,
    here: FittedTables,
    matches: Mapping[str, RowMatch],
) -> WarmStarted:
    layout = recommender.lookup.layout
    tables = {name: {"rows": match.size, "taken": match.matched} for name, match in matches.items()}
    new = [spec.name for spec in layout.tables if start.tables == "all" and spec.name not in origin.tables]
    dense = len(recommender.dense_shapes()) if start.dense else None
    notes = [f"table {name}: {match.note}" for name, match in matches.items() if match.note is not None]
    scaled = rescaled(origin, layout, here) if start.dense else []
    notes += [f"scaled by other figures there: {', '.join(scaled)}"] if scaled else []
    return WarmStarted(str(start.run), origin.step, tables, new, dense, start.optimizer, notes)


def _checked(
    experiment: Experiment,
    start: WarmStart,
    recommender: Recommender,
    here: FittedTables,
    states: Mapping[str, TableShape],
) -> int:
    """Checks that everything fits, and returns the checkpoint's step."""
    origin, layout = WarmStartSource.open(start), recommender.lookup.layout
    check_tables(origin, start, tables_to_take(origin, start, layout), here, states)
    if start.dense:
        check_dense(origin, experiment, layout, recommender.dense_shapes(), here)
        if start.optimizer:
            check_optimizer(origin, experiment)
    return origin.step


def _sources(
    origin: WarmStartSource, recommender: Recommender, taken: Sequence[TableSpec], seed: int, states: bool
) -> dict[str, list[RowTransfer]]:
    """Returns, for each table, the transfers that fill this rank's rows and, if ``states``, their optimizer states."""
    specs = {spec.name: spec for spec in taken}
    found: dict[str, list[RowTransfer]] = defaultdict(list)
    for tensor_slice in recommender.lookup.tensor_slices():
        if tensor_slice.name in specs:
            group, name = origin.place("tables", tensor_slice.name)
            drawn = partial(_drawn, specs[tensor_slice.name], seed, tensor_slice)
            found[tensor_slice.name].append(
                RowTransfer(group, name, origin.tables[tensor_slice.name].rows, tensor_slice, drawn)
            )
    for tensor_slice in recommender.lookup.state_slices() if states else ():
        table = tensor_slice.name.rpartition("/")[0]
        if table in specs and tensor_slice.shape:
            found[table].append(
                RowTransfer("table_optimizer", tensor_slice.name, origin.tables[table].rows, tensor_slice)
            )
    return found


def _take_tables(
    origin: WarmStartSource,
    here: FittedTables,
    taken: Sequence[TableSpec],
    sources: Mapping[str, Sequence[RowTransfer]],
) -> dict[str, RowMatch]:
    """Takes the rows of these tables, several tables at a time, because a checkpoint file holds many small ones.

    Returns:
        The match of each table, without its rows.
    """
    found: dict[str, RowMatch] = {}
    batch: list[tuple[Sequence[RowTransfer], RowMatch]] = []
    for spec in taken:
        match = _matched(origin, here, spec)
        found[spec.name] = replace(match, rows_R=None)
        batch.append((sources.get(spec.name, ()), match))
        if sum(each.size for _, each in batch) >= BATCH_ROWS:
            take_rows(origin.saved, batch)
            batch = []
    take_rows(origin.saved, batch)
    return found


def _drawn(spec: TableSpec, seed: int, tensor_slice: TensorSlice, ids_N: Tensor) -> Tensor:
    """Returns the initial values (N, columns of the tensor slice) of these rows of a table."""
    drawn = torch.empty(len(ids_N), tensor_slice.tensor.shape[1])
    fill_initial_rows(drawn, ids_N, spec.name, spec.init_std, seed, tensor_slice.first[1], spec.dim)
    return drawn


def _matched(origin: WarmStartSource, here: FittedTables, spec: TableSpec) -> RowMatch:
    match, rows = match_rows(spec.name, origin.fitted, here), origin.tables[spec.name].rows
    if match.size_there != rows:
        raise ConfigError(
            f"{KEY}.run: {origin.run.folder / 'encoders'} has {match.size_there:,} rows of table {spec.name!r}, the "
            f"run's checkpoint of step {origin.step} {rows:,}",
            "restore that folder, or name another run",
        )
    assert match.size == spec.rows, (spec.name, match.size, spec.rows)
    return match


def _take_counts(origin: WarmStartSource, recommender: Recommender, taken: Sequence[TableSpec]) -> None:
    """Takes the step counts of the tables' optimizers, where an optimizer has one."""
    names, saved = {spec.name for spec in taken}, origin.saved.shapes("table_optimizer") or {}
    states = [tensor_slice for tensor_slice in recommender.lookup.state_slices() if not tensor_slice.shape]
    counts = [tensor_slice for tensor_slice in states if tensor_slice.name.rpartition("/")[0] in names]
    missing = [tensor_slice.name for tensor_slice in counts if tensor_slice.name not in saved]
    if missing:
        raise ConfigError(
            f"{KEY}.optimizer: the checkpoint of step {origin.step} in {origin.run.folder} lacks {', '.join(missing)}",
            f"set {KEY}.optimizer=false",
        )
    origin.saved.fill({"table_optimizer": counts})


@torch.no_grad()
def _take_dense(origin: WarmStartSource, recommender: Recommender, optimizer: torch.optim.Optimizer | None) -> None:
    tensor_slices: dict[str, list[TensorSlice]] = defaultdict(list)
    for tensor_slice in recommender.dense_slices():
        group, name = origin.place("dense", tensor_slice.name)
        tensor_slices[group].append(replace(tensor_slice, name=name, tensor=tensor_slice.tensor.detach()))
    origin.saved.fill(tensor_slices)
    if optimizer is not None:
        restore_optimizer(optimizer, origin.saved)
