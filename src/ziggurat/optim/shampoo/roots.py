"""Inverse roots of symmetric matrices, and their eigenvectors.

Shape legend: D rows and columns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Method = Literal["eigh", "newton", "qr"]

NEWTON_STEPS, NEWTON_ERROR = 100, 1e-6
"""Coupled Newton iteration: most steps, and the distance from I at which it stops in fp32; in fp64 that is 1e-12."""
QR_STEPS = 1
"""Steps of a power iteration: eigenvectors rotate slowly, and the iteration starts from the previous ones."""


class RootError(ArithmeticError):
    """The requested method cannot compute the root of a matrix."""


def inverse_root(matrix_DD: Tensor, exponent: float, epsilon: float, method: Method = "eigh") -> Tensor:
    """Computes (A + εI)^-exponent.

    With ``eigh``, if the smallest eigenvalue of A + εI is below ε because of rounding, all eigenvalues are raised so
    that it is ε. If fp32 does not converge, fp64 is tried.

    Args:
        matrix_DD: the matrix A: symmetric, finite, positive semidefinite up to rounding.
        exponent: the exponent, above 0; for ``newton`` the inverse of a whole number.
        epsilon: ε, above 0.
        method: ``eigh`` or ``newton``; ``qr`` needs previous eigenvectors, see :func:`power_iteration`.

    Returns:
        The root, with the shape and dtype of ``matrix_DD``.

    Raises:
        RootError: the method does not converge, or the root is not finite.
    """
    if method == "newton":
        return _newton(matrix_DD, exponent, epsilon)
    values_D, vectors_DD = eigenvectors(matrix_DD)
    return root_from_eigenvectors(values_D, vectors_DD, exponent, epsilon)


def root_from_eigenvectors(values_D: Tensor, vectors_DD: Tensor, exponent: float, epsilon: float) -> Tensor:
    """Computes (A + εI)^-exponent from the eigenvalues and eigenvectors of A.

    Raises:
        RootError: the root is not finite.
    """
    raised_D = (values_D - values_D.min().clamp(max=0.0)) + epsilon  # in this order: a large eigenvalue would absorb ε
    root_DD = (vectors_DD * raised_D.pow(-exponent)) @ vectors_DD.mT
    return _checked_finite(root_DD, "the root has numbers that are not finite")


def eigenvectors(matrix_DD: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the eigenvalues, ascending, and the eigenvectors, as columns; computed in fp64 if fp32 fails.

    Raises:
        RootError: fp64 does not converge either.
    """
    for dtype in dict.fromkeys((matrix_DD.dtype, torch.float64)):
        try:
            # A copy, so that the matrix's alignment does not depend on where its block is stored: the last bits would.
            values_D, vectors_DD = torch.linalg.eigh(matrix_DD.to(dtype, copy=True).contiguous())
        except torch.linalg.LinAlgError:
            continue
        if values_D.isfinite().all() and vectors_DD.isfinite().all():
            return values_D.to(matrix_DD.dtype), vectors_DD.to(matrix_DD.dtype)
    raise RootError("eigenvalues do not converge")


def power_iteration(matrix_DD: Tensor, vectors_DD: Tensor, steps: int = QR_STEPS) -> tuple[Tensor, Tensor]:
    """Estimates eigenvalues and eigenvectors by power iteration, starting from approximate eigenvectors.

    Each step is Q, R = qr(A·Q). The columns with the largest eigenvalues come first.

    Args:
        matrix_DD: the symmetric matrix A.
        vectors_DD: the orthogonal matrix Q to start from.
        steps: number of steps.

    Returns:
        The estimated eigenvalues, which are the diagonal of QᵀAQ, and Q.

    Raises:
        RootError: Q is not finite.
    """
    basis_DD = vectors_DD
    for _ in range(steps):
        basis_DD = torch.linalg.qr((matrix_DD @ basis_DD).contiguous()).Q
    _checked_finite(basis_DD, "the power iteration has numbers that are not finite")
    return (basis_DD * (matrix_DD @ basis_DD)).sum(0), basis_DD


def _newton(matrix_DD: Tensor, exponent: float, epsilon: float) -> Tensor:
    """Runs the coupled Newton iteration: X ← X·T, M ← Tᵖ·M with T = ((p + 1)·I − M) / p, until M is I.

    X is then the inverse p-th root of A + εI (Guo and Higham 2006; Anil et al. 2020, algorithm 3).
    """
    p = round(1 / exponent)
    if abs(exponent * p - 1) > 1e-9:
        raise RootError(f"the exponent {exponent} is not one over a whole number, which the Newton iteration needs")
    identity_DD = torch.eye(len(matrix_DD), dtype=matrix_DD.dtype, device=matrix_DD.device)
    ridged_DD = matrix_DD + epsilon * identity_DD
    scale = float((1 + p) / (2 * torch.linalg.matrix_norm(ridged_DD)))
    root_DD, left_DD = identity_DD * scale**exponent, ridged_DD * scale
    enough = NEWTON_ERROR if matrix_DD.dtype == torch.float32 else NEWTON_ERROR**2
    error, norm = _distance(left_DD, identity_DD)
    best_DD, best, least = root_DD, error, norm
    for _ in range(NEWTON_STEPS):
        if error <= enough:
            break
        turn_DD = ((p + 1) * identity_DD - left_DD) / p
        root_DD, left_DD = root_DD @ turn_DD, torch.linalg.matrix_power(turn_DD, p) @ left_DD
        error, norm = _distance(left_DD, identity_DD)
        if not norm < 1.2 * least:  # rounding errors dominate, or it is NaN
            break
        least = min(norm, least)
        if error < best:
            best_DD, best = root_DD, error
    if not best <= 1e-2:
        raise RootError(f"the Newton iteration ended {best:.2g} away from a root")
    return _checked_finite(best_DD, "the root has numbers that are not finite")


def _distance(matrix_DD: Tensor, other_DD: Tensor) -> tuple[float, float]:
    """Returns the largest difference and the norm of the differences; only the norm falls in every iteration."""
    difference_DD = matrix_DD - other_DD
    return float(difference_DD.abs().max()), float(torch.linalg.matrix_norm(difference_DD))


def _checked_finite(tensor: Tensor, what: str) -> Tensor:
    if not tensor.isfinite().all():
        raise RootError(what)
    return tensor
