"""What a search of hyperparameters needs of its arguments and of the experiment."""

from __future__ import annotations

from ziggurat.core.errors import ConfigError
from ziggurat.training.ensemble.ensemble import MOST_MEMBERS
from ziggurat.training.experiment import Experiment


def check_arguments(trials: int, jobs: int | None, hours: float | None, ensemble: int | None) -> None:
    """Raises ConfigError for a number that is not possible."""
    for name, value in (("trials", trials), ("jobs", jobs)):
        if value is not None and value < 1:
            raise ConfigError(f"a search needs 1 {name} or more, received {value}", f"give --{name} 1")
    if ensemble is not None and not 2 <= ensemble <= MOST_MEMBERS:
        raise ConfigError(
            f"an ensemble is made of 2 to {MOST_MEMBERS:,} trials, received {ensemble}", "give --ensemble 5"
        )
    if hours is not None and not hours > 0:
        raise ConfigError(f"hours: received {hours}", "give more than 0, or leave --hours out")


def check_searchable(experiment: Experiment) -> None:
    """Raises ConfigError for settings that trials cannot share."""
    if experiment.checkpoints.store is not None:
        raise ConfigError(
            f"checkpoints.store: {experiment.checkpoints.store} can hold the checkpoints of one run, and a search "
            "trains several",
            "leave it out: each trial then keeps its checkpoints in its own folder",
        )
    if experiment.training.readers:
        raise ConfigError(
            "training.readers: the trials of a search read the prepared data themselves", "leave the readers out"
        )
