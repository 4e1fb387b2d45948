"""The files of a run folder. Each carries its own checksum and the id of its run.

So damage is noticed, and so is an intact file of another run that was put in its place. Folders of version 1 have
neither; what they lack is not required there, and what a resumed training adds to them has both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors.numpy import save_file

from ziggurat._version import __version__
from ziggurat.core.digests import digest_of_parts, load_tensors
from ziggurat.core.errors import RunFolderError, ZigguratError, shorten
from ziggurat.core.files import atomic_file
from ziggurat.core.sealed import (
    read_sealed_json,
    read_sealed_text,
    sealed_line,
    unsealed,
    write_sealed_json,
    write_sealed_text,
)
from ziggurat.core.untrusted import Damage, array, as_object, parse_json, read_bytes, read_json_object, tensor_metadata

RUN_VERSION = 2
_READABLE_VERSIONS = (1, 2)
"""Version 1 has no checksums and no ids."""
CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
DATASET_FILE = "dataset.json"
PLAN_FILE = "plan.json"
ROW_ORDER_FILE = "row_order.safetensors"
LOOKUPS_FILE = "lookups.safetensors"
WARM_START_FILE = "warm_start.json"
METRICS_FILE = "metrics.jsonl"
RESULTS_FILE = "results.json"

DAMAGED = Damage(
    RunFolderError, "restore the file from a copy of the run; without one, train again into another folder (--run)"
)
"""What the errors about a damaged run folder look like."""
_TRAIN_AGAIN = "run `ziggurat train` with the run's config again"
_HINTS = {
    DATASET_FILE: f"restore it, or delete it and {_TRAIN_AGAIN}, which writes it anew",
    PLAN_FILE: f"restore it; or delete it and {_TRAIN_AGAIN}, which makes a plan anew, under which sums may be rounded "
    "otherwise",
    ROW_ORDER_FILE: "delete it: the order is counted again from the statistics of the dataset",
    LOOKUPS_FILE: "delete it: the statistics of the dataset are then used",
    RESULTS_FILE: f"restore it, or delete it and {_TRAIN_AGAIN}, which evaluates the best checkpoint again",
    WARM_START_FILE: "restore it, or delete it: it only says what the run began with",
}
_RUN_ID = "run_id"
_CHECKSUM = "xxh3_128"
_CONFIG_BYTES = 2**22
"""The most bytes of a config."""
_CONFIG_ID = f"# {_RUN_ID}: "
_WITH_ID = (CONFIG_FILE, DATASET_FILE, PLAN_FILE, WARM_START_FILE, RESULTS_FILE)
"""Files that say which run they belong to, besides ``environment.json``."""


def damage_of(name: str) -> Damage:
    """Returns what the errors about a damaged file of a run look like."""
    return replace(DAMAGED, hint=_HINTS.get(name, DAMAGED.hint))


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Reads and writes the files of a run folder.

    Attributes:
        folder: the run folder.
        version: the version of its format.
        run_id: the id of the run, which stays the same if the folder is moved or copied.
    """

    folder: Path
    version: int
    run_id: str

    @classmethod
    def open(cls, folder: Path) -> RunFiles:
        """Reads the run's version and id.

        Raises:
            RunFolderError: ``environment.json`` is missing, damaged, or of another format version.
        """
        values = read_environment(folder)
        return cls(folder, values["run_version"], values[_RUN_ID])

    @property
    def has_checksums(self) -> bool:
        """Whether every file must carry its checksum and the run's id."""
        return self.version > 1

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Writes a file, atomically."""
        write_sealed_json(self.folder / name, {**values, _RUN_ID: self.run_id})

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Returns the values in a file; None if there is no such file.

        Raises:
            RunFolderError: it is damaged, or belongs to another run.
        """
        path = self.folder / name
        try:
            values = read_sealed_json(path, damage_of(name), required=self.has_checksums)
        except FileNotFoundError:
            return None
        self._check_id(values.pop(_RUN_ID, None), path)
        return values

    def write_config(self, text: str) -> None:
        """Writes ``config.yaml``, atomically."""
        write_sealed_text(self.folder / CONFIG_FILE, f"{text.rstrip()}\n{_CONFIG_ID}{self.run_id}\n")

    def read_config(self) -> bytes:
        """Returns the YAML in ``config.yaml``.

        Raises:
            RunFolderError: it is missing, damaged, or belongs to another run.
        """
        path = self.folder / CONFIG_FILE
        hint = f"a run's config is not to be edited; {DAMAGED.hint}"
        try:
            text = read_sealed_text(path, replace(DAMAGED, hint=hint), required=self.has_checksums, limit=_CONFIG_BYTES)
        except FileNotFoundError:
            raise DAMAGED.of(path, "is missing") from None
        _, comment, found = text.rpartition(_CONFIG_ID.encode())
        self._check_id(found.decode("utf-8", "replace").strip() if comment else None, path)
        return text

    def line(self, values: Mapping[str, Any]) -> str:
        """Returns a line of a JSON lines file."""
        return sealed_line({**values, _RUN_ID: self.run_id})

    def write_arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes a safetensors file, atomically."""
        with atomic_file(self.folder / name) as temporary:
            save_file(dict(arrays), temporary, {_RUN_ID: self.run_id, _CHECKSUM: _arrays_checksum(arrays)})

    def read_arrays(
        self, name: str, dtype: npt.DTypeLike, *, limit: int | None = None
    ) -> dict[str, npt.NDArray[Any]] | None:
        """Returns the arrays in a safetensors file, which have one dimension; None if there is no such file.

        Args:
            name: the file.
            dtype: the dtype of its arrays.
            limit: the most bytes that it may have; None for any number.

        Raises:
            RunFolderError: it is damaged, or belongs to another run.
        """
        path, damage = self.folder / name, damage_of(name)
        try:
            metadata = tensor_metadata(path, damage)
            stored = load_tensors(path, None, damage, limit=limit)
        except FileNotFoundError:
            return None
        arrays = {each: array(stored, each, dtype, 1, path, damage) for each in stored}
        self._check_metadata(metadata, _arrays_checksum(arrays), path)
        return arrays

    def _check_metadata(self, metadata: Mapping[str, str], checksum: str, path: Path) -> None:
        stored = metadata.get(_CHECKSUM)
        damage = damage_of(path.name)
        if stored is None and self.has_checksums:
            raise damage.of(path, "has no checksum")
        if stored not in {None, checksum}:
            raise damage.of(path, "is damaged: its content differs from its checksum")
        self._check_id(metadata.get(_RUN_ID), path)

    def _check_id(self, found: Any, path: Path) -> None:
        if found is None and not self.has_checksums:
            return
        if found != self.run_id:
            raise self._of_another_run(found, path)

    def _of_another_run(self, found: Any, path: Path) -> ZigguratError:
        """Returns the error for a file with another id, which names ``environment.json`` if that is the odd one."""
        environment = self.folder / ENVIRONMENT_FILE
        if isinstance(found, str):
            others = [self._id_in(name) for name in _WITH_ID if name != path.name]
            theirs, ours = others.count(found), others.count(self.run_id)
            if theirs > ours:
                return DAMAGED.of(
                    environment, f"belongs to run {self.run_id!r}, the other files here to run {shorten(found)}"
                )
            if theirs == ours:
                return DAMAGED.of(
                    path,
                    f"belongs to run {shorten(found)}, {environment} to run {self.run_id!r}: one of them is of "
                    "another run",
                )
        owner = "no run" if found is None else f"run {shorten(found)}"
        return damage_of(path.name).of(path, f"belongs to {owner}, this folder holds run {self.run_id!r}")

    def _id_in(self, name: str) -> str | None:
        """Returns the id in a file of this folder; None if it says none, or cannot be read."""
        path = self.folder / name
        with contextlib.suppress(ZigguratError, OSError):
            if name == CONFIG_FILE:
                text = read_bytes(path, DAMAGED, limit=_CONFIG_BYTES).rpartition(_CONFIG_ID.encode())[2]
                return text.partition(b"\n")[0].decode("utf-8", "replace").strip()
            found = read_json_object(path, DAMAGED).get(_RUN_ID)
            return found if isinstance(found, str) else None
        return None


def _arrays_checksum(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Returns the checksum of arrays, whatever their order in a file."""
    return digest_of_parts(part for name in sorted(arrays) for part in (name.encode(), arrays[name]))


