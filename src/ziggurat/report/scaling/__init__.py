"""Scaling sweeps, drawn: log-loss over compute with the fitted power law."""
