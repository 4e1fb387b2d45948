"""The check that a search has something to decide by."""

from __future__ import annotations

from ziggurat.core.errors import ConfigError
from ziggurat.data.encoded.dataset import Dataset


def check_validation_rows(dataset: Dataset) -> None:
    """Refuses a dataset without validation rows.

    Raises:
        ConfigError: there are none.
    """
    if not dataset.split("validation").rows:
        raise ConfigError("the validation split has no rows, by which a search decides", "give data.split a share")
