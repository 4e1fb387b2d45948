"""Writes ``tests/golden/stored`` with the ziggurat that is imported: run by the commit whose formats are to be kept.

    git worktree add /tmp/old COMMIT
    PYTHONPATH=/tmp/old/src python tests/golden/make_stored.py OUT /tmp/old COMMIT

It leaves a log, its experiment, the prepared dataset, and a run that was stopped in the middle; and, in
``expected.json``, what the same commit made of that run by going on: digests of weights, metrics and predictions, and
how it resolved every YAML file in ``examples/``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import torch

import ziggurat

MODIFIED_NS = 1_700_000_000_000_000_000
"""Time of modification of the log: the fingerprint of a prepared dataset contains it."""
FIGURES = ("split", "step", "epoch", "loss", "log_loss", "auc", "ne", "gauc", "calibration")

EXPERIMENT = """\
name: stored
data:
  folder: .
  source: {name: csv, files: [log.csv], delimiter: ","}
  split: {name: time, validation: 0.15, test: 0.15}
  labels: [{name: click}]
  group: user_id
  time: time
  block_rows: 128
features:
  - {name: user_id, kind: categorical, type: integer}
  - {name: item_id, kind: categorical, type: integer, encoder: {name: vocabulary, min_count: 2}}
  - {name: device, kind: categorical, type: integer, encoder: {name: identity, rows: 4}}
  - {name: country, kind: categorical, encoder: {name: hash, rows: 16}}
  - {name: price, kind: numeric, transforms: [{name: fill, value: median}, {name: log}, {name: standardise}]}
  - {name: age, kind: numeric, transforms: [{name: bucketise, bins: 5}]}
  - {name: genres, kind: bag, pooling: mean}
  - {name: history, kind: sequence, type: integer, delimiter: " ", last: 5, table: item_id,
     pooling: {name: target_attention, target: item_id}}
embeddings:
  dim: 8
  optimizer: {name: rowwise_adagrad, lr: 0.05}
model: {name: wukong, layers: 2, fm_outputs: 4, linear_outputs: 4, rank: 4,
        fm_mlp: {hidden: [16]}, bottom: {hidden: [8]}, head: {bottom: {hidden: [16]}}}
optimizer: {name: adam, lr: 0.003}
training: {batch_size: 64, epochs: 4, threads: 1, keep: 9, save_every: 5, weight_average: 0.9}
checkpoints: {policy: consecutive, consecutive_deltas: 2}
"""


def write_log(path: Path) -> None:
    """900 rows with a label that depends on user and item."""
    draw = random.Random(34)
    lines = ["user_id,item_id,device,country,price,age,genres,history,time,click"]
    for row in range(900):
        user, item = draw.randrange(40), draw.randrange(60)
        genres = "|".join(sorted({draw.choice("abcdef") for _ in range(draw.randrange(4))}))
        history = " ".join(str(draw.randrange(60)) for _ in range(draw.randrange(6)))
        price = "" if draw.random() < 0.05 else f"{draw.expovariate(0.1):.2f}"
        click = int(draw.random() < (0.25 + 0.5 * ((user + item) % 3 == 0)))
        device, country, age = draw.randrange(4), draw.choice(["de", "fr", "jp", ""]), draw.randrange(18, 80)
        time = 1_600_000_000 + row * 60
        lines.append(f"{user},{item},{device},{country},{price},{age},{genres},{history},{time},{click}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.utime(path, ns=(MODIFIED_NS, MODIFIED_NS))


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names and bytes."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def digests_of(run: Any) -> dict[str, str]:
    """Group of tensors in the last checkpoint -> digest."""
    saved = run.checkpoints.load("last")
    groups = sorted({name.split("/")[0] for name in saved.names()})
    return {group: digest_of(saved.whole(group)) for group in groups}


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """The figures of ``metrics.jsonl`` that do not depend on time."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key in FIGURES} for line in lines]


def probabilities_of(folder: Path, log: Path) -> list[float]:
    """Predictions for the last 20 rows of the log."""
    rows = pl.read_csv(log, infer_schema_length=0).tail(20)
    return [float(each) for each in ziggurat.predict(folder, rows).reshape(-1)]


def processor() -> str:
    """The processor's name and the instructions that torch uses: equal ones give equal bits."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'}, {torch.backends.cpu.get_cpu_capability()}"


def main(out: Path, root: Path, commit: str) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.chdir(out)
    write_log(Path("log.csv"))
    Path("exp.yaml").write_text(EXPERIMENT, encoding="utf-8")
    experiment = ziggurat.load_experiment("exp.yaml")
    ziggurat.prepare(experiment, "prepared")
    ziggurat.train(experiment, "run", prepared="prepared", stop_after=17)
    shutil.copytree("run", "finished")
    done = ziggurat.train(experiment, "finished", prepared="prepared")
    assert done.results is not None
    expected = {
        "commit": commit,
        "processor": processor(),
        "modified_ns": MODIFIED_NS,
        "steps": done.step,
        "digests": digests_of(done.run),
        "metrics": metrics_of(Path("finished")),
        "results": {key: value for key, value in done.results.items() if key != "seconds"},
        "probabilities": probabilities_of(Path("finished"), Path("log.csv")),
        "config": experiment.model_dump(mode="json"),
        "examples": {
            path.name: ziggurat.load_experiment(path).model_dump(mode="json")
            for path in sorted((root / "examples").glob("*.yaml"))
        },
    }
    Path("expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name in ("finished", "run/tensorboard"):
        shutil.rmtree(name)
    Path("run/lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3])
