"""Training in data order: read, look up, interact, loss, step, save. Also evaluation and prediction of a saved run.

In: an ``Experiment`` (the whole config). Out: a run folder. Neighbours: every room below is used here and wired
together; ``report`` and ``cli`` sit on top.
"""

from __future__ import annotations

from ziggurat.core.engine import check_engine

check_engine()  # before any module of this package imports torch: a mismatched fbgemm or torchrec crashes on import
