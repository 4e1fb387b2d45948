"""Leaderboards: an example experiment, the changes of each model to it, and published figures.

A leaderboard is a YAML file in ``boards/``::

    experiment: examples/frappe.yaml
    seeds: [0, 1, 2]
    all: {...}                       # changes for all models, with the sections of an experiment
    models:
      dcn_v2:
        changes: {model: {...}}      # merged over `all`; a section with another `name` replaces the previous one
        published: {auc: 0.9845, log_loss: 0.1491}
        search: {a.b.c: [1, 2, 3]}   # the values that `bench.quality.search` draws from
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ConfigError, nearest
from ziggurat.training.experiment import Experiment

ROOT = Path(__file__).resolve().parents[2]
BOARDS = Path(__file__).with_name("boards")


@dataclass(frozen=True, slots=True)
class Entry:
    """A model on a leaderboard.

    Attributes:
        name: the name on the leaderboard.
        values: the complete unparsed experiment, except the data folder and the seed.
        published: figure -> the published value.
        search: dotted key -> the values that a search draws from.
    """

    name: str
    values: Mapping[str, Any]
    published: Mapping[str, float] = field(default_factory=dict[str, float])
    search: Mapping[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def experiment(self, data: Path | None, seed: int, changes: Mapping[str, Any] | None = None) -> Experiment:
        """Returns the experiment to train.

        Args:
            data: the folder of the raw data; None keeps the folder of the example.
            seed: the seed of the training.
            changes: dotted key -> value, set last.

        Raises:
            ConfigError: a key or value is not allowed.
        """
        values = merged(copy.deepcopy(self.values), {"training": {"seed": seed, "threads": 1, "log_every": 1000}})
        if data is not None:
            values["data"] = {**values["data"], "folder": str(data)}
        for key, value in (changes or {}).items():
            set_by_path(values, key, value)
        return parse_config(Experiment, values, f"board entry {self.name}")


@dataclass(frozen=True, slots=True)
class Board:
    """A leaderboard of models on the same split.

    Attributes:
        name: the name of its file.
        experiment: the example experiment that it changes.
        seeds: the seeds of the trainings of each model.
        entries: the models by name, in the order of the file.
    """

    name: str
    experiment: Path
    seeds: tuple[int, ...]
    entries: Mapping[str, Entry]

    @property
    def searchable(self) -> list[str]:
        """The models that declare values for a search."""
        return [name for name, entry in self.entries.items() if entry.search]

    def entry(self, name: str) -> Entry:
        """Returns the model of this name.

        Raises:
            ConfigError: there is no such model.
        """
        if name not in self.entries:
            close = nearest(name, [*self.entries])
            raise ConfigError(
                f"board {self.name}: no model {name!r}",
                f"did you mean {close}?" if close else f"one of {[*self.entries]}",
            )
        return self.entries[name]


@functools.cache
def load_board(name: str) -> Board:
    """Loads the leaderboard of this name.

    Raises:
        ConfigError: there is no such file.
    """
    path = BOARDS / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"{path}: no such board", f"one of {sorted(p.stem for p in BOARDS.glob('*.yaml'))}")
    written = _read(path)
    common = merged(_read(ROOT / written["experiment"]), written.get("all", {}))
    entries = {
        name: Entry(name, merged(common, model.get("changes", {})), model.get("published", {}), model.get("search", {}))
        for name, model in written["models"].items()
    }
    return Board(path.stem, ROOT / written["experiment"], tuple(written["seeds"]), entries)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merges ``changes`` into ``base`` by sections; a section with another ``name`` replaces the previous section."""
    out = dict(base)
    for key, value in changes.items():
        below: Any = out.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        out[key] = merged(below, value) if both and value.get("name") in {None, below.get("name")} else value
    return out


def _read(path: Path) -> dict[str, Any]:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))
