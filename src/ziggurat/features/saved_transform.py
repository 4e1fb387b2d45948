"""A fitted transform on disk: ``transform.json`` and the files of its encoders, with checksums.

``transform.json`` is written last. Since version 2 it is sealed and has the size and checksum of every other file, so
that its own checksum stands for the whole folder: prepared datasets and runs record that one. Version 1, without
checksums, is still read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from ziggurat.core.config import Config, parse_config
from ziggurat.core.config_places import IMPORT_KEY
from ziggurat.core.digests import FileChecksum
from ziggurat.core.errors import ConfigError, DataError, shorten
from ziggurat.core.files import new_file, write_json
from ziggurat.core.sealed import SEAL, declared, sealed, unsealed
from ziggurat.core.untrusted import read_json_object
from ziggurat.features.config import FeatureConfig, NumericFeature, Targets
from ziggurat.features.encoders.category_files import category_file_name, category_files, load_category
from ziggurat.features.encoders.category_numbers import CategoryMap
from ziggurat.features.encoders.encoder import Encoder
from ziggurat.features.encoders.files import (
    encoder_file_names,
    encoder_files,
    encoder_settings,
    load_encoder,
    missing_file,
)
from ziggurat.features.inputs.categories import encoded_features
from ziggurat.features.inputs.of_features import inputs_of
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.tables import resolve_tables
from ziggurat.features.versions import DAMAGED, check_version, saved_integer
from ziggurat.objectives.label_figures import LabelFigures

TRANSFORM_VERSION = 2
_READABLE_VERSIONS = (1, 2)
TRANSFORM_FILE = "transform.json"


class _Configs(Config):
    """The configs in ``transform.json``."""

    features: tuple[FeatureConfig, ...]
    targets: Targets


@dataclass(frozen=True, slots=True)
class _Stored:
    """The content of ``transform.json``."""

    features: tuple[dict[str, Any], ...]
    targets: dict[str, Any]
    chains: dict[str, dict[str, Any]]
    files: dict[str, FileChecksum] | None = None
    labels: dict[str, LabelFigures] = field(default_factory=dict[str, LabelFigures])
    categories: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


@dataclass(frozen=True, slots=True)
class SavedTransform:
    """An opened ``transform.json``.

    Attributes:
        folder: the folder of the transform.
        features: the features that it was fitted for.
        targets: the targets.
        chains: the chains of the numeric features.
        files: the other files of the folder, with their checksums; None for version 1, which has none.
        checksum: the checksum of the whole folder; None for version 1.
        labels: figures of the labels' training rows; empty if an earlier ziggurat fitted it.
        categories: the figures of the encoded features' maps, the rest of which is in files.
    """

    folder: Path
    features: tuple[FeatureConfig, ...]
    targets: Targets
    chains: dict[str, NumericChain]
    files: Mapping[str, FileChecksum] | None
    checksum: str | None
    labels: Mapping[str, LabelFigures]
    categories: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @classmethod
    def open(cls, folder: Path, checksum: str | None = None) -> Self:
        """Reads and checks ``transform.json``, but no other file.

        Args:
            folder: the folder of the transform.
            checksum: the checksum that it must have, if that was recorded.

        Raises:
            DataError: it is missing, damaged, another than the recorded one, or of another version.
        """
        path = folder / TRANSFORM_FILE
        if folder.is_symlink():
            raise DAMAGED.of(folder, "is a symbolic link, which is not followed")
        try:
            values = read_json_object(path, DAMAGED)
        except FileNotFoundError:
            raise missing_file(path) from None
        version = values.get("version")
        check_version(str(path), version, *_READABLE_VERSIONS)
        has_checksums = version != 1
        stored = declared(_Stored, unsealed(values, path, DAMAGED, required=has_checksums), path, DAMAGED)
        configs = _parsed(stored, path)
        if has_checksums:
            _check_names(stored, configs, path)
            if checksum not in {None, values[SEAL]}:
                raise DAMAGED.of(path, "belongs to another transform: its checksum is not the recorded one")
        elif checksum not in {None, _checksum(folder, values, configs)}:
            raise DAMAGED.of(folder, "a file is damaged, or belongs to another transform: the checksum is another")
        chains = _chains(stored, configs, path)
        files = stored.files if has_checksums else None
        seal = values[SEAL] if has_checksums else None
        return cls(folder, configs.features, configs.targets, chains, files, seal, stored.labels, stored.categories)

    def encoder(self, table: str) -> Encoder:
        """Loads the encoder of a table.

        Raises:
            DataError: a file is missing, damaged or of another version, or the encoder's class cannot be imported.
        """
        return load_encoder(self.folder, table, self.files)

    def category_maps(self) -> dict[str, CategoryMap]:
        """Loads the maps of the encoded features.

        Raises:
            DataError: a file is missing, damaged or of another version.
        """
        files = self.files or {}
        return {
            each.name: load_category(self.folder, each.name, each.encoding, self.categories[each.name], files)
            for each in encoded_features(self.features)
        }

    def tables(self) -> list[str]:
        """Returns the names of the tables that have an encoder."""
        return list(resolve_tables(self.features))

    def map_bytes(self) -> dict[str, int]:
        """Returns the bytes of the arrays of each encoder that makes a table smaller; none of the others.

        Raises:
            DataError: a file is missing or damaged.
        """
        found: dict[str, int] = {}
        for table in self.tables():
            settings = encoder_settings(self.folder, table, self.files)
            if "map_bytes" in settings:
                found[table] = saved_integer(settings, "map_bytes", 0)
        return found

    def check_files(self) -> int:
        """Compares every other file with its checksum, where there is one; returns the bytes of all.

        Raises:
            DataError: one is missing or damaged.
        """
        for name, recorded in (self.files or {}).items():
            recorded.check(self.folder / name, DAMAGED)
        return sum(each.bytes for each in (self.files or {}).values())


def save_transform(
    folder: Path,
    features: Sequence[FeatureConfig],
    targets: Targets,
    chains: Mapping[str, NumericChain],
    labels: Mapping[str, LabelFigures],
    categories: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> str:
    """Writes ``transform.json`` into a folder in which the encoders are saved already; returns the checksum of all.

    Args:
        folder: the folder.
        features: the features of the config.
        targets: the targets.
        chains: the chains of the numeric features.
        labels: figures of the labels' training rows.
        categories: the figures of the encoded features' maps, whose arrays are saved already.
    """
    configs = _Configs(features=tuple(features), targets=targets.as_prepared)
    fitted = {
        "chains": {name: chain.to_json() for name, chain in chains.items()},
        "labels": {name: figures.to_json() for name, figures in labels.items()},
        **({"categories": dict(categories)} if categories else {}),
    }
    values = _content(folder, {**configs.model_dump(mode="json"), **fitted}, configs)
    write_json(folder / TRANSFORM_FILE, values)
    return values[SEAL]


def transform_checksum(folder: Path, recorded: str | None = None) -> str:
    """Returns the checksum of a saved transform. For one of version 1, which does not store it, all files are read.

    Args:
        folder: its folder.
        recorded: the checksum that it must have, if that was recorded.

    Raises:
        DataError: a file is missing or damaged, or the checksum is another.
    """
    saved = SavedTransform.open(folder, recorded)
    if saved.checksum is not None:
        return saved.checksum
    return _checksum(folder, read_json_object(folder / TRANSFORM_FILE, DAMAGED), _configs_of(saved))


def copy_transform(source: Path, target: Path, checksum: str | None = None) -> str:
    """Copies a saved transform, each file of which is compared with its checksum; the copy always has checksums. The
    caller flushes it to the device.

    Args:
        source: its folder.
        target: an existing folder, which is empty.
        checksum: the checksum that it must have, if that was recorded.

    Returns:
        The checksum of the copy, which is that of the source.

    Raises:
        DataError: a file of the source is missing or damaged, or the disk is full.
    """
    saved = SavedTransform.open(source, checksum)
    files = encoder_files(source, saved.tables()) if saved.files is None else saved.files
    for name, recorded in files.items():
        data = recorded.read(source / name, DAMAGED)
        with new_file(target / name) as path:
            path.write_bytes(data)
    values = _content(target, read_json_object(source / TRANSFORM_FILE, DAMAGED), _configs_of(saved))
    if saved.checksum not in {None, values[SEAL]}:
        raise DAMAGED.of(source / TRANSFORM_FILE, "changed while the transform was copied")
    write_json(target / TRANSFORM_FILE, values)
    return values[SEAL]


def _content(folder: Path, values: Mapping[str, Any], configs: _Configs) -> dict[str, Any]:
    """Returns ``transform.json`` of the current version for these values and the encoders in ``folder``."""
    encoded = (each.name for each in encoded_features(configs.features))
    files = {**encoder_files(folder, list(resolve_tables(configs.features))), **category_files(folder, encoded)}
    content = {key: values[key] for key in ("features", "targets", "chains", "labels", "categories") if key in values}
    return sealed(
        {"version": TRANSFORM_VERSION, **content, "files": {name: asdict(each) for name, each in files.items()}}
    )


def _checksum(folder: Path, values: Mapping[str, Any], configs: _Configs) -> str:
    return _content(folder, values, configs)[SEAL]


def _configs_of(saved: SavedTransform) -> _Configs:
    return _Configs(features=saved.features, targets=saved.targets)


def _check_names(stored: _Stored, configs: _Configs, path: Path) -> None:
    """Checks that ``transform.json`` has checksums of the files of its tables' encoders, and of no others.

    Raises:
        DataError: it has not.
    """
    tables, files = resolve_tables(configs.features), stored.files or {}
    encoded = [each.name for each in encoded_features(configs.features)]
    allowed = {name for table in tables for name in encoder_file_names(table)} | set(map(category_file_name, encoded))
    if sorted(stored.categories) != sorted(encoded):
        raise DAMAGED.of(path, f"has maps for {sorted(stored.categories)}, its encoded features are {sorted(encoded)}")
    for name in files:
        if name not in allowed:
            raise DAMAGED.of(path, f"has a checksum of {shorten(name)}, which is no file of an encoder here")
    for name in (*(encoder_file_names(table)[0] for table in tables), *map(category_file_name, encoded)):
        if name not in files:
            raise DAMAGED.of(path, f"has no checksum of {name}")


def _parsed(stored: _Stored, path: Path) -> _Configs:
    """Returns the configs in ``transform.json``.

    Raises:
        DataError: they are no configs of features and targets, or contradict each other.
    """
    try:
        values = {"features": list(stored.features), "targets": stored.targets}
        configs = parse_config(_Configs, values, str(path))
        resolve_tables(configs.features)
    except ConfigError as error:
        problem = error.problem if error.problem.startswith(str(path)) else f"{path}: {error.problem}"
        raise DataError(problem, _hint(stored)) from None
    return configs


def _hint(stored: _Stored) -> str:
    """Returns what to do about configs that cannot be read: the code of parts from outside may have changed."""
    sections = (value for feature in stored.features for value in feature.values() if isinstance(value, dict))
    parts = list(dict.fromkeys(str(section[IMPORT_KEY]) for section in sections if IMPORT_KEY in section))
    if not parts:
        return DAMAGED.hint
    return (
        f"it was fitted with {', '.join(parts)}: let each module have the class under that name (`OldName = NewName` "
        "keeps one) with the keys of that time, and let the config name it so; or prepare and train again"
    )


def _chains(stored: _Stored, configs: _Configs, path: Path) -> dict[str, NumericChain]:
    """Returns the chains in ``transform.json``.

    Raises:
        DataError: there is not one for each numeric feature, or one is not as it was fitted.
    """
    numeric = {feature.name: feature for feature in inputs_of(configs.features) if isinstance(feature, NumericFeature)}
    if numeric.keys() != stored.chains.keys():
        raise DAMAGED.of(path, f"has chains for {sorted(stored.chains)}, its numeric features are {sorted(numeric)}")
    chains: dict[str, NumericChain] = {}
    for name, values in stored.chains.items():
        try:
            chains[name] = NumericChain.from_json(values)
        except DataError as error:
            raise DataError(f"{path}: feature {name!r}: {error.problem}", error.hint or DAMAGED.hint) from None
        if (chains[name].table_rows is not None) is not numeric[name].bucketised:
            raise DAMAGED.of(path, f"feature {name!r}: its chain is not that of its config")
    return chains
