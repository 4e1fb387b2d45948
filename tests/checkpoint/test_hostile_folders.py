"""A run folder from somebody else: nothing outside of it is read, written or deleted, and errors name their cause."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_kit import OTHER, RUN, STEPS, bounded, replace_file, rows_file, sign, step_folder, tree, use, write_run
from inspection_kit import add_legacy_checkpoint
from safetensors.torch import load_file, save

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.inspect.pruning import prune
from ziggurat.checkpoint.store.claim import claimed
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import locked_folder

Harm = Callable[[Path, Path], Any]
"""Does harm to a run folder, given a folder outside of it."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    write_run(folder / "run")
    write_run(folder / "outside" / "other", OTHER)
    (folder / "outside" / "secret.json").write_text('{"step": 1, "metric": "auc", "value": 0.5}')
    (folder / "outside" / "secret.safetensors").write_bytes(save({"w": torch.ones(3)}))
    return folder


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "it", symlinks=True)
    return tmp_path / "it" / "run"


@pytest.fixture
def outside(run: Path) -> Path:
    return run.parent / "outside"


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def manifest(run: Path, step: int = 3) -> Path:
    return step_folder(run, step) / "manifest.json"


def signed(change: Callable[[dict[str, Any]], Any], step: int = 3) -> Harm:
    return lambda run, outside: sign(manifest(run, step), change)


