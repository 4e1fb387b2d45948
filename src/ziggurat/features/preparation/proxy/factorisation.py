"""A factorisation machine in numpy, trained by Adagrad on the rows of a batch that are touched.

The model is that of Rendle 2010 ("Factorization machines"): the logit of a row is the sum of the weights of its inputs
and of the scalar products of each pair of their vectors. The optimizer is that of Duchi et al. 2011, one rate a number.

numpy sums in the order of the arrays on one thread, so that a training has the same bits for any number of threads.

Shape legend: T tables, V inputs of the model, R rows of its weights, D numbers of a vector, E = D + 1, B rows of data,
L looked-up inputs of these, C rows of weights of an input at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.hashing import hash_integers, to_unit_interval

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

BIAS = 0
"""The input that every row has, first, so that no row is without inputs."""
_INIT = 0.1
_START = 1.0
"""What Adagrad's sums of squares begin at, so that first steps are small."""
NO_ROW = -1


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of inputs, one after another.

    Attributes:
        inputs_L: the inputs of all rows; the first of each row is :data:`BIAS`.
        weights_L: how often each counts: a share of its row's list.
        starts_B: where each row begins.
        labels_B: labels.
        importance_B: weights of the rows.
    """

    inputs_L: Ints
    weights_L: Floats
    starts_B: Ints
    labels_B: Floats
    importance_B: Floats

    def __len__(self) -> int:
        return len(self.starts_B)

    def slice(self, start: int, stop: int) -> Rows:
        """Returns rows ``start`` to ``stop - 1``."""
        stop = min(stop, len(self))
        first = self.starts_B[start]
        after = self.starts_B[stop] if stop < len(self) else len(self.inputs_L)
        return Rows(
            self.inputs_L[first:after],
            self.weights_L[first:after],
            self.starts_B[start:stop] - first,
            self.labels_B[start:stop],
            self.importance_B[start:stop],
        )

    @property
    def owners(self) -> Ints:
        """The row of each input."""
        lengths = np.diff(np.append(self.starts_B, len(self.inputs_L)))
        return np.repeat(np.arange(len(self.starts_B)), lengths)


@dataclass(slots=True)
class Factorisation:
    """The weights of the model, and Adagrad's sums.

    Attributes:
        weights_RE: float32 (R, D + 1): a vector, then a weight.
        squares_RE: the sum of squared gradients of each number.
        logistic: whether labels are probabilities; if not, they are numbers of mean 0 and deviation 1.
        rows_VC: the rows whose sum each input has, :data:`NO_ROW` after its last one; None: a row for each input.
    """

    weights_RE: Floats
    squares_RE: Floats
    logistic: bool
    rows_VC: Ints | None = None

    @classmethod
    def initial(
        cls, keys_R: npt.NDArray[np.uint64], dim: int, seed: int, rows_VC: Ints | None = None, *, logistic: bool
    ) -> Factorisation:
        """Returns the model with initial vectors that follow from each row's key, and weights of 0."""
        weights_RE = np.zeros((len(keys_R), dim + 1), np.float32)
        for column in range(dim):
            unit = to_unit_interval(hash_integers(keys_R.view(np.int64), seed * 64 + column))
            weights_RE[:, column] = (unit - 0.5) * (2 * _INIT)
        return cls(weights_RE, np.full_like(weights_RE, _START), logistic, rows_VC)

    def vectors(self, inputs_L: Ints) -> Floats:
        """Returns the vectors and weights of inputs, (L, E)."""
        if self.rows_VC is None:
            return self.weights_RE[inputs_L]
        rows_LC = self.rows_VC[inputs_L]
        x_LE = self.weights_RE[rows_LC[:, 0]]
        for rows_L in rows_LC.T[1:]:
            has = rows_L != NO_ROW
            x_LE[has] += self.weights_RE[rows_L[has]]
        return x_LE

    def start_anew(self, rows: slice, weights_NE: Floats) -> None:
        """Gives rows other weights, and Adagrad's sums that they had at first."""
        self.weights_RE[rows] = weights_NE
        self.squares_RE[rows] = _START

    def sums(self, rows: Rows) -> tuple[Floats, Floats, Floats]:
        """Returns the weighted numbers of each input, (L, E); their sums by row, (B, E); and the logits, (B,)."""
        x_LE = self.vectors(rows.inputs_L) * rows.weights_L[:, None]
        sums_BE = np.add.reduceat(x_LE, rows.starts_B, axis=0)
        squares_B = np.add.reduceat((x_LE[:, :-1] ** 2).sum(axis=1), rows.starts_B)
        logits_B = sums_BE[:, -1] + 0.5 * ((sums_BE[:, :-1] ** 2).sum(axis=1) - squares_B)
        return x_LE, sums_BE, logits_B

    def losses(self, rows: Rows) -> npt.NDArray[np.float64]:
        """Returns the loss of each row: log-loss in nats, or half the squared error."""
        logits_B = self.sums(rows)[2].astype(np.float64)
        labels_B = rows.labels_B
        if self.logistic:
            return np.logaddexp(0, logits_B) - labels_B * logits_B
        return 0.5 * (logits_B - labels_B) ** 2

    def step(self, rows: Rows, rate: float, decay: float) -> None:
        """Takes a step on the sum of the rows' losses.

        Args:
            rows: the rows.
            rate: the learning rate.
            decay: pulls the vectors and weights of touched inputs towards 0, once for each look-up.
        """
        x_LE, sums_BE, logits_B = self.sums(rows)
        predicted_B = _sigmoid(logits_B) if self.logistic else logits_B
        errors_B = (predicted_B - rows.labels_B) * rows.importance_B
        row_L = rows.owners
        by_input_LE = sums_BE[row_L] - x_LE
        by_input_LE[:, -1] = 1.0
        gradients_LE = by_input_LE * (errors_B[row_L] * rows.weights_L)[:, None]
        touched_L, gradients_LE = self._by_row(rows.inputs_L, gradients_LE)
        if decay:
            gradients_LE += decay * self.weights_RE[touched_L]
        order = np.argsort(touched_L, kind="stable")
        ordered = touched_L[order]
        first = np.flatnonzero(np.concatenate([np.ones(1, np.bool_), ordered[1:] != ordered[:-1]]))
        touched, gradients_UE = ordered[first], np.add.reduceat(gradients_LE[order], first, axis=0)
        squares_UE = self.squares_RE[touched] + gradients_UE**2
        self.squares_RE[touched] = squares_UE
        self.weights_RE[touched] -= rate * gradients_UE / np.sqrt(squares_UE)

    def _by_row(self, inputs_L: Ints, gradients_LE: npt.NDArray[Any]) -> tuple[Ints, npt.NDArray[Any]]:
        """Returns rows and their gradients, from those of inputs: each row of an input has the input's."""
        if self.rows_VC is None:
            return inputs_L, gradients_LE
        rows_LC = self.rows_VC[inputs_L]
        has_LC = rows_LC != NO_ROW
        return rows_LC[has_LC], gradients_LE[np.nonzero(has_LC)[0]]


