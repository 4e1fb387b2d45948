"""A reference implementation of one block of Shampoo in numpy and fp64, written from the formulas."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Reference:
    """One block of weights.

    Args:
        weights: the initial weights.
        settings: Shampoo's settings; those not given are taken from :data:`DEFAULTS`.
    """

    DEFAULTS: ClassVar[dict[str, Any]] = {
        "lr": 0.1, "betas": (0.9, 0.99), "epsilon": 1e-4, "precondition_frequency": 2, "start": 2, "momentum": 0.0,
        "statistics_frequency": 1,
        "nesterov": False, "weight_decay": 0.0, "decay": "decoupled", "graft": ("adam", 0.999, 1e-8), "form": "roots",
    }  # fmt: skip

    MOMENT_WARMUP_STEPS: ClassVar[int] = 10

    def __init__(self, weights: Floats, **settings: Any) -> None:
        self.weights = weights.copy()
        self.settings = {**self.DEFAULTS, **settings}
        self.step_number = self.counted_gradients = 0
        self.factors = [np.zeros((size, size)) for size in weights.shape]
        self.matrices = [np.eye(size) for size in weights.shape]
        self.mean, self.second = np.zeros_like(weights), np.zeros_like(weights)
        self.buffer, self.rotated = np.zeros_like(weights), np.zeros_like(weights)

    def step(self, gradient: Floats) -> None:
        at = self.settings
        self.step_number += 1
        t, (beta1, beta2) = self.step_number, at["betas"]
        if at["decay"] == "coupled":
            gradient = gradient + at["weight_decay"] * self.weights
        every = self._statistics_interval()
        kept, taken = beta2**every, 1 - beta2**every if beta2 < 1 else every
        for k in range(gradient.ndim if t % every == 0 else 0):
            others = [axis for axis in range(gradient.ndim) if axis != k]
            product = np.tensordot(gradient, gradient, axes=(others, others))
            self.factors[k] = kept * self.factors[k] + taken * product
        if t == at["start"] or (t > at["start"] and t % at["precondition_frequency"] == 0):
            self._update_matrices()
        self.mean = beta1 * self.mean + (1 - beta1) * gradient
        mean = self.mean / (1 - beta1**t)
        grafted = self._grafted(gradient, mean)
        update = grafted
        if t >= at["start"] and at["form"] == "eigenbasis":
            self._update_moments(gradient)
        if t >= at["start"] + (self.MOMENT_WARMUP_STEPS if at["form"] == "eigenbasis" else 0):
            update = self._preconditioned(mean)
            if at["graft"][0] != "none":
                update = update * np.linalg.norm(grafted) / np.linalg.norm(update)
        if at["decay"] == "decoupled":
            update = update + at["weight_decay"] * self.weights
        if at["momentum"]:
            self.buffer = at["momentum"] * self.buffer + update
            update = update + at["momentum"] * self.buffer if at["nesterov"] else self.buffer
        self.weights = self.weights - at["lr"] * update

    def _statistics_interval(self) -> int:
        return self.settings["statistics_frequency"] if self.weights.ndim > 1 else 1

    def _update_matrices(self) -> None:
        beta2, every = self.settings["betas"][1], self._statistics_interval()
        for k, factor in enumerate(self.factors):
            corrected = factor / (1 - beta2 ** (self.step_number // every * every)) if beta2 < 1 else factor
            values, vectors = np.linalg.eigh(corrected)
            if self.settings["form"] == "eigenbasis":
                self.matrices[k] = vectors
            else:
                powers = (values + self.settings["epsilon"]) ** (-1 / (2 * len(self.factors)))
                self.matrices[k] = (vectors * powers) @ vectors.T

    def _along(self, tensor: Floats, matrices: list[Floats]) -> Floats:
        for k, matrix in enumerate(matrices):
            tensor = np.moveaxis(np.tensordot(matrix, tensor, axes=(1, k)), 0, k)
        return tensor

    def _update_moments(self, gradient: Floats) -> None:
        """Updates the second moments in the eigenbasis; ``counted_gradients`` is the number of gradients they count."""
        beta2, every = self.settings["betas"][1], self._statistics_interval()
        if self.step_number < self.settings["start"] + self.MOMENT_WARMUP_STEPS:
            every = 1
        if self.step_number % every == 0:
            kept, taken = beta2**every, 1 - beta2**every if beta2 < 1 else every
            self.rotated = kept * self.rotated + taken * self._along(gradient, [each.T for each in self.matrices]) ** 2
            self.counted_gradients += every

    def _preconditioned(self, mean: Floats) -> Floats:
        if self.settings["form"] == "roots":
            return self._along(mean, self.matrices)
        beta2, there = self.settings["betas"][1], [matrix.T for matrix in self.matrices]
        corrected = self.rotated / (1 - beta2**self.counted_gradients) if beta2 < 1 else self.rotated
        scaled = self._along(mean, there) / (np.sqrt(corrected) + self.settings["epsilon"])
        return self._along(scaled.clip(-1, 1), self.matrices)

    def _grafted(self, gradient: Floats, mean: Floats) -> Floats:
        kind, *rest = self.settings["graft"]
        if kind in {"none", "sgd"}:
            return mean
        if kind == "adagrad":
            self.second = self.second + gradient**2
            return mean / (np.sqrt(self.second) + rest[0])
        decay, eps = rest
        self.second = decay * self.second + (1 - decay) * gradient**2
        corrected = self.second / (1 - decay**self.step_number) if kind == "adam" else self.second
        return mean / (np.sqrt(corrected) + eps)