def set_at(*keys: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    """Returns what sets a value under a path of keys."""

    def change(values: Any) -> None:
        for key in keys[:-1]:
            values = values[key]
        values[keys[-1]] = value

    return change


def rows_entry(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the first file of a manifest that has rows."""
    return next(each for each in values["files"] if each["blocks"])


def block(**values: Any) -> Harm:
    return signed(lambda manifest: rows_entry(manifest)["blocks"][0].update(values))


def table(name: str, **values: Any) -> Harm:
    def change(manifest: dict[str, Any]) -> None:
        manifest["tables"][name].update(values)

    return signed(change)


def sparse(path: Path) -> None:
    path.unlink()
    path.touch()
    os.truncate(path, 10**12)


def turn_into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def text(name: str, content: str | bytes) -> Harm:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda run, outside: (run / name).write_bytes(data)


MANIFESTS: dict[str, tuple[Harm, str]] = {
    "an absolute file name": (
        signed(lambda m: rows_entry(m).update(name="/etc/passwd")),
        "names the file '/etc/passwd'",
    ),
    "a file name above": (signed(lambda m: rows_entry(m).update(name="../../x")), "names the file '../../x'"),
    "the name of a device": (signed(lambda m: rows_entry(m).update(name="/dev/zero")), "names the file '/dev/zero'"),
    "the manifest's own name": (
        signed(lambda m: rows_entry(m).update(name="manifest.json")),
        "names the manifest itself",
    ),
    "a name with a line end": (signed(lambda m: rows_entry(m).update(name="a\nb")), "names the file 'a\\nb'"),
    "a name that is a number": (signed(lambda m: rows_entry(m).update(name=3)), "name: Input should be a valid string"),
    "a file of 10^12 bytes": (
        signed(lambda m: rows_entry(m).update(bytes=10**12)),
        "bytes, and 1,000,000,000,000 were",
    ),
    "a file of -1 bytes": (signed(lambda m: rows_entry(m).update(bytes=-1)), "greater than or equal to 0"),
    "a block of 10^12 rows": (block(rows=10**12), "its blocks need"),
    "ids beyond the table": (block(high=10**9), "are not within"),
    "ids below 0": (block(low=-5), "greater than or equal to 0"),
    "a gapless block of other ids": (block(first=0, low=0, rows=2, high=9), "do not end at 9"),
    "columns beyond the table": (block(columns=[5, 10**9]), "columns from 5 on are not within"),
    "a block of no columns": (block(columns=[0, 0]), "0 columns from 0 on"),
    "an unknown table": (block(table="nobody"), "unknown table 'nobody'"),
    "an unknown state": (block(bits={"weight": 32, "spy": 32}), "no state 'spy'"),
    "5 bits": (block(bits={"weight": 5}), "bits.weight"),
    "a table of 10^12 rows": (table("item", rows=10**12), "has other tables or another kind than"),
    "a table of 10^9 columns": (table("item", dim=10**9), "has other tables or another kind than"),
    "a full table of 10^12 rows": (
        signed(lambda m: m["tables"]["item"].update(rows=10**12), 1),
        "numbers of table 'item', which has 7,000,000,000,000",
    ),
    "a state of 10^12 columns": (
        signed(lambda m: m["tables"]["item"]["states"].update(mean=10**12), 1),
        "state 'mean' of table 'item', which has",
    ),
    "a state that is in no file": (
        signed(lambda m: m["tables"]["item"]["states"].update(more=10**6), 1),
        "its files have 0 numbers of state 'more'",
    ),
    "a checkpoint that needs itself": (signed(lambda m: m["needs"].append({"step": 3, "id": "x"})), "cannot need"),
    "a checkpoint that needs a later one": (signed(lambda m: m["needs"].append({"step": 9, "id": "x"})), "cannot need"),
    "a full one that needs another": (signed(set_at("kind", value="full")), "a full checkpoint of step 3 cannot need"),
    "a delta that needs none": (signed(set_at("needs", value=[])), "a delta checkpoint of step 3 cannot need"),
    "a file listed twice": (signed(lambda m: m["files"].append(m["files"][0])), "lists the file 'rank-"),
    "no files of a full one": (signed(lambda m: m["files"].pop(), 1), "its files have 0 numbers of table"),
    "no ranks": (signed(set_at("world_size", value=0)), "world_size: Input should be greater than or equal to 1"),
    "7 bits of all rows": (signed(set_at("bits", value=7)), "bits: Input should be 2, 3, 4, 8, 16 or 32"),
    "a step of 3.0": (signed(set_at("step", value=3.0)), "step: Input should be a valid integer"),
    "another step": (signed(set_at("step", value=7)), "is of step 7"),
    "a step of 31 digits": (signed(set_at("step", value=10**30)), "step: Input should be less than"),
    **{
        f"no {key}": (signed(lambda m, key=key: m.pop(key)), f"{key}: Field required")
        for key in ("id", "kind", "step", "needs", "policy", "tables", "files", "state", "versions")
    },
    **{
        f"a list as {key}": (signed(set_at(key, value=[[3]])), f"{key}")
        for key in ("id", "kind", "step", "needs", "tables", "state", "versions", "plan", "config")
    },
}
"""Signed manifests of the third checkpoint, or of the first one, which all others need."""


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_signed_manifest_is_checked(run: Path, outside: Path, case: str) -> None:
    harm, expected = MANIFESTS[case]
    harm(run, outside)
    check(run, outside, expected, "step-0000000")


DEEP = "[" * 50_000
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{number}: &a{number} {{<<: [{', '.join([f'*a{number - 1}'] * 9)}], k{number}: 1}}\n" for number in range(1, 9)
)
"""Each section takes over the one before nine times: 9^8 keys."""
ALIASES = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Each list has the one before ten times: 2·10^8 values."""
FILES: dict[str, tuple[Harm, str, str]] = {
    "manifest: nested": (lambda r, o: manifest(r).write_text(DEEP), "manifest.json", "nested deeper"),
    "manifest: no UTF-8": (lambda r, o: manifest(r).write_bytes(b"\xff\xfe"), "manifest.json", "not valid JSON"),
    "manifest: a list": (lambda r, o: manifest(r).write_text("[1]"), "manifest.json", "not a manifest"),
    "manifest: a key twice": (lambda r, o: manifest(r).write_text('{"a": 1, "a": 2}'), "manifest.json", "occurs twice"),
    "manifest: half a character": (
        lambda r, o: manifest(r).write_text('{"format_version": 2, "manifest": {"id": "\\ud800"}}'),
        "manifest.json",
        "half a character",
    ),
    "manifest: a link": (lambda r, o: link(manifest(r), manifest(o / "other")), "manifest.json", "symbolic link"),
    "manifest: a pipe": (lambda r, o: pipe(manifest(r)), "manifest.json", "named pipe"),
    "manifest: a device": (lambda r, o: link(manifest(r), Path("/dev/zero")), "manifest.json", "symbolic link"),
    "manifest: endless": (lambda r, o: sparse(manifest(r)), "manifest.json", "at most 268,435,456 are expected"),
    "rows: a link": (lambda r, o: link(rows_file(r, 3), o / "secret.safetensors"), "rank-", "symbolic link"),
    "rows: a link to a device": (lambda r, o: link(rows_file(r, 3), Path("/dev/zero")), "rank-", "symbolic link"),
    "rows: a pipe": (lambda r, o: pipe(rows_file(r, 3)), "rank-", "named pipe"),
    "rows: endless": (lambda r, o: sparse(rows_file(r, 3)), "rank-", "has 1,000,000,000,000 bytes, at most"),
    "rows: a folder": (lambda r, o: turn_into_a_folder(rows_file(r, 3)), "rank-", "is a folder, not a file"),
    "rows: a header of 2^63 bytes": (
        lambda r, o: replace_file(r, 3, b"\xff" * 7 + b"\x7f" + b" " * rows_file(r, 3).stat().st_size),
        "rank-",
        "cannot be read",
    ),
    "a step that is a link": (
        lambda r, o: (shutil.rmtree(step_folder(r, 2)), link(step_folder(r, 2), step_folder(o / "other", 2))),
        "step-00000002",
        "neither read nor written nor deleted through links",
    ),
    "one more step that is a link": (
        lambda r, o: link(step_folder(r, 7), o / "other" / "checkpoints" / "step-00000001"),
        "step-00000007",
        "neither read nor written nor deleted through links",
    ),
    "a step that is a link to nothing": (
        lambda r, o: link(step_folder(r, 7), o / "new"),
        "step-00000007",
        "neither read nor written nor deleted through links",
    ),
    "checkpoints that are a link": (
        lambda r, o: (shutil.rmtree(r / "checkpoints"), link(r / "checkpoints", o / "other" / "checkpoints")),
        "checkpoints",
        "is a symbolic link, which is not followed",
    ),
    "best.json: a link": (lambda r, o: link(r / "checkpoints/best.json", o / "secret.json"), "best.json", "symbolic"),
    "best.json: a pipe": (lambda r, o: pipe(r / "checkpoints/best.json"), "best.json", "named pipe"),
    "best.json: a list": (text("checkpoints/best.json", "[]"), "best.json", "expected a JSON object"),
    "best.json: nested": (text("checkpoints/best.json", DEEP), "best.json", "nested deeper"),
    "best.json: a step in words": (text("checkpoints/best.json", '{"step": "two"}'), "best.json", "which step"),
    "best.json: a huge step": (text("checkpoints/best.json", f'{{"step": {10**300}}}'), "best.json", "which step"),
    "best.json: true": (text("checkpoints/best.json", '{"step": true}'), "best.json", "which step"),
    "best.json: no metric": (text("checkpoints/best.json", '{"step": 2}'), "best.json", "which metric"),
    "writer.json: a link": (lambda r, o: link(r / "checkpoints/writer.json", o / "secret.json"), "writer", "symbolic"),
    "writer.json: a pipe": (lambda r, o: pipe(r / "checkpoints/writer.json"), "writer.json", "named pipe"),
    "writer.json: nothing in it": (text("checkpoints/writer.json", "{}"), "writer.json", "run: received none"),
    "writer.json: a list": (text("checkpoints/writer.json", "[1, 2]"), "writer.json", "expected a JSON object"),
    "lock: a link": (lambda r, o: link(r / "checkpoints/lock", o / "secret.json"), "lock", "is a symbolic link"),
    "lock of the run: a link": (lambda r, o: link(r / "lock", o / "secret.json"), "lock", "is a symbolic link"),
    "lock of the run: a link to nothing": (lambda r, o: link(r / "lock", o / "new"), "lock", "is a symbolic link"),
    "lock of the run: a pipe": (lambda r, o: pipe(r / "lock"), "lock", "is no plain file"),
    "lock of the run: a folder": (lambda r, o: (r / "lock").mkdir(), "lock", "is no plain file"),
    "config: merges": (text("config.yaml", MERGES), "config.yaml", "keys are merged"),
    "config: aliases": (text("config.yaml", ALIASES), "config.yaml", "more than 2,000,000 values"),
    "config: nested": (text("config.yaml", "[" * 200), "config.yaml", "nested deeper"),
    "config: a pipe": (lambda r, o: pipe(r / "config.yaml"), "config.yaml", "named pipe"),
    "config: a link": (lambda r, o: link(r / "config.yaml", o / "secret.json"), "config.yaml", "symbolic link"),
    "config: a number of 10^5 digits": (text("config.yaml", f"a: 0x{'f' * 100_000}"), "config.yaml", "400 characters"),
    "config: a store that is a list": (text("config.yaml", "checkpoints: {store: [1]}"), "", "relative"),
    "config: a store of another kind": (text("config.yaml", "checkpoints: {store: memory://x}"), "", "is lost when"),
    "environment: a pipe": (lambda r, o: pipe(r / "environment.json"), "environment.json", "named pipe"),
    "environment: a list": (text("environment.json", "[]"), "environment.json", "expected a JSON object"),
    "environment: another run": (text("environment.json", '{"run_id": "3333"}'), "", "of another run, runs/mine"),
}  # fmt: skip
"""Case -> harm, the name in the message, and what the message says."""


@pytest.mark.parametrize("case", FILES)
def test_what_is_no_plain_file_or_no_plain_data_is_named(run: Path, outside: Path, case: str) -> None:
    harm, name, expected = FILES[case]
    harm(run, outside)
    check(run, outside, expected, name)


def check(run: Path, outside: Path, expected: str, name: str) -> None:
    """Uses the run, and checks that it is told what is wrong, and that nothing outside has changed."""
    before = tree(outside)
    with bounded():
        told = use(run)
    assert tree(outside) == before
    assert any(name in each and expected in each for each in told), told


def rows_of(run: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Changes the tensors in a file of rows of the third checkpoint, whose manifest then says so."""
    tensors = load_file(rows_file(run, 3))
    change(tensors)
    replace_file(run, 3, save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def first(tensors: dict[str, torch.Tensor], ending: str) -> str:
    return next(name for name in sorted(tensors) if name.endswith(ending))


def pad(tensors: dict[str, torch.Tensor]) -> None:
    """Keeps the file large enough for the blocks that the manifest declares."""
    tensors["padding"] = torch.zeros(10_000)


ROWS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "no ids": (lambda t: (t.pop(first(t, ".ids")), pad(t)), "ids is nothing"),
    "ids beyond the table": (lambda t: t[first(t, ".ids")].add_(10**6), "expected ids from"),
    "ids below 0": (lambda t: t[first(t, ".ids")].sub_(10**6), "expected ids from"),
    "ids that are floats": (lambda t: t.update({first(t, ".ids"): t[first(t, ".ids")].float()}), "whole numbers"),
    "fewer ids": (lambda t: (t.update({first(t, ".ids"): t[first(t, ".ids")][:1]}), pad(t)), "whole numbers"),
    "no rows": (lambda t: (t.pop(first(t, "weight.rows")), pad(t)), "weight is nothing"),
    "narrower rows": (lambda t: (t.update({first(t, "weight.rows"): torch.ones(2, 2)}), pad(t)), "weight is float32"),
    "rows of another type": (
        lambda t: t.update({first(t, "weight.rows"): t[first(t, "weight.rows")].double()}),
        "weight is float64",
    ),
    "a state of another shape": (
        lambda t: (t.update({first(t, "sum.rows"): torch.ones(2, 9)}), pad(t)),
        "sum is float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_are_not_as_declared_are_named(run: Path, outside: Path, case: str) -> None:
    change, expected = ROWS[case]
    rows_of(run, change)
    check(run, outside, expected, rows_file(run, 3).name)


def legacy(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    folder = CheckpointFolder(run / "checkpoints")
    add_legacy_checkpoint(folder, 8)
    path = step_folder(run, 8) / "state.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


LEGACY: dict[str, tuple[Harm, str]] = {
    "a name above": (lambda r, o: legacy(r, lambda v: v["files"].update({"../x": "0"})), "names the file '../x'"),
    "an absolute name": (lambda r, o: legacy(r, lambda v: v["files"].update({"/dev/zero": "0"})), "'/dev/zero'"),
    "a checksum that is a list": (lambda r, o: legacy(r, lambda v: v["files"].update({"x": [1]})), "[1]"),
    "files that are a number": (lambda r, o: legacy(r, lambda v: v.update(files=3)), "no state, or no files"),
    "no state": (lambda r, o: legacy(r, lambda v: v.pop("state")), "no state, or no files"),
    "a pipe": (
        lambda r, o: (legacy(r, lambda v: None), pipe(step_folder(r, 8) / "tables.safetensors")),
        "named pipe",
    ),
    "a link": (
        lambda r, o: (legacy(r, lambda v: 0), link(step_folder(r, 8) / "dense.safetensors", o / "secret.safetensors")),
        "symbolic link",
    ),
    "a state that is a pipe": (
        lambda r, o: (legacy(r, lambda v: None), pipe(step_folder(r, 8) / "state.json")),
        "named pipe",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEGACY)
def test_a_checkpoint_of_format_1_is_checked(run: Path, outside: Path, case: str) -> None:
    harm, expected = LEGACY[case]
    harm(run, outside)
    check(run, outside, expected, "step-00000008")


def test_what_a_dead_writer_left_is_deleted_without_following_links(run: Path, outside: Path) -> None:
    before = tree(outside)
    left, checkpoints = step_folder(run, 6), run / "checkpoints"
    left.mkdir()
    (left / "rank-00000-00000.00000000.safetensors").symlink_to(outside / "secret.safetensors")
    (left / "rank-00000-00001.00000000.safetensors").symlink_to(outside / "other")
    os.mkfifo(left / "dense.safetensors")
    (checkpoints / ".x.999999999.part").symlink_to(outside / "other")
    (checkpoints / ".step-00000005.999999999.old").symlink_to(outside / "other" / "checkpoints" / "step-00000001")
    (checkpoints / f".best.json.{os.getpid()}.part").symlink_to(outside / "secret.json")
    (checkpoints / f".writer.json.{os.getpid()}.part").symlink_to(outside / "new")
    with bounded():
        found = prune(run, 1)
        assert found.leftovers == ("step-00000006/",)
        folder = CheckpointFolder(checkpoints)
        with claimed(folder.store, RUN):
            folder.mark_best(3, "auc", 0.7)
    assert folder.steps() == list(STEPS)
    assert not left.exists()
    assert [each.name for each in checkpoints.iterdir() if each.is_symlink()] == [".step-00000005.999999999.old"]
    assert tree(outside) == before


def test_a_temporary_name_that_is_a_folder_or_a_link_does_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("kept")
    store = LocalStore(tmp_path / "store")
    store.write("step-00000001", "a", b"1")
    (tmp_path / "store" / "step-00000001" / f".b.{os.getpid()}.part").symlink_to(tmp_path / "secret" / "file")
    (tmp_path / "store" / "step-00000001" / "b").symlink_to(tmp_path / "secret" / "file")
    store.write("step-00000001", "b", b"2")
    assert store.read("step-00000001", "b") == b"2"
    (tmp_path / "store" / "step-00000002").symlink_to(tmp_path / "secret")
    for action in (
        lambda: store.write("step-00000002", "file", b"3"),
        lambda: store.read("step-00000002", "file"),
        lambda: store.delete("step-00000002"),
        lambda: store.delete("step-00000002", "file"),
    ):
        with pytest.raises(RunFolderError, match="step-00000002: is a symbolic link"):
            action()
    assert (tmp_path / "secret" / "file").read_text() == "kept"


def test_a_lock_with_another_name_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "run").mkdir()
    os.link(tmp_path / "secret", tmp_path / "run" / "lock")
    with locked_folder(tmp_path / "run", "training"):
        assert (tmp_path / "secret").read_text() == "kept"


@pytest.mark.parametrize("known", ["writer", "manifests", "environment"])
def test_the_checkpoints_of_another_run_are_not_touched(tmp_path: Path, known: str) -> None:
    theirs, mine = tmp_path / "other", tmp_path / "mine"
    write_run(theirs, OTHER)
    if known != "writer":
        (theirs / "checkpoints" / "writer.json").unlink()
    if known == "manifests":
        (theirs / "environment.json").unlink()
    if known == "environment":
        for step in STEPS:
            sign(manifest(theirs, step), lambda values: values.pop("run_id"))
    mine.mkdir()
    (mine / "environment.json").write_text(json.dumps({"run_id": RUN.id}))
    (mine / "config.yaml").write_text(f"checkpoints: {{store: {theirs / 'checkpoints'}}}\n")
    before = tree(theirs)
    for dry_run in (True, False):
        with pytest.raises(RunFolderError, match=r"other.checkpoints\S*: .*another run"):
            prune(mine, 1, dry_run=dry_run)
    with pytest.raises(RunFolderError, match="another run"):
        CheckpointFolder(theirs / "checkpoints").check_owner(RUN)
    if known == "writer":
        with pytest.raises(RunFolderError, match="another run"), claimed(LocalStore(theirs / "checkpoints"), RUN):
            pass
    assert tree(theirs) == before
    if known != "environment":
        assert CheckpointFolder(theirs / "checkpoints", keep=1, run_id=RUN.id).removable(0) == []


def test_a_store_of_an_unknown_run_needs_the_id_of_ones_own(tmp_path: Path) -> None:
    write_run(tmp_path / "mine", RUN, tmp_path / "store")
    (tmp_path / "mine" / "environment.json").unlink()
    before = tree(tmp_path / "store")
    with pytest.raises(RunFolderError, match=r"environment\.json: the run's id cannot be read"):
        prune(tmp_path / "mine", 1)
    assert tree(tmp_path / "store") == before
    prune(tmp_path / "store", 1)  # named by itself
