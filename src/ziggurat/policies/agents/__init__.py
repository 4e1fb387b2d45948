"""Snapshots of agents of stable-baselines3, and ensembles of them. Importing anything here needs the extra ``rl``."""

from __future__ import annotations

from ziggurat.core.errors import EnvironmentMismatch

try:
    import gymnasium  # noqa: F401 # pyright: ignore[reportUnusedImport]
    import stable_baselines3  # noqa: F401 # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    if error.name not in ("gymnasium", "stable_baselines3"):
        raise
    raise EnvironmentMismatch(
        f"policies are trained with stable-baselines3 on environments of Gymnasium, and {error.name} is not installed",
        "pip install 'ziggurat[rl]'",
    ) from error
