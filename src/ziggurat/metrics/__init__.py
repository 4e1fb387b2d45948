"""How good the predictions are: AUC, log-loss, normalised entropy, calibration, GAUC, per task and per slice.

In: logits, labels, weights and group keys as numpy arrays, a batch at a time. Out: named figures and curves. State is
constant in size and merges exactly: same rows, same bits, whatever the order or the rank. Neighbours: ``training``
feeds it and stops on it, ``report`` draws its curves. Start at :mod:`~ziggurat.metrics.metric_set`.
"""
