"""Inverse roots of symmetric matrices, and their eigenvectors.

Shape legend: D rows and columns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Method = Literal["eigh", "newton", "qr"]

NEWTON_STEPS, NEWTON_ERROR = 100, 1e-6
"""Of the coupled iteration: most, and the greatest distance from I at which it ends in fp32; in fp64 1e-12."""
QR_STEPS = 1
"""Of the power iteration, each time: eigenvectors turn slowly, and the last ones are where it begins."""


class RootError(ArithmeticError):
    """A matrix whose root cannot be had by the method that was asked for."""


def inverse_root(matrix_DD: Tensor, exponent: float, epsilon: float, method: Method = "eigh") -> Tensor:
    """(A + εI)^-exponent.

    By ``eigh``, where λmin of A + εI is below ε, as by rounding, all eigenvalues are moved up until it is ε. fp32 that
    does not converge is tried in fp64.

    Args:
        matrix_DD: symmetric, positive semidefinite up to rounding, finite.
        exponent: above 0; for ``newton`` one over a whole number.
        epsilon: above 0.
        method: ``eigh`` or ``newton``; ``qr`` needs the eigenvectors before: :func:`turned`.

    Returns:
        As ``matrix_DD``.

    Raises:
        RootError: it does not converge, or the root is not finite.
    """
    if method == "newton":
        return _newton(matrix_DD, exponent, epsilon)
    values_D, vectors_DD = eigenvectors(matrix_DD)
    return root_of(values_D, vectors_DD, exponent, epsilon)


def root_of(values_D: Tensor, vectors_DD: Tensor, exponent: float, epsilon: float) -> Tensor:
    """(A + εI)^-exponent, of eigenvalues and eigenvectors of A.

    Raises:
        RootError: the root is not finite.
    """
    raised_D = (values_D - values_D.min().clamp(max=0.0)) + epsilon  # so: large numbers would swallow it
    root_DD = (vectors_DD * raised_D.pow(-exponent)) @ vectors_DD.mT
    return _finite(root_DD, "the root has numbers that are not finite")


def eigenvectors(matrix_DD: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors, as columns; in fp64 where fp32 fails.

    Raises:
        RootError: it does not converge in fp64 either.
    """
    for dtype in dict.fromkeys((matrix_DD.dtype, torch.float64)):
        try:
            # A copy of its own, whose place in memory is the same wherever the block lies: the last bits depend on it.
            values_D, vectors_DD = torch.linalg.eigh(matrix_DD.to(dtype, copy=True).contiguous())
        except torch.linalg.LinAlgError:
            continue
        if values_D.isfinite().all() and vectors_DD.isfinite().all():
            return values_D.to(matrix_DD.dtype), vectors_DD.to(matrix_DD.dtype)
    raise RootError("eigenvalues do not converge")


def turned(matrix_DD: Tensor, vectors_DD: Tensor, steps: int = QR_STEPS) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors by power iteration, from eigenvectors that were nearly so.

    Each step is Q, R = qr(A·Q). The columns that have the largest eigenvalues come first.

    Args:
        matrix_DD: symmetric.
        vectors_DD: orthogonal.
        steps: how many.

    Returns:
        Estimates: of eigenvalues, the diagonal of QᵀAQ, and Q.

    Raises:
        RootError: Q is not finite.
    """
    turning_DD = vectors_DD
    for _ in range(steps):
        turning_DD = torch.linalg.qr((matrix_DD @ turning_DD).contiguous()).Q
    _finite(turning_DD, "the power iteration has numbers that are not finite")
    return (turning_DD * (matrix_DD @ turning_DD)).sum(0), turning_DD


def _newton(matrix_DD: Tensor, exponent: float, epsilon: float) -> Tensor:
    """The coupled Newton iteration: X ← X·T, M ← Tᵖ·M with T = ((p + 1)·I − M) / p, until M is I (Guo and Higham 2006;
    Anil et al. 2020, algorithm 3). X is then the inverse p-th root of A + εI."""
    p = round(1 / exponent)
    if abs(exponent * p - 1) > 1e-9:
        raise RootError(f"the exponent {exponent} is not one over a whole number, which the Newton iteration needs")
    identity_DD = torch.eye(len(matrix_DD), dtype=matrix_DD.dtype, device=matrix_DD.device)
    ridged_DD = matrix_DD + epsilon * identity_DD
    scale = float((1 + p) / (2 * torch.linalg.matrix_norm(ridged_DD)))
    root_DD, left_DD = identity_DD * scale**exponent, ridged_DD * scale
    enough = NEWTON_ERROR if matrix_DD.dtype == torch.float32 else NEWTON_ERROR**2
    error, apart = _apart(left_DD, identity_DD)
    best_DD, best, least = root_DD, error, apart
    for _ in range(NEWTON_STEPS):
        if error <= enough:
            break
        turn_DD = ((p + 1) * identity_DD - left_DD) / p
        root_DD, left_DD = root_DD @ turn_DD, torch.linalg.matrix_power(turn_DD, p) @ left_DD
        error, apart = _apart(left_DD, identity_DD)
        if not apart < 1.2 * least:  # rounding takes over, or it is no number
            break
        least = min(apart, least)
        if error < best:
            best_DD, best = root_DD, error
    if not best <= 1e-2:
        raise RootError(f"the Newton iteration ended {best:.2g} away from a root")
    return _finite(best_DD, "the root has numbers that are not finite")


def _apart(matrix_DD: Tensor, other_DD: Tensor) -> tuple[float, float]:
    """Largest difference, and the norm of all: the iteration makes the latter less each time, and not the former."""
    difference_DD = matrix_DD - other_DD
    return float(difference_DD.abs().max()), float(torch.linalg.matrix_norm(difference_DD))


def _finite(tensor: Tensor, what: str) -> Tensor:
    if not tensor.isfinite().all():
        raise RootError(what)
    return tensor
