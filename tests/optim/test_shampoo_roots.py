"""Inverse roots by every method, compared with closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ziggurat.optim.shampoo import roots
from ziggurat.optim.shampoo.roots import RootError, eigenvectors, inverse_root, power_iteration

D = 24


def matrix_with_condition(condition: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a matrix of the given condition, its eigenvalues (from 1 down, log-spaced) and its eigenvectors."""
    generator = torch.Generator().manual_seed(3)
    vectors_DD = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q
    values_D = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), D, dtype=torch.float64)
    return ((vectors_DD * values_D) @ vectors_DD.T).to(dtype), values_D, vectors_DD


def error(found_DD: Tensor, expected_DD: Tensor) -> float:
    return float(torch.linalg.norm(found_DD.double() - expected_DD) / torch.linalg.norm(expected_DD))


@pytest.mark.parametrize("exponent", [0.25, 0.5, 1 / 6, 1.0])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6, 1e8, 1e10])
def test_roots_by_eigenvalues(condition: float, exponent: float) -> None:
    """Eigenvalues have errors of 1e-16 of the largest, so the smallest has a relative error of 1e-16 × condition."""
    matrix_DD, values_D, vectors_DD = matrix_with_condition(condition)
    epsilon = 1e-14
    expected_DD = (vectors_DD * (values_D + epsilon).pow(-exponent)) @ vectors_DD.T
    assert error(inverse_root(matrix_DD, exponent, epsilon), expected_DD) < 1e-13 + 2e-15 * condition


@pytest.mark.parametrize("exponent", [0.25, 0.5])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6, 1e8, 1e10])
def test_roots_by_newton(condition: float, exponent: float) -> None:
    """Errors grow with the condition, because the iteration's rounding is relative to the largest eigenvalue."""
    matrix_DD, values_D, vectors_DD = matrix_with_condition(condition)
    epsilon = 1e-12
    expected_DD = (vectors_DD * (values_D + epsilon).pow(-exponent)) @ vectors_DD.T
    assert error(inverse_root(matrix_DD, exponent, epsilon, "newton"), expected_DD) < 1e-9 + 1e-12 * condition


@pytest.mark.parametrize("method", ["eigh", "newton"])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
def test_roots_in_fp32(condition: float, method: roots.Method) -> None:
    matrix_DD, values_D, vectors_DD = matrix_with_condition(condition, torch.float32)
    expected_DD = (vectors_DD * (values_D + 1e-8).pow(-0.25)) @ vectors_DD.T
    assert error(inverse_root(matrix_DD, 0.25, 1e-8, method), expected_DD) < 1e-5 + 1e-7 * condition


