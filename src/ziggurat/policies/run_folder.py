"""The folder of a run of policies, and what is in it.

| Entry | What it holds |
|---|---|
| ``policies.json`` | the config, every default written out |
| ``state/`` | from what training goes on: the agent, its replay buffer, the returns of all episodes |
| ``snapshots/`` | for each cycle the agent at its end, with its optimizers' states |
| ``selection.json`` | the chosen members and rule, with returns and divergences of all snapshots |
| ``evaluation.json`` | returns in episodes that decided nothing |
| ``film.json`` | frames of an episode |
| ``policies.html`` | the page, once reported |

Everything carries checksums, and nothing of it is code: arrays are safetensors, the rest is JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy.typing as npt
from safetensors.numpy import save_file

from ziggurat.core.config import key_and_value, parse_config, set_by_path
from ziggurat.core.digests import FileChecksum, load_tensors
from ziggurat.core.errors import ConfigError, RunFolderError, shorten
from ziggurat.core.files import atomic_file, atomic_folder, put_back
from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.core.untrusted import Damage, read_yaml
from ziggurat.policies.config import PoliciesConfig, differences

VERSION = 1
"""Version of all files of the folder."""
MARKER = "policies.json"
SELECTION_FILE = "selection.json"
EVALUATION_FILE = "evaluation.json"
PAGE_FILE = "policies.html"
FILM_FILE = "film.json"
_STATE, _SNAPSHOTS = "state", "snapshots"
_AGENT, _REPLAY, _RECORD = "agent.safetensors", "replay.safetensors", "state.json"
_SNAPSHOT = re.compile(r"cycle-([0-9]{3,})\.json")
DAMAGE = Damage(RunFolderError, "restore the folder from a copy, or train again in another one with --run")
_NO_YAML = Damage(ConfigError, "see docs/policies.md for what a config of policies holds")

Arrays = Mapping[str, npt.NDArray[Any]]
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode of the training.

    Attributes:
        step: steps of all environments when it ended.
        total: its return, in the units of the task.
        length: its steps.
    """

    step: int
    total: float
    length: int


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """How far training has come.

    Attributes:
        done: save points that have been reached.
        steps: steps of all environments.
        seconds: wall-clock of the processes that trained, without what was lost.
        episodes: all episodes that ended.
        agent, replay: checksums of the files beside it; without a replay buffer, ``replay`` is None.
    """

    done: int
    steps: int
    seconds: float
    episodes: tuple[Episode, ...]
    agent: FileChecksum
    replay: FileChecksum | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot.

    Attributes:
        cycle: the cycle at whose end it was taken, from 1.
        steps: steps of all environments by then.
        algorithm: the name of the algorithm.
        arrays: checksum of its arrays.
    """

    cycle: int
    steps: int
    algorithm: str
    arrays: FileChecksum


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> PoliciesConfig:
    """Reads a config of policies from a YAML file.

    Args:
        path: the file.
        overrides: each ``a.b=c``, as after ``--set``.

    Raises:
        ConfigError: there is no such file, it is not YAML, or keys or values are not allowed.
    """
    path = Path(path)
    try:
        values = read_yaml(path, _NO_YAML, follow=True)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file", _NO_YAML.hint) from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: expected sections such as task and training, received {shorten(values)}", _NO_YAML.hint
        )
    return overridden(cast("dict[str, Any]", values), overrides, str(path))


def overridden(values: dict[str, Any], overrides: Sequence[str], source: str) -> PoliciesConfig:
    """Returns the config of plain values, some of which are replaced by ``a.b=c``."""
    places = {set_by_path(values, *key_and_value(each)) for each in overrides}
    return parse_config(PoliciesConfig, values, source, places)


def write_config(folder: Path, config: PoliciesConfig) -> None:
    """Writes the config, which makes the folder a run of policies."""
    write_sealed_json(folder / MARKER, {"version": VERSION, "config": config.model_dump(mode="json")})


def read_config(folder: Path) -> PoliciesConfig:
    """Returns the config of a run.

    Raises:
        RunFolderError: the folder is no run of policies, or is damaged.
    """
    path = folder / MARKER
    if not path.is_file():
        raise RunFolderError(
            f"{folder}: is no run of policies", "name a folder that `ziggurat policies train CONFIG` has written"
        )
    values = _read(path, f"{folder}: is no run of policies")
    config = values.get("config")
    if not isinstance(config, dict):
        raise DAMAGE.of(path, f"config: received {shorten(config)}")
    return parse_config(PoliciesConfig, cast("dict[str, Any]", config), str(path))


def check_free(folder: Path) -> None:
    """Refuses a folder that holds something else than a run of policies.

    Raises:
        RunFolderError: it is a file, or has visible entries and no ``policies.json``.
    """
    if folder.is_file():
        raise RunFolderError(f"{folder}: is a file", "name another folder with --run")
    if folder.is_dir() and not (folder / MARKER).is_file():
        others = [each.name for each in folder.iterdir() if not each.name.startswith(".") and each.name != "lock"]
        if others:
            raise RunFolderError(
                f"{folder}: is not empty and holds no run of policies", "name another folder with --run"
            )


def check_same(folder: Path, known: PoliciesConfig, config: PoliciesConfig, sections: Sequence[str]) -> None:
    """Refuses a config that differs from that of a run in one of these sections.

    Raises:
        RunFolderError: it does.
    """
    for name, theirs, mine in differences(known, config, sections):
        raise RunFolderError(
            f"{folder}: was trained with {name} {theirs!r}, the config has {mine!r}",
            "name another folder with --run, or restore the config",
        )


def write_state(folder: Path, agent: Arrays, replay: Arrays, done: int, steps: int, seconds: float,
                episodes: Sequence[Episode]) -> None:  # fmt: skip
    """Writes the state of a training; the one before is replaced when this one is complete."""
    with atomic_folder(folder / _STATE) as temporary:
        save_file(dict(agent), temporary / _AGENT)
        if replay:
            save_file(dict(replay), temporary / _REPLAY)
        record = TrainingRecord(
            done, steps, seconds, tuple(episodes), FileChecksum.of(temporary / _AGENT, DAMAGE),
            FileChecksum.of(temporary / _REPLAY, DAMAGE) if replay else None,
        )  # fmt: skip
        write_sealed_json(temporary / _RECORD, {"version": VERSION, **asdict(record)})


def read_record(folder: Path) -> TrainingRecord | None:
    """Returns how far training has come, or None if no state was saved yet.

    Raises:
        RunFolderError: it is damaged.
    """
    put_back(folder, _STATE)
    path = folder / _STATE / _RECORD
    if not path.parent.is_dir():
        return None
    return declared(TrainingRecord, _read(path, f"{path}: is missing"), path, DAMAGE)


def read_state(folder: Path, record: TrainingRecord) -> tuple[Arrays, Arrays]:
    """Returns the arrays of the agent and those of its replay buffer, which may be none.

    Raises:
        RunFolderError: they are damaged.
    """
    state = folder / _STATE
    agent = load_tensors(state / _AGENT, record.agent, DAMAGE)
    return agent, load_tensors(state / _REPLAY, record.replay, DAMAGE) if record.replay is not None else {}


def state_path(folder: Path) -> Path:
    """Returns the file of the agent that training goes on from."""
    return folder / _STATE / _AGENT


def snapshot_path(folder: Path, cycle: int) -> Path:
    """Returns the file of the arrays of a snapshot; its record is beside it."""
    return folder / _SNAPSHOTS / f"cycle-{cycle:03}.safetensors"


def write_snapshot(folder: Path, cycle: int, steps: int, algorithm: str, arrays: Arrays) -> None:
    """Writes the snapshot of a cycle; it exists once its record does."""
    path = snapshot_path(folder, cycle)
    with atomic_file(path) as temporary:
        save_file(dict(arrays), temporary)
    record = SnapshotRecord(cycle, steps, algorithm, FileChecksum.of(path, DAMAGE))
    write_sealed_json(path.with_suffix(".json"), {"version": VERSION, **asdict(record)})


def read_snapshots(folder: Path) -> list[SnapshotRecord]:
    """Returns the snapshots of a run, by cycle.

    Raises:
        RunFolderError: there is none, or a record is damaged.
    """
    snapshots = folder / _SNAPSHOTS
    names = sorted(each.name for each in snapshots.iterdir()) if snapshots.is_dir() else []
    found: list[SnapshotRecord] = []
    for name in names:
        if (match := _SNAPSHOT.fullmatch(name)) is not None:
            path = snapshots / name
            record = declared(SnapshotRecord, _read(path, f"{path}: is missing"), path, DAMAGE)
            if record.cycle != int(match[1]):
                raise DAMAGE.of(path, f"is the snapshot of cycle {record.cycle}")
            found.append(record)
    found.sort(key=lambda each: each.cycle)
    if not found:
        raise RunFolderError(f"{folder}: has no snapshots yet", "train first: ziggurat policies train CONFIG")
    return found


def read_snapshot(folder: Path, record: SnapshotRecord) -> Arrays:
    """Returns the arrays of a snapshot.

    Raises:
        RunFolderError: they are damaged.
    """
    return load_tensors(snapshot_path(folder, record.cycle), record.arrays, DAMAGE)


def write_record(folder: Path, name: str, record: Any) -> None:
    """Writes a dataclass as sealed JSON."""
    write_sealed_json(folder / name, {"version": VERSION, **asdict(record)})


def read_result(folder: Path, name: str, kind: type[Record]) -> Record | None:
    """Returns what :func:`write_record` wrote, or None if there is no such file.

    Raises:
        RunFolderError: it is damaged.
    """
    path = folder / name
    if not path.exists():
        return None
    return declared(kind, _read(path, f"{path}: is missing"), path, DAMAGE)


def _read(path: Path, missing: str) -> dict[str, Any]:
    try:
        values = read_sealed_json(path, DAMAGE)
    except FileNotFoundError:
        raise RunFolderError(missing, DAMAGE.hint) from None
    version = values.pop("version", None)
    if version != VERSION:
        raise DAMAGE.of(path, f"is of version {shorten(version)}; this ziggurat reads {VERSION}")
    return values
