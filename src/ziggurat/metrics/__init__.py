"""Streaming evaluation metrics: AUC, log-loss, NE, calibration, GAUC, RMSE, deviance, XAUC, per task and per slice.

In: logits, labels, weights and group keys as numpy arrays, one batch at a time. Out: named figures and curves. The
state has constant size and merges exactly: the same rows give the same bits in any order and on any rank. Neighbours:
``training`` updates the metrics and uses them for early stopping, ``report`` draws the curves. Start at
:mod:`~ziggurat.metrics.metric_set`.
"""
