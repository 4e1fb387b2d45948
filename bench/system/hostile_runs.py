"""Hostile runs and prepared datasets: links, pipes, devices, sizes, and files that are signed but no plain data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.system.hostile_world import (
    GATHER,
    INSPECT,
    LIST,
    PREDICT,
    PRUNE,
    TRAIN,
    VERIFY,
    Case,
    Harm,
    World,
    folder,
    link,
    pipe,
    remove,
    sign,
    sparse,
    write,
)

Manifest = dict[str, Any]
NESTED = "[" * 20_000
READ = (LIST, VERIFY, INSPECT)


def links() -> list[Case]:
    """Returns cases with links, and names that lead elsewhere, in a run folder."""
    checkpoints = "checkpoints"
    return [
        Case("a step leads to another run", _link_step(20), (*READ, PRUNE, TRAIN, PREDICT), "step-00000020"),
        Case("an old step leads to another run", _link_step(5), (VERIFY, PRUNE, TRAIN), "step-00000005"),
        Case("a new step leads to another run", _link_step(90), (VERIFY, PRUNE, TRAIN), "step-00000090"),
        Case(
            "a new step leads to nothing",
            lambda w: link(w.step(25), w.outside / "new"),
            (PRUNE, TRAIN),
            "step-00000025",
        ),
        Case(
            "checkpoints lead to another run",
            lambda w: link(w.run / checkpoints, w.victim / checkpoints),
            (PRUNE, TRAIN, VERIFY),
            "symbolic link",
        ),
        Case(
            "checkpoints lead to nothing",
            lambda w: link(w.run / checkpoints, w.outside / "new"),
            (PRUNE, TRAIN),
            "symbolic link",
        ),
        Case("the run leads to another run", lambda w: link(w.run, w.victim), (VERIFY,), may_read=True),
        Case(
            "the lock leads outside", lambda w: link(w.run / "lock", w.outside / "secret.txt"), (TRAIN, PRUNE), "lock"
        ),
        Case("the lock leads to nothing", lambda w: link(w.run / "lock", w.outside / "new"), (TRAIN, PRUNE), "lock"),
        Case("the lock is a pipe", lambda w: pipe(w.run / "lock"), (TRAIN, PRUNE), "lock"),
        Case("the lock is a folder", lambda w: folder(w.run / "lock"), (TRAIN, PRUNE), "lock"),
        Case("the lock is a device", lambda w: link(w.run / "lock", "/dev/zero"), (TRAIN, PRUNE), "lock"),
        Case(
            "the lock of checkpoints leads outside",
            lambda w: link(w.run / checkpoints / "lock", w.outside / "secret.txt"),
            (TRAIN, PRUNE),
            "lock",
        ),
        Case("a dead writer's files lead outside", _unfinished, (VERIFY, PRUNE, TRAIN)),
        Case("temporary names lead outside", _temporaries, (PRUNE, TRAIN)),
        Case("what was moved aside leads outside", _moved_aside, (LIST, PRUNE, TRAIN)),
        Case("tensorboard leads outside", lambda w: link(w.run / "tensorboard", w.outside / "prepared"), (TRAIN,)),
        Case(
            "encoders lead outside",
            lambda w: link(w.run / "encoders", w.outside / "prepared" / "encoders"),
            (PREDICT,),
            "encoders",
        ),
        Case("the store is another run's", _foreign_store(""), (PRUNE, TRAIN, LIST), "another run", may_read=True),
        Case(
            "the store is another run's, without its writer",
            _foreign_store("writer.json"),
            (PRUNE,),
            "another run",
            may_read=True,
        ),
        Case(
            "a file of the dataset leads outside",
            lambda w: link(w.inside / "prepared/train/00000.arrow", w.outside / "prepared/train/00000.arrow"),
            (TRAIN,),
            "00000.arrow",
        ),
        Case(
            "a folder of the dataset leads outside",
            lambda w: link(w.inside / "prepared/train", w.outside / "prepared/train"),
            (TRAIN,),
        ),
        Case(
            "the exported file leads outside",
            lambda w: link(w.inside / "gathered.safetensors", w.outside / "secret.txt"),
            (GATHER,),
            "gathered.safetensors",
        ),
        Case(
            "the predictions lead outside",
            lambda w: link(w.inside / "predicted.csv", w.outside / "secret.csv"),
            (PREDICT,),
        ),
    ]


def _link_step(number: int) -> Harm:
    return lambda world: link(world.step(number), world.victim / "checkpoints" / "step-00000005")


def _unfinished(world: World) -> None:
    left = world.step(21)
    left.mkdir()
    (left / "rank-00000-00000.00000000.safetensors").symlink_to(world.outside / "secret.txt")
    (left / "rank-00000-00001.00000000.safetensors").symlink_to(world.victim)
    os.mkfifo(left / "dense.safetensors")


def _temporaries(world: World) -> None:
    for name in ("best.json", "writer.json", "lock"):
        (world.run / "checkpoints" / f".{name}.999999.part").symlink_to(world.outside / "secret.json")
    for name in ("config.yaml", "environment.json", "results.json", "dataset.json"):
        (world.run / f".{name}.999999.part").symlink_to(world.outside / "secret.json")
    (world.run / "checkpoints" / ".step-00000005.999999.part").symlink_to(world.victim)


def _moved_aside(world: World) -> None:
    (world.run / "checkpoints" / ".step-00000007.999999.old").symlink_to(world.victim / "checkpoints" / "step-00000005")
    (world.run / "checkpoints" / ".best.json.999999.old").symlink_to(world.outside / "secret.json")


def _foreign_store(missing: str) -> Harm:
    """Returns what makes a run name the checkpoints of another one, in its config and in that of the user."""

    def harm(world: World) -> None:
        if missing:
            remove(world.victim / "checkpoints" / missing)
        values = json.loads((world.inside / "longer.json").read_text())
        values["checkpoints"]["store"] = str(world.victim / "checkpoints")
        write(world.inside / "longer.json", json.dumps(values))
        write(world.run / "config.yaml", json.dumps(values))

    return harm


def _rows_entry(manifest: Manifest) -> dict[str, Any]:
    return next(each for each in manifest["files"] if each["blocks"])


def _table(manifest: Manifest) -> dict[str, Any]:
    return next(iter(manifest["tables"].values()))


_CHANGES: dict[str, Callable[[Manifest], Any]] = {
    "an absolute name": lambda m: _rows_entry(m).update(name="/etc/passwd"),
    "a name above": lambda m: _rows_entry(m).update(name="../../../outside/secret.txt"),
    "a device": lambda m: _rows_entry(m).update(name="/dev/zero"),
    "its own name": lambda m: _rows_entry(m).update(name="manifest.json"),
    "a name with a line end": lambda m: _rows_entry(m).update(name="a\nb"),
    "a name that is a list": lambda m: _rows_entry(m).update(name=["x"]),
    "10^12 bytes": lambda m: _rows_entry(m).update(bytes=10**12),
    "10^12 rows": lambda m: _rows_entry(m)["blocks"][0].update(rows=10**12),
    "ids beyond the table": lambda m: _rows_entry(m)["blocks"][0].update(high=10**12, first=None),
    "negative ids": lambda m: _rows_entry(m)["blocks"][0].update(low=-(10**6), first=None),
    "columns beyond the table": lambda m: _rows_entry(m)["blocks"][0].update(columns=[0, 10**9]),
    "an unknown table": lambda m: _rows_entry(m)["blocks"][0].update(table="nobody"),
    "an unknown state": lambda m: _rows_entry(m)["blocks"][0]["bits"].update(spy=32),
    "another width of numbers": lambda m: _rows_entry(m)["blocks"][0]["bits"].update(weight=2),
    "a table of 10^12 rows": lambda m: _table(m).update(rows=10**12),
    "a table of 10^9 columns": lambda m: _table(m).update(dim=10**9),
    "a state of 10^9 columns": lambda m: _table(m)["states"].update(spy=10**9),
    "a need of itself": lambda m: m["needs"].append({"step": m["step"], "id": m["id"]}),
    "a need of a later one": lambda m: m["needs"].append({"step": 10**6, "id": "x"}),
    "another step": lambda m: m.update(step=7),
    "a step of 31 digits": lambda m: m.update(step=10**30),
    "a state of lists": lambda m: m.update(state=[[[]]]),
    "no progress": lambda m: m["state"].pop("progression"),
    "progress in words": lambda m: m["state"]["progression"].update(step="many", cursor="x"),
    "a cursor at 10^15": lambda m: m["state"]["progression"].update(cursor=[0, 10**15]),
    "a schedule that is a list": lambda m: m["state"].update(schedule=[1]),
    "a plan of words": lambda m: m.update(plan={"placements": {"user": "everywhere"}, "notes": 3}),
    "control characters": lambda m: m.update(policy="\x1b]0;x\x07", versions={"\x1b[2J": "1"}),
    "a best step in words": lambda m: m["state"]["progression"].update(best=[1], best_step={"a": 1}),
}
_FIELDS = ("id", "kind", "step", "needs", "tables", "files", "state", "versions")


def manifests() -> list[Case]:
    """Returns cases with manifests that are signed."""
    cases = [
        Case(f"signed manifest with {name}", _signed(change), (VERIFY, INSPECT, PRUNE, TRAIN, GATHER))
        for name, change in _CHANGES.items()
    ]
    for name in _FIELDS:
        cases.append(
            Case(f"signed manifest without {name}", _signed(lambda m, name=name: m.pop(name)), (VERIFY, TRAIN), name)
        )
        cases.append(
            Case(
                f"signed manifest with a list as {name}",
                _signed(lambda m, name=name: m.update({name: [[1]]})),
                (VERIFY, INSPECT),
                name,
            )
        )
    return cases


def _signed(change: Callable[[Manifest], Any]) -> Harm:
    return lambda world: sign(world.manifest(), change)


_KINDS: dict[str, Callable[[World, Path], Any]] = {
    "a pipe": lambda world, path: pipe(path),
    "a link outside": lambda world, path: link(path, world.outside / "secret.json"),
    "a device": lambda world, path: link(path, "/dev/zero"),
    "endless": lambda world, path: sparse(path),
    "nested": lambda world, path: write(path, NESTED),
    "a list": lambda world, path: write(path, "[1]"),
}
"""What is in the place of a file."""


def _files(files: dict[str, tuple[tuple[str, ...], ...]], kinds: Sequence[str]) -> list[Case]:
    return [
        Case(f"{name}: {kind}", _replaced(name, kind), commands, Path(name).name)
        for name, commands in files.items()
        for kind in kinds
    ]


def _replaced(name: str, kind: str) -> Harm:
    def harm(world: World) -> None:
        for path in sorted(world.inside.glob(name)):
            _KINDS[kind](world, path)

    return harm


def files_of_runs() -> list[Case]:
    """Returns cases in which a file of a run is something else."""
    texts = {
        "run/config.yaml": (PREDICT, PRUNE),
        "run/environment.json": (PREDICT, PRUNE),
        "run/dataset.json": (TRAIN,),
        "run/plan.json": (("report", "run", "--no-baselines"), PREDICT),
        "run/encoders/transform.json": (PREDICT,),
        "run/encoders/table.user.json": (PREDICT,),
        "run/checkpoints/best.json": (PREDICT, PRUNE),
        "run/checkpoints/writer.json": (TRAIN, PRUNE),
        "run/checkpoints/step-00000020/manifest.json": (PREDICT, PRUNE, TRAIN),
    }
    tensors = {"run/encoders/table.user.safetensors": (PREDICT,)}
    rows = [
        Case(f"rows of a checkpoint: {kind}", _rows(kind), (VERIFY, PRUNE, TRAIN, GATHER), "rank-00000")
        for kind in ("a pipe", "a link outside", "a device", "endless")
    ]
    return [*_files(texts, tuple(_KINDS)), *_files(tensors, ("a pipe", "a link outside", "a device", "endless")), *rows]


def _rows(kind: str) -> Harm:
    return lambda world: _KINDS[kind](world, world.rows())


def prepared_datasets() -> list[Case]:
    """Returns cases in which a file of a prepared dataset is something else."""
    texts = {
        "prepared/manifest.json": (TRAIN,),
        "prepared/statistics.json": (("plan", "exp.yaml", "--prepared", "prepared"), TRAIN),
    }
    blocks = {"prepared/train/00000.arrow": (TRAIN,)}
    return [
        *_files(texts, tuple(_KINDS)),
        *_files(blocks, ("a pipe", "a link outside", "a device", "endless", "a list")),
    ]
