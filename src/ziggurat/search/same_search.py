"""Whether a folder holds the search that is asked for, by the settings that it was begun with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ziggurat.core.errors import RunFolderError, shorten
from ziggurat.core.untrusted import Damage, read_json_object
from ziggurat.training.experiment import differing_keys

DAMAGE = Damage(RunFolderError, "restore it from a copy, or name another folder with --run")


def check_same(path: Path, settings: Mapping[str, Any]) -> None:
    """Compares settings with those in a file, if it exists.

    Args:
        path: the JSON file in the folder of the search.
        settings: some of its keys with their values.

    Raises:
        RunFolderError: a value differs, or the file is damaged.
    """
    if not path.exists():
        return
    stored = read_json_object(path, DAMAGE)
    differences = differing_keys({key: stored.get(key) for key in settings}, json.loads(json.dumps(settings)))
    if differences:
        key, old, new = differences[0]
        raise RunFolderError(
            f"{path.parent}: holds a search with another {key}: {shorten(old)} there, {shorten(new)} here",
            "name another folder with --run, or delete this one",
        )
