"""Checks that the weights of another run fit the run that is to start from them.

All checks run before anything is changed, and an error names all tables that fail the same check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ziggurat.checkpoint.format.manifest import TableShape
from ziggurat.checkpoint.reader import table_shapes
from ziggurat.core.errors import ConfigError
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.layout import Layout
from ziggurat.features.matching import FittedTables, difference
from ziggurat.training.config import WarmStart
from ziggurat.training.experiment import Experiment
from ziggurat.training.warm_start.source import KEY, Shapes, WarmStartSource

_SHOWN = 12
"""Names that a message lists."""


def tables_to_take(origin: WarmStartSource, start: WarmStart, layout: Layout) -> list[TableSpec]:
    """Returns the tables that start with the other run's rows, in the layout's order.

    Raises:
        ConfigError: the config lists a table that the other run does not have.
    """
    if start.tables == "all":
        return [spec for spec in layout.tables if spec.name in origin.tables]
    missing = [name for name in start.tables if name not in origin.tables]
    if missing:
        raise ConfigError(
            f"{KEY}.tables: {origin.run.folder} has no table {_listed(missing)}; it has {_listed(list(origin.tables))}",
            _leave_out([name for name in start.tables if name in origin.tables]),
        )
    return [spec for spec in layout.tables if spec.name in start.tables]


def check_tables(
    origin: WarmStartSource,
    start: WarmStart,
    taken: Sequence[TableSpec],
    here: FittedTables,
    live: Mapping[str, TableShape],
) -> None:
    """Validates that each table's rows have the same width in both runs and can be matched by their values.

    Args:
        origin: the other run.
        start: the config of the warm start.
        taken: this run's tables, as returned by :func:`tables_to_take`.
        here: the values that this run's ids and numbers represent.
        live: shapes of this run's tables and of their optimizers' states, by name.

    Raises:
        ConfigError: a table does not fit; the message names every such table, both runs' settings, and what to do.
    """
    there = origin.tables
    _refuse(
        {spec.name: _widths(there[spec.name], spec) for spec in taken},
        f"rows in {origin.run.folder} are of another width",
        "set their dim and vectors in embeddings.tables as they are there, or ",
    )
    _refuse(
        {spec.name: difference(spec.name, origin.fitted, here) for spec in taken},
        f"rows in {origin.run.folder} stand for something else",
    )
    if start.optimizer:
        saved = table_shapes(origin.saved)
        _refuse(
            {spec.name: _states(there[spec.name], saved[spec.name], spec, live[spec.name]) for spec in taken},
            f"row optimizers in {origin.run.folder} have other states",
            f"set {KEY}.optimizer=false, or ",
        )


def check_dense(
    origin: WarmStartSource, experiment: Experiment, layout: Layout, shapes: Shapes, here: FittedTables
) -> None:
    """Validates that the other run's dense weights have the same meaning in this run.

    Args:
        origin: the other run.
        experiment: this run's config.
        layout: the layout of this run's model.
        shapes: shapes of this run's dense weights, by name.
        here: the values that this run's ids and numbers represent.

    Raises:
        ConfigError: the order of numbers, fields or labels, the transforms of a number, or the weights differ.
    """
    theirs, rows_alone = origin.layout, f"set {KEY}.dense=false to begin with the rows of tables alone"
    for what, old, new in (
        ("number", theirs.schema.dense, layout.schema.dense),
        ("field", theirs.fields, layout.fields),
        ("label", theirs.schema.labels, layout.schema.labels),
    ):
        if old != new:
            raise ConfigError(
                f"{KEY}.dense: {_first_difference(what, old, new)}: weights would meet what they were not trained for",
                f"have them in the order of {origin.run.folder} ({_listed(old)}), or {rows_alone}",
            )
    for name in layout.schema.dense:
        old, new = _steps(origin.fitted, name), _steps(here, name)
        if old != new:
            raise ConfigError(
                f"{KEY}.dense: number {name!r} passes through {_listed(old)} there, {_listed(new)} here",
                f"give features.{name} the same transforms, or {rows_alone}",
            )
    problems = _shape_problems(origin.shapes("dense"), shapes)
    if problems:
        more = f"; {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ConfigError(
            f"{KEY}.dense: the model of {origin.run.folder} is another: {'; '.join(problems[:5])}{more}",
            f"take its model section, or {rows_alone}",
        )


def check_optimizer(origin: WarmStartSource, experiment: Experiment) -> None:
    """Validates that both runs have the same kind of dense optimizer.

    Raises:
        ConfigError: the kinds differ.
    """
    old, new = origin.run.experiment.optimizer.title, experiment.optimizer.title
    if old != new:
        raise ConfigError(
            f"{KEY}.optimizer: the dense optimizer is {old} in {origin.run.folder}, {new} here",
            f"take its optimizer section, or {KEY}.optimizer=false",
        )


def rescaled(origin: WarmStartSource, layout: Layout, here: FittedTables) -> list[str]:
    """Returns the numeric features whose transforms were fitted to other statistics there, such as another mean."""
    return [name for name in layout.schema.dense if origin.fitted.chains[name] != here.chains[name]]


def _refuse(problems: Mapping[str, str | None], what: str, hint: str = "") -> None:
    """Validates that no table has a problem.

    Raises:
        ConfigError: a table has a problem; the message names each.
    """
    found = {name: text for name, text in problems.items() if text is not None}
    if found:
        listed = "".join(f"\n  table {name}: {text}" for name, text in found.items())
        raise ConfigError(f"{KEY}.tables: {what}{listed}", hint + _leave_out([n for n in problems if n not in found]))


def _leave_out(others: Sequence[str]) -> str:
    if not others:
        return "name another run"
    if len(others) > _SHOWN:
        return f"list the other tables in {KEY}.tables"
    return f"leave out what does not fit: {KEY}.tables=[{', '.join(others)}]"


def _widths(there: TableSpec, here: TableSpec) -> str | None:
    if (there.dim, there.vectors) == (here.dim, here.vectors):
        return None
    return f"{_describe_width(there)} there, {_describe_width(here)} here"


def _describe_width(spec: TableSpec) -> str:
    return f"{spec.vectors} vectors of {spec.vector_dim} floats" if spec.vectors > 1 else f"{spec.dim} floats"


def _states(there: TableSpec, saved: TableShape, here: TableSpec, live: TableShape) -> str | None:
    old, new = there.optimizer["name"], here.optimizer["name"]
    if old == new and saved.states == live.states:
        return None
    return f"{old} with {_describe_states(saved)} there, {new} with {_describe_states(live)} here"


def _describe_states(shape: TableShape) -> str:
    widths = [f"{width or 1} of {name}" for name, width in shape.states.items()]
    return f"{' and '.join(widths)} a row" if widths else "none"


def _steps(fitted: FittedTables, name: str) -> list[str]:
    return [step["name"] for step in fitted.chains[name].to_json()["steps"]]


def _first_difference(what: str, there: Sequence[str], here: Sequence[str]) -> str:
    both = min(len(there), len(here))
    number = next((n for n in range(both) if there[n] != here[n]), both)
    old, new = (repr(names[number]) if number < len(names) else "missing" for names in (there, here))
    return f"{what} {number + 1} is {old} there, {new} here"


def _shape_problems(there: Shapes, here: Shapes) -> list[str]:
    both = sorted(there.keys() & here.keys())
    found = [f"{n} is {list(there[n])} there, {list(here[n])} here" for n in both if there[n] != here[n]]
    found += [f"{name} is there alone" for name in sorted(there.keys() - here.keys())]
    return found + [f"{name} is here alone" for name in sorted(here.keys() - there.keys())]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "none"