def read_environment(folder: Path) -> dict[str, Any]:
    """Returns the values in ``environment.json``, with an int ``run_version`` and a text ``run_id``.

    Raises:
        RunFolderError: it is missing, damaged, or of a format version that this ziggurat does not read.
    """
    path = folder / ENVIRONMENT_FILE
    try:
        values = read_json_object(path, DAMAGED)
    except FileNotFoundError:
        raise DAMAGED.of(path, "is missing") from None
    version = values.get("run_version")
    if version not in _READABLE_VERSIONS:
        raise RunFolderError(
            f"{folder}: run format {shorten(version)} (ziggurat {values.get('ziggurat')}), "
            f"this ziggurat {__version__} reads format {RUN_VERSION}",
            "install the ziggurat version above, or train again into another folder (--run)",
        )
    values = unsealed(values, path, DAMAGED, required=version > 1)
    if not isinstance(values.get(_RUN_ID), str):
        raise DAMAGED.of(path, f"has no {_RUN_ID}")
    return values


def check_line(line: bytes, where: str, damage: Damage, run_id: str | None, required: bool) -> dict[str, Any]:
    """Returns the values in a line that :meth:`RunFiles.line` made.

    Args:
        line: the line.
        where: its file and number, for messages.
        damage: the errors to raise.
        run_id: the id that it must have; None: any.
        required: whether it must have a checksum and an id.

    Raises:
        ZigguratError: of class ``damage.error``: it is damaged, or belongs to another run.
    """
    values = unsealed(as_object(parse_json(line, where, damage), where, damage), where, damage, required=required)
    found = values.pop(_RUN_ID, None)
    if run_id is not None and found != run_id and (required or found is not None):
        raise damage.of(where, f"belongs to run {shorten(found)}, this folder holds run {run_id!r}")
    return values
