"""The metrics: one constant each, listed in :mod:`ziggurat.metrics.names`.

In: a :class:`~ziggurat.metrics.metric.Summary`. Out: a number.
A metric is added by a file here and a line in that list.
"""
