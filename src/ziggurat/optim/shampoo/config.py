"""Shampoo as the dense optimizer of an experiment."""

from __future__ import annotations

import torch

from ziggurat.optim.dense_optimizer import DenseOptimizerSettings, ParameterGroup
from ziggurat.optim.shampoo.arguments import ShampooArguments
from ziggurat.optim.shampoo.shampoo import Shampoo


class ShampooConfig(ShampooArguments, DenseOptimizerSettings):
    """Shampoo: preconditions the gradient of each block of a matrix by second moments of its rows and columns, and
    takes the size of its step from another optimizer (the graft). By default it is Adam in the eigenbasis of these
    second moments (the family of SOAP, clamped); ``form: roots`` is Shampoo with inverse roots, as published."""

    def make(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        return Shampoo(groups, **self.settings())
