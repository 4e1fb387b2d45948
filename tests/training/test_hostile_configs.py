"""A config from somebody else is read within bounds: no endless file, no bomb, no name that leads elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.checkpoint.hostile_kit import bounded
from tests.training.conftest import config_values
from ziggurat.core.errors import ConfigError
from ziggurat.training.experiment import Experiment, load_experiment
from ziggurat.training.scaling.model_sizes import listed_experiments

MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{number}: &a{number} {{<<: [{', '.join([f'*a{number - 1}'] * 9)}], k{number}: 1}}\n" for number in range(1, 9)
)
ALIASES = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS: dict[str, tuple[bytes, str]] = {
    "nested lists": (b"[" * 5000, "nested deeper than 100 levels"),
    "nested sections": (b"{a: " * 5000, "nested deeper than 100 levels"),
    "a section that contains itself": (b"a: &a {b: *a}", "nested deeper than 100 levels"),
    "aliases of aliases": (ALIASES.encode(), "more than 2,000,000 values"),
    "merges of merges": (MERGES.encode(), "keys are merged"),
    "a number of 10^5 digits": (b"a: 0x" + b"f" * 100_000, "more than 400 characters"),
    "an object of Python": (b"!!python/object/apply:os.system [ls]", "not valid YAML"),
    "no UTF-8": (b"\xff\xfe\x00", "not valid YAML"),
    "two documents": (b"a: 1\n---\nb: 2", "not valid YAML"),
    "half a character": (b'name: "\\ud800"', "half a character"),
    "a list": (b"[1, 2]", "expected sections"),
    "a key that is a number": (b"data: {1: 2}", "data: received the key 1"),
    "a key that is a list": (b"data: {? [a, b] : 2}", "received the key ('a', 'b')"),
    "a NUL in a folder": (b'data: {folder: "a\\0b"}', "data.folder: received 'a\\x00b', which has a NUL"),
    "many keys": ("\n".join(f"k{number}: 1" for number in range(3000)).encode(), "and 2903 more"),
    "a name that leads elsewhere": (b"name: ../../x", "name: Input should match"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_text_that_is_no_plain_config_is_named(tmp_path: Path, case: str) -> None:
    data, expected = TEXTS[case]
    path = tmp_path / "exp.yaml"
    path.write_bytes(data)
    with bounded(), pytest.raises(ConfigError) as told:
        load_experiment(path)
    assert told.value.problem.startswith(f"{path}: ")
    assert expected in told.value.problem


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10**12)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (os.mkfifo, "is a named pipe, not a file"),
        (Path.mkdir, "is a folder, not a file"),
        (sparse, "has 1,000,000,000,000 bytes; at most 4,194,304 are read"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
        (lambda path: path.symlink_to(path), "cannot be opened"),
    ],
)
def test_a_config_that_is_no_file_is_named(tmp_path: Path, make: Callable[[Path], Any], expected: str) -> None:
    path = tmp_path / "exp.yaml"
    make(path)
    with bounded(), pytest.raises(ConfigError) as told:
        load_experiment(path)
    assert f"{path}: {expected}" in told.value.problem
    experiment = Experiment.model_validate(config_values(tmp_path))
    with bounded(), pytest.raises(ConfigError, match=r"exp\.yaml: "):
        listed_experiments(experiment, path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "a\tb"}, r"name: received 'a\\tb', which has a control character"),
        ({"table": "a\nb"}, r"table: received 'a\\nb', which has a control character"),
        ({"name": "a\u202eb"}, r"name: received 'a\\u202eb', which has a control character or an invisible one"),
        ({"table": "a\u200bb"}, r"table: received 'a\\u200bb', which has a control character or an invisible one"),
        ({"table": "../x"}, "table: String should match pattern|table: Input should match"),
        ({"name": "é" * 101}, "name: received .* longer than 200 bytes"),
    ],
)
def test_names_that_become_file_names_are_plain(tmp_path: Path, changes: dict[str, str], expected: str) -> None:
    values = config_values(tmp_path)
    values["features"][0].update(changes)
    with (tmp_path / "exp.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(values, file)
    with pytest.raises(ConfigError, match=expected):
        load_experiment(tmp_path / "exp.yaml")


@pytest.mark.parametrize("text", ["[" * 3000, "!!python/name:os.system", "&a [*a]", "0x" + "f" * 1000])
def test_an_override_has_the_same_bounds(tmp_path: Path, text: str) -> None:
    with (tmp_path / "exp.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(config_values(tmp_path), file)
    with bounded(), pytest.raises(ConfigError, match=r"^--set '?training\.epochs"):
        load_experiment(tmp_path / "exp.yaml", [f"training.epochs={text}"])