def logit_coordinates(model: Factorisation, pools: Iterable[Rows], tables: Sequence[range]) -> list[Floats]:
    """Returns the vectors of each table's inputs in coordinates whose distances are changes of logits.

    Where input i takes the place of j in a row whose other vectors sum to s, the logit changes by
    ``(v_i - v_j) · s + w_i - w_j``. Its mean square over the rows is a quadratic form in the difference of ``(v, w)``,
    with the second moments of ``(s, 1)`` as matrix; multiplied by the root of that matrix, it is a squared distance.

    Args:
        model: the trained model.
        pools: the rows to take the second moments of; each pool is read once.
        tables: the inputs of each table.
    """
    width = model.weights_RE.shape[1]
    moments_TEE, lookups_T = np.zeros((len(tables), width, width)), np.zeros(len(tables), np.int64)
    for rows in pools:
        x_LE, sums_BE, _ = model.sums(rows)
        owners_L = rows.owners
        for number, inputs in enumerate(tables):
            mine = np.flatnonzero((rows.inputs_L >= inputs.start) & (rows.inputs_L < inputs.stop))
            others_LE = (sums_BE[owners_L[mine]] - x_LE[mine]).astype(np.float64)
            others_LE[:, -1] = 1.0
            others_LE *= rows.weights_L[mine][:, None]
            moments_TEE[number] += others_LE.T @ others_LE
            lookups_T[number] += len(mine)
    return [
        _turned(model.vectors(np.arange(inputs.start, inputs.stop)), moments_EE / lookups if lookups else np.eye(width))
        for inputs, moments_EE, lookups in zip(tables, moments_TEE, lookups_T.tolist(), strict=True)
    ]


def _turned(vectors_NE: Floats, moments_EE: npt.NDArray[np.float64]) -> Floats:
    """Returns the vectors multiplied by the root of a matrix of second moments."""
    values_E, vectors_EE = np.linalg.eigh(moments_EE)
    root_EE = (vectors_EE * np.sqrt(np.maximum(values_E, 0))) @ vectors_EE.T
    return (vectors_NE.astype(np.float64) @ root_EE).astype(np.float32)


def _sigmoid(logits_B: Floats) -> Floats:
    return (1 / (1 + np.exp(-np.clip(logits_B, -30, 30)))).astype(np.float32)
