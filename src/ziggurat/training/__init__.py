"""Trains an experiment, and evaluates and predicts with a trained run.

In: an ``Experiment`` (the complete config). Out: a run folder. Neighbours: this package connects all packages below it;
``report`` and ``cli`` use it.
"""

from __future__ import annotations

from ziggurat.core.engine import check_engine

check_engine()  # before any module of this package imports torch: a mismatched fbgemm or torchrec crashes on import