def test_power_iteration_tracks_a_slowly_rotating_matrix() -> None:
    matrix_DD, values_D, vectors_DD = matrix_with_condition(1e3)
    rotation_DD = torch.randn(D, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation_DD = torch.matrix_exp(1e-3 * (rotation_DD - rotation_DD.T))
    rotated_DD = rotation_DD @ matrix_DD @ rotation_DD.T
    held_DD = vectors_DD
    for _ in range(200):
        found_D, held_DD = power_iteration(rotated_DD, held_DD)
    assert torch.linalg.norm(held_DD.T @ held_DD - torch.eye(D)) < 1e-12
    torch.testing.assert_close(found_D.sort().values, values_D.sort().values, rtol=1e-6, atol=0)
    expected_DD = rotation_DD @ (vectors_DD * values_D.pow(-0.25)) @ vectors_DD.T @ rotation_DD.T
    assert error(roots.root_from_eigenvectors(found_D, held_DD, 0.25, 1e-14), expected_DD) < 1e-2


def test_negative_eigenvalues_are_raised() -> None:
    """If the smallest eigenvalue of A + εI is below ε, all eigenvalues are raised so that it is ε."""
    matrix_DD = torch.diag(torch.tensor([-1e-6, 0.5, 1.0], dtype=torch.float64))
    found_DD = inverse_root(matrix_DD, 0.5, 1e-8)
    expected_D = (torch.tensor([0.0, 0.5 + 1e-6, 1.0 + 1e-6], dtype=torch.float64) + 1e-8).pow(-0.5)
    torch.testing.assert_close(found_DD.diagonal(), expected_D)


def test_the_root_of_zero_is_that_of_epsilon() -> None:
    torch.testing.assert_close(inverse_root(torch.zeros(3, 3), 0.25, 1e-8), 100 * torch.eye(3))


@pytest.mark.parametrize("method", ["eigh", "newton"])
def test_a_non_finite_matrix_is_refused(method: roots.Method) -> None:
    with pytest.raises(RootError):
        inverse_root(torch.full((3, 3), torch.nan), 0.25, 1e-8, method)


def test_newton_needs_exponents_of_whole_roots() -> None:
    with pytest.raises(RootError, match=r"0\.3 is not one over a whole number"):
        inverse_root(torch.eye(3), 0.3, 1e-8, "newton")


def test_fp64_is_tried_if_fp32_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """No finite matrix is known to make LAPACK fail, so the first call is patched to fail."""
    seen: list[torch.dtype] = []
    real = torch.linalg.eigh

    def failing(matrix_DD: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(matrix_DD.dtype)
        if matrix_DD.dtype == torch.float32:
            raise torch.linalg.LinAlgError
        return real(matrix_DD)

    monkeypatch.setattr(torch.linalg, "eigh", failing)
    values_D, vectors_DD = eigenvectors(torch.diag(torch.tensor([1.0, 2.0])))
    assert seen == [torch.float32, torch.float64]
    assert values_D.dtype == vectors_DD.dtype == torch.float32
    assert values_D.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_roots_of_singular_matrices(scale: float) -> None:
    """In fp32 the zero eigenvalues come out slightly negative; their root must be that of epsilon."""
    generator = torch.Generator().manual_seed(0)
    columns_DR = torch.linalg.qr(torch.randn(D, 2, generator=generator, dtype=torch.float64)).Q
    matrix_DD = (scale * columns_DR @ columns_DR.T).float()
    found_DD = inverse_root(matrix_DD, 0.25, 1e-10 * scale)
    rest_DD = torch.eye(D, dtype=torch.float64) - columns_DR @ columns_DR.T
    least = float(torch.linalg.eigvalsh(found_DD.double()).min())
    assert least == pytest.approx(scale**-0.25, rel=0.01)
    largest = float(torch.linalg.norm(rest_DD @ found_DD.double(), 2))
    assert largest <= (1e-10 * scale) ** -0.25 * 1.01


@pytest.mark.parametrize("exponent", [0.25, 0.5, 1 / 6])
def test_derivative_of_the_root_by_finite_differences(exponent: float) -> None:
    """The derivative of the root with respect to the matrix is Daleckii and Krein's formula: in the eigenbasis,
    differences of the function's values divided by differences of the eigenvalues."""
    matrix_DD, values_D, vectors_DD = matrix_with_condition(1e3)
    direction_DD = torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction_DD, small = direction_DD + direction_DD.T, 1e-8
    forward, back = (inverse_root(matrix_DD + sign * small * direction_DD, exponent, 1e-14) for sign in (1, -1))
    powers_D = values_D**-exponent
    gaps_DD = values_D[:, None] - values_D
    slopes_DD = torch.where(
        gaps_DD == 0, -exponent * values_D ** (-exponent - 1), (powers_D[:, None] - powers_D) / gaps_DD
    )
    expected_DD = vectors_DD @ (slopes_DD * (vectors_DD.T @ direction_DD @ vectors_DD)) @ vectors_DD.T
    assert error((forward - back) / (2 * small), expected_DD) < 1e-5


@pytest.mark.parametrize("size", [4, 6, 8])
def test_newton_converges_for_matrices_with_correlated_rows(size: int) -> None:
    """For rows with a common part, the largest difference from the identity grows before it falls."""
    generator = torch.Generator().manual_seed(0)
    common_DR = torch.randn(1, 2 * size, generator=generator, dtype=torch.float64)
    for _ in range(20):
        rows_DR = 0.1 * torch.randn(size, 2 * size, generator=generator, dtype=torch.float64) + common_DR
        matrix_DD = rows_DR @ rows_DR.T
        found_DD = inverse_root(matrix_DD, 0.25, 1e-3, "newton")
        torch.testing.assert_close(found_DD, inverse_root(matrix_DD, 0.25, 1e-3), rtol=1e-6, atol=1e-6)
