"""Any damage to a sealed file that changes its content is noticed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ziggurat.core.digests import digest, digest_of_file, digest_of_parts
from ziggurat.core.errors import RunFolderError
from ziggurat.core.sealed import (
    SEAL,
    read_sealed_json,
    read_sealed_text,
    sealed,
    sealed_line,
    unsealed,
    write_sealed_json,
    write_sealed_text,
)
from ziggurat.core.untrusted import Damage

DAMAGE = Damage(RunFolderError, "train again")
VALUES = {"name": "größe", "figures": [1.5, math.inf, 2**60], "nested": {"7": None, "a": True}}


def test_sealed_json_is_read_back(tmp_path: Path) -> None:
    write_sealed_json(tmp_path / "a.json", VALUES)
    assert read_sealed_json(tmp_path / "a.json", DAMAGE) == VALUES
    assert unsealed(json.loads(sealed_line(VALUES)), "line 1", DAMAGE) == VALUES


def test_keys_that_json_makes_text_do_not_break_the_seal(tmp_path: Path) -> None:
    write_sealed_json(tmp_path / "a.json", {"ranks": {10: "a", 9: "b"}, "pair": (1, 2)})
    assert read_sealed_json(tmp_path / "a.json", DAMAGE) == {"ranks": {"10": "a", "9": "b"}, "pair": [1, 2]}


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_sealed_json(path, VALUES)
    whole = path.read_bytes()
    named = 0
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found, problem = read_sealed_json(path, DAMAGE), f"{path}: "
        except RunFolderError as error:
            found, problem = VALUES, error.problem
            named += 1
        assert found == VALUES
        assert problem.startswith(f"{path}: ")
    assert named > 6 * len(whole)


def test_every_flipped_bit_of_sealed_text_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_sealed_text(path, "name: shop\ntraining: {epochs: 3}")
    whole = path.read_bytes()
    assert read_sealed_text(path, DAMAGE) == b"name: shop\ntraining: {epochs: 3}\n"
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(RunFolderError, match=r"config\.yaml"):
            read_sealed_text(path, DAMAGE)


def test_files_of_versions_without_checksums_are_read_where_the_caller_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "a.yaml").write_text("a: 1\n")
    assert read_sealed_json(tmp_path / "a.json", DAMAGE, required=False) == {"a": 1}
    assert read_sealed_text(tmp_path / "a.yaml", DAMAGE, required=False) == b"a: 1\n"
    with pytest.raises(RunFolderError, match="has no checksum"):
        read_sealed_json(tmp_path / "a.json", DAMAGE)
    with pytest.raises(RunFolderError, match="has no checksum"):
        read_sealed_text(tmp_path / "a.yaml", DAMAGE)


def test_a_seal_does_not_depend_on_spaces_or_the_order_of_keys() -> None:
    assert sealed({"a": 1, "b": 2})[SEAL] == sealed({"b": 2, "a": 1})[SEAL]
    assert sealed({"a": 1})[SEAL] != sealed({"a": 2})[SEAL]


def test_digests_are_xxh3(tmp_path: Path) -> None:
    assert digest(b"") == "99aa06d3014798d86001c324468d497f"  # of the empty string, XXH3 128 bits, in the specification
    (tmp_path / "f").write_bytes(b"ab" * 5_000_000)
    assert digest_of_file(tmp_path / "f") == digest(b"ab" * 5_000_000)
    assert digest_of_parts([b"a", b"bc"]) != digest_of_parts([b"ab", b"c"])
