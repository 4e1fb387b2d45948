"""The update rules of ``rows`` on plain tensors, for tables without a fused kernel.

Shape legend: U rows, D dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class RowRule(Protocol):
    """An update rule for rows; the caller keeps its states."""

    def states(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        """Returns name -> shape of each state of a table; states start at zero."""
        ...

    def step(self, weight_UD: Tensor, states: Mapping[str, Tensor], grad_UD: Tensor, lr: float, number: int) -> None:
        """Updates rows and their states in place; ``number`` counts the table's steps from 1."""
        ...


class SGDRule:
    """w −= lr·G."""

    def states(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        return {}

    def step(self, weight_UD: Tensor, states: Mapping[str, Tensor], grad_UD: Tensor, lr: float, number: int) -> None:
        weight_UD.add_(grad_UD, alpha=-lr)


class AdagradRule:
    """s += G², w −= lr·G / (√s + eps); with ``rowwise``, s is one number a row, a sum of means of G² over the dims."""

    def __init__(self, eps: float, rowwise: bool) -> None:
        self._eps, self._rowwise = eps, rowwise

    def states(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        return {"sum": (rows,) if self._rowwise else (rows, dim)}

    def step(self, weight_UD: Tensor, states: Mapping[str, Tensor], grad_UD: Tensor, lr: float, number: int) -> None:
        total = states["sum"]
        if self._rowwise:
            total.add_(grad_UD.square().mean(dim=1))
            weight_UD.sub_(grad_UD * (lr / (total.sqrt() + self._eps)).unsqueeze(1))
        else:
            total.addcmul_(grad_UD, grad_UD)
            weight_UD.addcdiv_(grad_UD, total.sqrt().add_(self._eps), value=-lr)


class AdamRule:
    """Adam with decoupled weight decay (Kingma & Ba 2015, algorithm 1)."""

    def __init__(self, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        self._betas, self._eps, self._weight_decay = betas, eps, weight_decay

    def states(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        return {"exp_avg": (rows, dim), "exp_avg_sq": (rows, dim)}

    def step(self, weight_UD: Tensor, states: Mapping[str, Tensor], grad_UD: Tensor, lr: float, number: int) -> None:
        (beta1, beta2), first_UD, second_UD = self._betas, states["exp_avg"], states["exp_avg_sq"]
        if self._weight_decay:
            weight_UD.mul_(1 - lr * self._weight_decay)
        first_UD.lerp_(grad_UD, 1 - beta1)
        second_UD.mul_(beta2).addcmul_(grad_UD, grad_UD, value=1 - beta2)
        denominator_UD = (second_UD / (1 - beta2**number)).sqrt_().add_(self._eps)
        weight_UD.addcdiv_(first_UD, denominator_UD, value=-lr / (1 - beta1**number))


def row_rule(optimizer: Mapping[str, Any]) -> RowRule:
    """Returns the rule of a :class:`~ziggurat.core.tables.TableSpec`'s optimizer."""
    match optimizer["name"]:
        case "sgd":
            return SGDRule()
        case "adagrad" | "rowwise_adagrad" as name:
            return AdagradRule(optimizer["eps"], rowwise=name == "rowwise_adagrad")
        case "adam":
            return AdamRule(tuple(optimizer["betas"]), optimizer["eps"], optimizer["weight_decay"])
        case other:
            raise AssertionError(other)


@torch.no_grad()
def step_rows(
    rule: RowRule,
    weight_RD: Tensor,
    states: Mapping[str, Tensor],
    rows_U: Tensor | None,
    grad_UD: Tensor,
    lr: float,
    number: int,
) -> None:
    """Takes one step on the rows ``rows_U``, or on all rows if it is None."""
    if rows_U is None:
        rule.step(weight_RD, states, grad_UD, lr, number)
        return
    weight_UD = weight_RD[rows_U]
    picked = {name: state[rows_U] for name, state in states.items()}
    rule.step(weight_UD, picked, grad_UD, lr, number)
    weight_RD[rows_U] = weight_UD
    for name, state in states.items():
        state[rows_U] = picked[name]
