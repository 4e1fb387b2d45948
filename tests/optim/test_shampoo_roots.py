"""Inverse roots against closed forms, by every method."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ziggurat.optim.shampoo import roots
from ziggurat.optim.shampoo.roots import RootError, eigenvectors, inverse_root, turned

D = 24


def known(condition: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix whose eigenvalues spread evenly in their logarithms from 1 down; the values and vectors."""
    generator = torch.Generator().manual_seed(3)
    vectors_DD = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q
    values_D = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), D, dtype=torch.float64)
    return ((vectors_DD * values_D) @ vectors_DD.T).to(dtype), values_D, vectors_DD


def error(found_DD: Tensor, expected_DD: Tensor) -> float:
    return float(torch.linalg.norm(found_DD.double() - expected_DD) / torch.linalg.norm(expected_DD))


@pytest.mark.parametrize("exponent", [0.25, 0.5, 1 / 6, 1.0])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6, 1e8, 1e10])
def test_roots_by_eigenvalues(condition: float, exponent: float) -> None:
    """Eigenvalues come out 1e-16 of the largest off, so that the smallest is off by 1e-16 times the condition."""
    matrix_DD, values_D, vectors_DD = known(condition)
    epsilon = 1e-14
    expected_DD = (vectors_DD * (values_D + epsilon).pow(-exponent)) @ vectors_DD.T
    assert error(inverse_root(matrix_DD, exponent, epsilon), expected_DD) < 1e-13 + 2e-15 * condition


@pytest.mark.parametrize("exponent", [0.25, 0.5])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6, 1e8, 1e10])
def test_roots_by_newton(condition: float, exponent: float) -> None:
    """Errors grow with the condition: what the iteration rounds away is relative to the largest eigenvalue."""
    matrix_DD, values_D, vectors_DD = known(condition)
    epsilon = 1e-12
    expected_DD = (vectors_DD * (values_D + epsilon).pow(-exponent)) @ vectors_DD.T
    assert error(inverse_root(matrix_DD, exponent, epsilon, "newton"), expected_DD) < 1e-9 + 1e-12 * condition


@pytest.mark.parametrize("method", ["eigh", "newton"])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
def test_fp32(condition: float, method: roots.Method) -> None:
    matrix_DD, values_D, vectors_DD = known(condition, torch.float32)
    expected_DD = (vectors_DD * (values_D + 1e-8).pow(-0.25)) @ vectors_DD.T
    assert error(inverse_root(matrix_DD, 0.25, 1e-8, method), expected_DD) < 1e-5 + 1e-7 * condition


def test_power_iteration_follows_a_matrix_that_turns_slowly() -> None:
    matrix_DD, values_D, vectors_DD = known(1e3)
    slight_DD = torch.randn(D, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slight_DD = torch.matrix_exp(1e-3 * (slight_DD - slight_DD.T))
    turned_DD = slight_DD @ matrix_DD @ slight_DD.T
    held_DD = vectors_DD
    for _ in range(200):
        found_D, held_DD = turned(turned_DD, held_DD)
    assert torch.linalg.norm(held_DD.T @ held_DD - torch.eye(D)) < 1e-12
    torch.testing.assert_close(found_D.sort().values, values_D.sort().values, rtol=1e-6, atol=0)
    expected_DD = slight_DD @ (vectors_DD * values_D.pow(-0.25)) @ vectors_DD.T @ slight_DD.T
    assert error(roots.root_of(found_D, held_DD, 0.25, 1e-14), expected_DD) < 1e-2


def test_rounding_below_zero_is_moved_up() -> None:
    """λmin of A + εI below ε: all eigenvalues are moved until it is ε."""
    matrix_DD = torch.diag(torch.tensor([-1e-6, 0.5, 1.0], dtype=torch.float64))
    found_DD = inverse_root(matrix_DD, 0.5, 1e-8)
    expected_D = (torch.tensor([0.0, 0.5 + 1e-6, 1.0 + 1e-6], dtype=torch.float64) + 1e-8).pow(-0.5)
    torch.testing.assert_close(found_DD.diagonal(), expected_D)


def test_zeros_have_the_root_of_epsilon() -> None:
    torch.testing.assert_close(inverse_root(torch.zeros(3, 3), 0.25, 1e-8), 100 * torch.eye(3))


@pytest.mark.parametrize("method", ["eigh", "newton"])
def test_what_is_not_finite_is_refused(method: roots.Method) -> None:
    with pytest.raises(RootError):
        inverse_root(torch.full((3, 3), torch.nan), 0.25, 1e-8, method)


def test_newton_needs_whole_roots() -> None:
    with pytest.raises(RootError, match=r"0\.3 is not one over a whole number"):
        inverse_root(torch.eye(3), 0.3, 1e-8, "newton")


def test_fp32_that_fails_is_tried_in_fp64(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK has no failing matrix that is finite, so the first call is made to fail."""
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
def test_roots_of_matrices_that_are_not_of_full_rank(scale: float) -> None:
    """fp32, whose least eigenvalues come out below zero: what is not there has the root of epsilon."""
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
def test_roots_by_finite_differences(exponent: float) -> None:
    """How the root moves with the matrix is Daleckii and Krein's formula: differences of the function over those of
    eigenvalues, in their basis."""
    matrix_DD, values_D, vectors_DD = known(1e3)
    toward_DD = torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    toward_DD, little = toward_DD + toward_DD.T, 1e-8
    forward, back = (inverse_root(matrix_DD + sign * little * toward_DD, exponent, 1e-14) for sign in (1, -1))
    powers_D = values_D**-exponent
    apart_DD = values_D[:, None] - values_D
    slopes_DD = torch.where(
        apart_DD == 0, -exponent * values_D ** (-exponent - 1), (powers_D[:, None] - powers_D) / apart_DD
    )
    expected_DD = vectors_DD @ (slopes_DD * (vectors_DD.T @ toward_DD @ vectors_DD)) @ vectors_DD.T
    assert error((forward - back) / (2 * little), expected_DD) < 1e-5


@pytest.mark.parametrize("size", [4, 6, 8])
def test_newton_finds_roots_of_matrices_with_much_in_common(size: int) -> None:
    """Of rows that share a part, the largest difference from the identity grows before it falls."""
    generator = torch.Generator().manual_seed(0)
    common_DR = torch.randn(1, 2 * size, generator=generator, dtype=torch.float64)
    for _ in range(20):
        rows_DR = 0.1 * torch.randn(size, 2 * size, generator=generator, dtype=torch.float64) + common_DR
        matrix_DD = rows_DR @ rows_DR.T
        found_DD = inverse_root(matrix_DD, 0.25, 1e-3, "newton")
        torch.testing.assert_close(found_DD, inverse_root(matrix_DD, 0.25, 1e-3), rtol=1e-6, atol=1e-6)
