"""Leaderboards of model quality on public datasets, with several seeds per model and published figures."""
