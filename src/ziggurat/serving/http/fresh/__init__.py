"""Exchanges the model of a server while it runs: the process that takes versions, the workers, routes, metrics."""
