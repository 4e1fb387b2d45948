"""Optuna's tree-structured Parzen estimator over the parts of every column's pipeline."""

from __future__ import annotations

import importlib
import math
from typing import Any, get_args

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.search.pipelines.evaluation import AnyPipeline
from ziggurat.search.pipelines.methods.proposals import Proposal, Proposals, standard
from ziggurat.search.pipelines.pipeline import (
    CategoricalPipeline,
    Discretiser,
    Encoder,
    Imputer,
    NumericPipeline,
    Scaler,
    TimeEncoder,
    TimePipeline,
)
from ziggurat.search.pipelines.table import Column, Table


def tpe(table: Table, seed: int) -> Proposals:
    """Proposes one assignment at a time; the first is standard scaling, ten random ones follow, as by default.

    Raises:
        EnvironmentMismatch: Optuna is not installed.
    """
    try:
        optuna: Any = importlib.import_module("optuna")
    except ModuleNotFoundError:
        raise EnvironmentMismatch(
            "method tpe needs Optuna, which is not installed", "pip install 'ziggurat[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    first = standard(table)
    study.enqueue_trial({key: value for each in table.columns for key, value in _settings(each, first).items()})
    while True:
        trial = study.ask()
        proposal = Proposal("tpe", {each.name: _suggested(trial, each) for each in table.columns})
        if trial.number == 0:
            proposal = first
        scores = yield [proposal]
        if math.isfinite(scores[0]):
            study.tell(trial, scores[0])
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)


def _settings(column: Column, first: Proposal) -> dict[str, Any]:
    pipeline = first.pipelines[column.name]
    values: dict[str, Any] = pipeline.model_dump()
    return {f"{column.name}.{part}": values[part] for part in _parts(column)}


def _parts(column: Column) -> dict[str, tuple[Any, ...]]:
    match column.kind:
        case "numeric":
            parts: dict[str, tuple[Any, ...]] = {"scaler": get_args(Scaler), "discretiser": get_args(Discretiser)}
            if column.has_missing:
                parts |= {"imputer": get_args(Imputer), "missing_flag": (False, True)}
            return parts
        case "categorical":
            more = {"imputer": ("category", "most_frequent")} if column.has_missing else {}
            return {"encoder": get_args(Encoder), **more}
        case "time":
            return {"encoder": get_args(TimeEncoder)}


def _suggested(trial: Any, column: Column) -> AnyPipeline:
    values = {
        part: trial.suggest_categorical(f"{column.name}.{part}", choices) for part, choices in _parts(column).items()
    }
    kinds = {"numeric": NumericPipeline, "categorical": CategoricalPipeline, "time": TimePipeline}
    return kinds[column.kind].model_validate(values)
