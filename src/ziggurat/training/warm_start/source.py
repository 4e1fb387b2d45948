"""The source of a warm start: another run's checkpoint, its tables, and the values that their rows represent."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ziggurat.checkpoint.reader import CheckpointReader
from ziggurat.core.errors import ConfigError, DataError, RunFolderError
from ziggurat.core.tables import TableSpec
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.embeddings.layout import Layout
from ziggurat.features.assemble import encoded_schema
from ziggurat.features.matching import FittedTables
from ziggurat.training.config import WarmStart
from ziggurat.training.run_folder.run import Run, open_run

KEY = "training.warm_start"
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class WarmStartSource:
    """A checkpoint of another run, with the weights it predicts with: the averaged ones if it has them.

    Attributes:
        run: the other run.
        step: step of the checkpoint.
        saved: the checkpoint.
    """

    run: Run
    step: int
    saved: CheckpointReader

    @classmethod
    def open(cls, start: WarmStart, step: int | None = None) -> WarmStartSource:
        """Opens the checkpoint that ``start`` names, or that of ``step`` if given.

        Raises:
            ConfigError: there is no such run or checkpoint.
        """
        with _named(f"{KEY}.run"):
            run = open_run(start.run)
        with _named(f"{KEY}.checkpoint"):
            found = run.checkpoints.resolve(start.checkpoint) if step is None else step
            return cls(run, found, run.checkpoints.load(found))

    def place(self, group: str, name: str) -> tuple[str, str]:
        """Returns the group and name under which the checkpoint stores a weight of ``dense`` or ``tables``."""
        return ("average", f"{group}/{name}") if self._averaged else (group, name)

    def shapes(self, group: str) -> Shapes:
        """Returns the shapes of the weights of ``dense`` or ``tables``, by name."""
        if not self._averaged:
            return self.saved.shapes(group) or {}
        prefix, found = f"{group}/", self.saved.shapes("average") or {}
        return {name.removeprefix(prefix): shape for name, shape in found.items() if name.startswith(prefix)}

    @cached_property
    def tables(self) -> dict[str, TableSpec]:
        """The other run's tables, by name."""
        return {spec.name: spec for spec in self.layout.tables}

    @cached_property
    def layout(self) -> Layout:
        """The layout of the other run's model.

        Raises:
            ConfigError: its checkpoint lacks a table that its config has.
        """
        config = self.run.experiment
        rows = {name: shape[0] for name, shape in self.shapes("tables").items()}
        try:
            return config.layout(encoded_schema(config.features, config.data.targets, rows))
        except KeyError as missing:
            raise ConfigError(
                f"{KEY}.run: the checkpoint of step {self.step} in {self.run.folder} lacks table {missing}, which the "
                "run's config.yaml has",
                "name another run, or another checkpoint of it",
            ) from None

    @cached_property
    def fitted(self) -> FittedTables:
        """The values that the other run's ids and numbers represent.

        Raises:
            ConfigError: its folder ``encoders`` is damaged or incomplete.
        """
        with _named(f"{KEY}.run", "restore the folder `encoders` of that run, or name another run"):
            return fitted_tables(self.run)

    @cached_property
    def _averaged(self) -> bool:
        return self.saved.shapes("average") is not None


def fitted_tables(run: Run) -> FittedTables:
    """Returns the values that a run's ids and numbers represent.

    Raises:
        RunFolderError: ``dataset.json`` is missing or damaged.
        DataError: a file in its folder ``encoders`` is missing, damaged, or of another run.
    """
    return FittedTables(run.folder / ENCODERS, run.experiment.features, run.encoders_checksum())


@contextlib.contextmanager
def _named(key: str, hint: str | None = None) -> Generator[None]:
    """Turns an error into a ConfigError that names the config key, with another hint if given.

    Raises:
        ConfigError: in place of a RunFolderError or DataError.
    """
    try:
        yield
    except (RunFolderError, DataError) as error:
        raise ConfigError(f"{key}: {error.problem}", hint or error.hint) from None
