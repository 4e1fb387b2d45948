"""Checks of parts from outside the package, for their own tests: each fits or builds a part and uses it in small.

A check returns the part if it keeps the contract of its kind, and raises an error that says what is wrong otherwise.
docs/extending.md shows how to call them.
"""

from __future__ import annotations

from ziggurat.contracts.suites import check_block, check_head, check_model, check_sequence_encoder
from ziggurat.contracts.training_suites import check_dense_optimizer, check_planner
from ziggurat.features.encoders.contract import check_encoder

__all__ = [
    "check_block",
    "check_dense_optimizer",
    "check_encoder",
    "check_head",
    "check_model",
    "check_planner",
    "check_sequence_encoder",
]
