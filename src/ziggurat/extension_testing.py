"""Checks of parts from outside the package, for their own tests: each fits or builds a part and uses it in small.

A check returns the part if it keeps the contract of its kind, and raises an error that says what is wrong otherwise.
docs/extending.md shows how to call them.
"""

from __future__ import annotations

from ziggurat.features.encoders.contract import check_encoder

__all__ = ["check_encoder"]
