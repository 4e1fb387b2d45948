"""Searches over the small log of the training tests."""

from __future__ import annotations

from tests.training.conftest import make_experiment

__all__ = ["make_experiment"]
