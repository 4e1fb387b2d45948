"""Damaged and forged exports are refused with an error that names the file, and nothing in them is executed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.exporting.export_kit import EVERY_KIND, trained
from ziggurat.core.errors import DataError, ZigguratError
from ziggurat.core.sealed import SEAL, sealed
from ziggurat.exporting.export import export
from ziggurat.serving.artefact.manifest import MANIFEST_FILE, Manifest, StoredFile
from ziggurat.serving.model.scorer import Scorer
from ziggurat.verification.verify import kind_of, verify


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    return export(trained(folder, EVERY_KIND), folder / "out").folder


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "out"))


def refused(folder: Path, name: str) -> None:
    with pytest.raises(DataError) as error:
        Scorer.open(folder, check_tables=True)
        pytest.fail(f"{folder.name}: {name}")
    assert str(folder / name) in error.value.problem
    assert error.value.hint
    found = verify(folder)
    assert not found.whole
    assert any(name in problem.problem for problem in found.problems)


def test_a_whole_export_is_verified(out: Path) -> None:
    found = verify(out)
    assert (found.kind, found.whole, found.notes) == ("export", True, ())
    (out / "other").write_text("")
    assert verify(out).notes == (f"{out / 'other'}: does not belong to the export",)
    (out / MANIFEST_FILE).unlink()
    assert kind_of(out) == "export"
    with pytest.raises(DataError, match="no export"):
        Scorer.open(out)


def test_damage_of_every_file_is_named(whole: Path, tmp_path: Path) -> None:
    names = [path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()]
    assert not [name for name in names if name.endswith((".pkl", ".pt", ".pt2"))]
    for number, name in enumerate(sorted(names)):
        for kind, damage in DAMAGE.items():
            folder = Path(shutil.copytree(whole, tmp_path / f"{number} {kind}"))
            damage(folder / name)
            if name == MANIFEST_FILE and kind == "missing":
                continue
            refused(folder, name)
            shutil.rmtree(folder)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "flipped": _flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size - 2),  # the manifest ends in a line break
    "missing": lambda path: path.unlink(),
    "link": _link,
}


WRONG: list[Any] = [None, "x", -1, 2**70, 1e308, [], {}, [[]], True]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def forge(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads((folder / MANIFEST_FILE).read_text())
    change(values)
    (folder / MANIFEST_FILE).write_text(json.dumps(sealed(values)))


def test_a_forged_manifest_is_refused_or_harmless(out: Path) -> None:
    values = json.loads((out / MANIFEST_FILE).read_text())
    count = 0
    for number, path in enumerate(places(values)):
        if path == (SEAL,):
            continue
        for wrong in [..., *WRONG[number % 3 :: 3]]:
            forged = json.loads(json.dumps(values))
            place: Any = forged
            for key in path[:-1]:
                place = place[key]
            if wrong is ...:
                del place[path[-1]]
            else:
                place[path[-1]] = wrong
            (out / MANIFEST_FILE).write_text(json.dumps(sealed(forged)))
            try:
                Manifest.read(out)
            except ZigguratError:
                count += 1
    assert count > 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found["files"].update({"../../etc/passwd": _stored(1)}), "plain file name"),
        (lambda found: found["files"].update({"/etc/passwd": _stored(1)}), "plain file name"),
        (lambda found: found["tables"][0].update(file="../dense.json"), "does not hold"),
        (lambda found: found["tables"][0].update(rows=2**47), "does not hold"),
        (lambda found: _fewer_rows(found), "is encoded to .* ids, and table '.*' has 1 rows"),
        (lambda found: found["tables"][0].update(rows=2**62), "rows of"),
        (lambda found: found["tables"][0].update(dim=2**20), "rows of"),
        (lambda found: found["tables"][0].update(features=["nobody"]), "feature"),
        (lambda found: found["files"].pop("dense.json"), "lacks the file dense.json"),
        (lambda found: found["files"].update({"big": _stored(2**62)}), "big: is missing"),
        (lambda found: found.update(format_version=99), "has format version 99, this ziggurat reads"),
        (lambda found: found.update(batch_size=0), "batches without rows"),
    ],
)
def test_forgeries_of_the_manifest(out: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    forge(out, change)
    with pytest.raises(DataError, match=message):
        Scorer.open(out)


def _fewer_rows(found: dict[str, Any]) -> None:
    """Has the file of the first table be that of one row, so that its encoder makes ids that it lacks."""
    entry = found["tables"][0]
    entry["rows"] = 1


def _stored(size: int) -> dict[str, Any]:
    return {"bytes": size, "xxh3_128": "0" * 32, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("path", "forgery"),
    [
        ("target", "torch.ops.os.system.default"),
        ("target", "_operator.methodcaller"),
        ("target", "builtins.eval"),
        ("target", "torch.ops.aten.linear.default; import os"),
        ("target", "torch.hub.load"),
        ("expr_str", "__import__('os').system('touch executed')"),
        ("expr_str", "().__class__.__base__.__subclasses__()"),
        ("expr_str", "Symbol('s0', positive=open('executed', 'w'))"),
        ("expr_str", "lambda: 1"),
        ("expr_str", ["s0"]),
    ],
)
def test_a_forged_graph_is_refused_before_pytorch_sees_it(
    out: Path, path: str, forgery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(out.parent)
    graph = json.loads((out / "dense.json").read_text())
    assert _replace(graph, path, forgery)
    (out / "dense.json").write_text(json.dumps(graph))
    forge(out, lambda found: found["files"].update({"dense.json": _of(out / "dense.json")}))
    with pytest.raises(DataError, match=r"dense\.json: (names the operator|holds .* in place of a size)"):
        Scorer.open(out)
    assert not (out.parent / "executed").exists()


def _of(path: Path) -> dict[str, Any]:
    stored = StoredFile.of(path)
    return {"bytes": stored.bytes, "xxh3_128": stored.xxh3_128, "sha256": stored.sha256}


def _replace(value: Any, key: str, by: Any) -> bool:
    """Replaces the first operator of a node, or the first expression."""
    if isinstance(value, dict):
        if key in value and (key != "target" or "inputs" in value):
            value[key] = by
            return True
        return any(_replace(each, key, by) for each in value.values())
    return isinstance(value, list) and any(_replace(each, key, by) for each in value)


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", "[" * 200 + "]" * 200, '{"a": 1, "a": 2}'])
def test_a_graph_that_is_none_is_refused(out: Path, content: str) -> None:
    (out / "dense.json").write_text(content)
    forge(out, lambda found: found["files"].update({"dense.json": _of(out / "dense.json")}))
    with pytest.raises(DataError, match=r"dense\.json"):
        Scorer.open(out)
