"""The checkpoints that a server follows, which must be those of the export's own run."""

from __future__ import annotations

from pathlib import Path

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import Manifest as CheckpointManifest
from ziggurat.checkpoint.inspect.run_folders import open_folder, recorded_run_id, run_folder
from ziggurat.checkpoint.reader import folder_of
from ziggurat.core.errors import ConfigError, RunFolderError, shorten
from ziggurat.core.untrusted import Damage
from ziggurat.serving.artefact.manifest import TRANSFORM, Manifest, StoredFile

_ENCODERS = "encoders"
_TRANSFORM_FILE = "transform.json"
_AGAIN = "export the run that is to be followed, and serve that export"


class FollowedCheckpoints(CheckpointFolder):
    """The checkpoints of an export's run; those of another run are refused.

    Args:
        folder: the checkpoints.
        manifest: the export.
    """

    def __init__(self, folder: CheckpointFolder, manifest: Manifest) -> None:
        super().__init__(folder.store, run_id=manifest.source.run_id)
        self._export = manifest

    def manifest(self, step: int) -> CheckpointManifest | None:
        found = super().manifest(step)
        if found is not None:
            self.check(found)
        return found

    def check(self, found: CheckpointManifest) -> None:
        """Refuses a checkpoint of another run, or with other tables.

        Raises:
            RunFolderError: it is one.
        """
        where = self.store.where(folder_of(found.step))
        if found.run_id != self.run_id:
            whose = f"another run (id {shorten(found.run_id)})" if found.run_id else "a run that it does not name"
            raise RunFolderError(f"{where}: is of {whose}; the export is of run {self.run_id!r}", _AGAIN)
        for table in self._export.tables:
            shape = found.tables.get(table.name)
            if shape is None or (shape.rows, shape.dim) != (table.rows, table.dim):
                has = "there is none" if shape is None else f"it has {shape.rows:,} rows of {shape.dim} there"
                raise RunFolderError(
                    f"{where}: table {table.name!r} has {table.rows:,} rows of {table.dim} in the export; {has}", _AGAIN
                )


def open_followed(place: str | Path, manifest: Manifest, export: Path) -> FollowedCheckpoints:
    """Opens the checkpoints to follow.

    Args:
        place: a run, the folder of its checkpoints, or the URL of their store.
        manifest: the export.
        export: its folder.

    Raises:
        ConfigError: they cannot be followed with this export: it is of an ensemble or of another run, has other
            features or encoders, or was written by a version that did not note which tensors are trained.
        RunFolderError: there is no such run; or its store does not answer (``Unreachable``).
    """
    if manifest.members:
        raise ConfigError(
            f"{export}: is the export of an ensemble of {len(manifest.members):,} checkpoints; one run is followed",
            "serve it without --follow, or export a single run",
        )
    if not manifest.trained:
        raise ConfigError(
            f"{export}: was written by ziggurat {manifest.source.version}, before exports could be followed",
            "export the run again: ziggurat export RUN OUT",
        )
    folder = open_folder(place)
    where = None if "://" in str(place) else run_folder(Path(place))
    if where is not None:
        _check_run(where, manifest, export)
    found = FollowedCheckpoints(folder, manifest)
    last = found.last()
    if last is not None:
        try:
            newest = CheckpointFolder.manifest(found, last)
        except RunFolderError:
            return found  # damaged, or not to be reached now: following tells it, and tries again
        if newest is not None:
            try:
                found.check(newest)
            except RunFolderError as error:
                raise ConfigError(error.problem, error.hint) from None
    return found


def _check_run(run: Path, manifest: Manifest, export: Path) -> None:
    run_id = recorded_run_id(run, Damage(RunFolderError, "restore it"))
    if run_id is not None and run_id != manifest.source.run_id:
        raise ConfigError(
            f"{run}: is run {run_id!r}; {export} was made of another run, {manifest.source.run_id!r}", _AGAIN
        )
    transform = run / _ENCODERS / _TRANSFORM_FILE
    mine = manifest.files.get(f"{TRANSFORM}/{_TRANSFORM_FILE}")
    if transform.is_file() and mine is not None and StoredFile.of(transform).sha256 != mine.sha256:
        raise ConfigError(f"{transform}: the run has other features or encoders than {export}", _AGAIN)
