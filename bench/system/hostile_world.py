"""The folders that hostile cases are made of: a log, a prepared dataset and a run; and outside of them another run.

Everything is at the same path in each case, as a run knows its dataset by path.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ziggurat.core.files import write_json

SAVE_EVERY, STEPS, LATER_STEPS = 5, 20, 30
ROWS = 3_000
COLUMNS = {"user": 300, "item": 200}
Harm = Callable[["World"], Any]
Command = tuple[str, ...]

VERIFY: Command = ("checkpoint", "verify", "run")
LIST: Command = ("checkpoint", "list", "run")
INSPECT: Command = ("checkpoint", "inspect", "run")
GATHER: Command = ("checkpoint", "gather", "run", "last", "--out", "gathered.safetensors")
PRUNE: Command = ("checkpoint", "prune", "run", "--keep", "1")
PREDICT: Command = ("predict", "run", "log.csv", "--out", "predicted.csv")
TRAIN: Command = ("train", "longer.json", "--run", "run", "--prepared", "prepared")
PREPARE: Command = ("prepare", "exp.yaml", "--prepared", "fresh")
INIT: Command = ("init", "log.csv", "--out", "found.yaml")


@dataclass(frozen=True, slots=True)
class Case:
    """A hostile case.

    Attributes:
        name: unique; begins with the group.
        harm: what somebody has done to the world.
        commands: what the user does then, one after another.
        word: a word that some command has to print, such as the name of the file at fault; empty: nothing is wrong.
        may_read: whether commands may read what is outside, because the user's own words lead there.
    """

    name: str
    harm: Harm
    commands: tuple[Command, ...]
    word: str = ""
    may_read: bool = field(default=False, kw_only=True)


class World:
    """The folders of a case.

    Args:
        root: where they are.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inside, self.outside = root / "inside", root / "outside"
        self.run, self.victim = self.inside / "run", self.outside / "victim"
        self._template = root.with_name(f"{root.name}-template")

    def make(self) -> None:
        """Makes the folders, and a copy that :meth:`reset` takes."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self._template, ignore_errors=True)
        self.inside.mkdir(parents=True)
        process = get_context("forkserver").Process(target=_train, args=(self.inside,))
        process.start()
        process.join()
        assert process.exitcode == 0, process.exitcode
        shutil.copytree(self.run, self.victim)
        environment = json.loads((self.victim / "environment.json").read_text())
        write_json(self.victim / "environment.json", environment | {"run_id": "feedfeedfeedfeed"})
        for writer in self.victim.glob("checkpoints/writer.json"):
            write_json(writer, json.loads(writer.read_text()) | {"run_id": "feedfeedfeedfeed"})
        shutil.copytree(self.inside / "prepared", self.outside / "prepared")
        shutil.copyfile(self.inside / "log.csv", self.outside / "secret.csv")
        for name, text in (("secret.json", '{"step": 5}'), ("secret.yaml", "name: secret"), ("secret.txt", "secret")):
            (self.outside / name).write_text(text)
        shutil.copytree(self.root, self._template)

    def reset(self) -> None:
        """Puts everything back as it was made, and a pipe outside."""
        shutil.rmtree(self.root)
        shutil.copytree(self._template, self.root)
        os.mkfifo(self.outside / "pipe")

    def step(self, number: int = STEPS) -> Path:
        """Returns the folder of a checkpoint."""
        return self.run / "checkpoints" / f"step-{number:08d}"

    def rows(self, number: int = STEPS) -> Path:
        """Returns the last file of a checkpoint."""
        return sorted(self.step(number).glob("rank-*"))[-1]

    def manifest(self, number: int = STEPS) -> Path:
        return self.step(number) / "manifest.json"


def _train(folder: Path) -> None:
    """Writes a log, prepares it, and trains a run with four checkpoints."""
    from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, LabelColumn
    from ziggurat.data.synthetic.generate import generate
    from ziggurat.training import api

    os.chdir(folder)
    columns = tuple(CategoricalColumn(name=name, cardinality=rows) for name, rows in COLUMNS.items())
    generate(
        GeneratorConfig(rows=ROWS, labels=(LabelColumn(name="y", rate=0.3),), categorical=columns), Path("log.csv")
    )
    write_json(Path("exp.yaml"), experiment(STEPS))  # JSON is YAML
    write_json(Path("longer.json"), experiment(LATER_STEPS))
    api.train(api.load_experiment("exp.yaml"), "run", prepared="prepared")


def experiment(steps: int) -> dict[str, Any]:
    """Returns the config, as it is written."""
    return {
        "name": "hostile",
        "data": {
            "source": {"name": "csv", "files": ["log.csv"]},
            "split": {"name": "random", "validation": 0.1, "test": 0.1},
            "labels": [{"name": "y"}],
        },
        "features": [{"name": name, "kind": "categorical", "type": "integer"} for name in COLUMNS],
        "embeddings": {"dim": 8, "optimizer": {"name": "rowwise_adagrad", "lr": 0.05}},
        "model": {"name": "deepfm", "deep": {"hidden": [16]}},
        "training": {
            "batch_size": 128, "epochs": 10**6, "max_steps": steps, "evaluate_every": 10**6, "device": "cpu",
            "save_every": SAVE_EVERY, "log_every": SAVE_EVERY, "threads": 1, "keep": 10,
        },
        "checkpoints": {"policy": "consecutive"},
        "planning": {"planner": {"name": "rules"}},
    }  # fmt: skip


def link(path: Path, target: str | Path) -> None:
    """Puts a symbolic link in the place of whatever is there."""
    remove(path)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def sparse(path: Path, size: int = 10**12) -> None:
    """Puts a file there that has this size, and takes no space."""
    remove(path)
    path.touch()
    os.truncate(path, size)


def folder(path: Path) -> None:
    remove(path)
    path.mkdir()


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write(path: Path, content: str | bytes) -> None:
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def sign(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes a manifest of a checkpoint and signs it again, as anybody can."""
    values = json.loads(path.read_text())["manifest"]
    change(values)
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    path.write_text(json.dumps({"format_version": 2, "sha256": digest, "manifest": values}))
