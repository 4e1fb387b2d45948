"""One evaluation: the cross-validated score of one pipeline for every column."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from ziggurat.core.digests import digest, digest_of_parts
from ziggurat.search.pipelines.blocks.fitted import fitted_block, input_of
from ziggurat.search.pipelines.cache import Block, BlockCache
from ziggurat.search.pipelines.downstream import LogisticRegressionTask, MLPTask, fitted_model, probabilities, score
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline, TimePipeline, simplest
from ziggurat.search.pipelines.table import Column, Ints, Table

AnyPipeline = NumericPipeline | CategoricalPipeline | TimePipeline
Assignment = Mapping[str, AnyPipeline]
"""Column -> its pipeline."""


@dataclass(frozen=True, slots=True)
class Result:
    """What an evaluation gave.

    Attributes:
        scores: the score of each fold, more is better; empty if it failed.
        seconds: wall-clock.
        reason: why it failed.
    """

    scores: tuple[float, ...]
    seconds: float
    reason: str = ""

    @property
    def score(self) -> float:
        """The mean over the folds; -inf if it failed."""
        return mean_score(self.scores)


def mean_score(scores: Sequence[float]) -> float:
    """Returns the mean over folds; -inf without any, as of an evaluation that failed."""
    return sum(scores) / len(scores) if scores else -math.inf


def simplified(table: Table, assignment: Assignment) -> dict[str, AnyPipeline]:
    """Returns the assignment in the order of columns, without parts that change nothing for its column."""
    return {
        each.name: simplest(assignment[each.name], has_missing=each.has_missing, missing_is_own=each.missing_is_own)
        for each in table.columns
    }


def key_of(assignment: Assignment, repeat: int) -> str:
    """Returns the checksum by which an evaluation is recorded."""
    values = {name: pipeline.model_dump(mode="json") for name, pipeline in assignment.items()}
    return digest(json.dumps([values, repeat], sort_keys=True).encode())


def divided(table: Table, folds: int, seed: int, repeat: int) -> list[tuple[Ints, Ints]]:
    """Returns (training rows, validation rows) of each fold; each class is divided evenly, each repeat divides anew."""
    divider = StratifiedKFold(folds, shuffle=True, random_state=(10_007 * seed + repeat) % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes with fewer rows than folds
        rows = list(divider.split(np.zeros(len(table.labels)), table.labels))
    return [(train.astype(np.int64), other.astype(np.int64)) for train, other in rows]


class Evaluator:
    """Evaluates assignments of a table, with one cache of blocks.

    Every evaluation is a function of (table, task, seed, assignment, repeat), to the bit: one thread computes it.

    Args:
        table: the training rows; test rows have no business here.
        task: the downstream model.
        seed: divides the rows into folds, and seeds the model.
        cache_bytes: how many bytes of blocks are kept.
    """

    def __init__(
        self, table: Table, task: LogisticRegressionTask | MLPTask, seed: int, cache_bytes: int = 1 << 29
    ) -> None:
        self.table, self.task, self.seed = table, task, seed
        self.cache = BlockCache(cache_bytes)
        self._digests = {each.name: each.digest() for each in table.columns}
        self._labels = digest(np.ascontiguousarray(table.labels))
        self._folds: dict[int, list[tuple[Ints, Ints, str]]] = {}

    def folds(self, repeat: int) -> list[tuple[Ints, Ints, str]]:
        """Returns (training rows, validation rows, checksum of both) of each fold; each repeat divides anew."""
        if repeat not in self._folds:
            rows = divided(self.table, self.task.folds, self.seed, repeat)
            self._folds[repeat] = [(train, other, digest_of_parts([train, other])) for train, other in rows]
        return self._folds[repeat]

    def evaluate(self, assignment: Assignment, repeat: int = 0) -> Result:
        """Returns the scores of an assignment on the folds of ``repeat``."""
        began = time.perf_counter()
        try:
            with threadpool_limits(1):
                scores = tuple(self._fold_score(assignment, fold) for fold in self.folds(repeat))
        except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
            return Result((), time.perf_counter() - began, (str(error) or type(error).__name__).splitlines()[0])
        return Result(scores, time.perf_counter() - began)

    def block(self, column: Column, pipeline: AnyPipeline, fold: tuple[Ints, Ints, str]) -> Block:
        """Returns the block of one column in a fold."""
        train, other, rows = fold

        def make() -> Block:
            values = input_of(column, pipeline)
            return fitted_block(pipeline, values[train], self.table.labels[train], values[other])

        return self.cache.get((self._digests[column.name], self._labels, rows, pipeline.model_dump_json()), make)

    def _fold_score(self, assignment: Assignment, fold: tuple[Ints, Ints, str]) -> float:
        train, other, _ = fold
        blocks = [self.block(each, assignment[each.name], fold) for each in self.table.columns]
        labels, classes = self.table.labels, len(self.table.classes)
        x_train, x_other = (np.concatenate([each[side] for each in blocks], axis=1) for side in (0, 1))
        model = fitted_model(self.task, x_train, labels[train], classes, self.seed)
        return score(self.task.metric, probabilities(model, x_other, classes), labels[other])
