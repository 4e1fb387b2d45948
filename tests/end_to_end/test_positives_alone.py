"""A log of positives alone: trained with sampled negatives, evaluated and reported with the protocol stated."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import commands

EXPERIMENT = """\
name: plays
data:
  folder: .
  source: {name: csv, files: [plays.csv]}
  split: {name: random, validation: 0.1, test: 0.1}
  labels: [{name: played, observed: true}]
  negatives: {name: popularity, user: user, item: item, item_columns: [artist], per_positive: 3, evaluation: 9}
  group: user
features:
  - {name: user, kind: categorical, type: integer}
  - {name: item, kind: categorical, type: integer}
  - {name: artist, kind: categorical}
embeddings: {dim: 8, optimizer: {name: rowwise_adagrad, lr: 0.1}}
model: {name: fm}
training: {batch_size: 256, epochs: 6, threads: 1}
"""


def ziggurat(*arguments: str, folder: Path) -> str:
    """Runs a command that must succeed; returns its stdout."""
    status, out, err = commands.ziggurat(*arguments, folder=folder)
    assert status == 0, err
    return out


def test_positives_alone_are_learned_and_the_protocol_is_stated(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    users = draw.integers(0, 60, 3000)
    items = (users % 4) * 10 + np.minimum(draw.geometric(0.25, 3000) - 1, 9)  # each user plays ten of forty items
    rows = [f"{user},{item},artist {item // 2}" for user, item in zip(users, items, strict=True)]
    (tmp_path / "plays.csv").write_text("user,item,artist\n" + "\n".join(rows) + "\n")
    (tmp_path / "exp.yaml").write_text(EXPERIMENT)
    trained = ziggurat("train", "exp.yaml", folder=tmp_path)
    shown = ziggurat("evaluate", "runs/plays", folder=tmp_path)
    protocol = "9 sampled negatives, drawn by popularity to the power of 0.75"
    assert protocol in " ".join(shown.split())
    assert protocol in " ".join(trained.split())
    ziggurat("report", "runs/plays", "--no-baselines", folder=tmp_path)
    page = (tmp_path / "runs" / "plays" / "report.html").read_text()
    assert protocol in " ".join(page.split())
    assert "auc" in shown.lower()
    (tmp_path / "ask.csv").write_text("user,item,artist\n1,12,artist 6\n1,32,artist 16\n")
    ziggurat("predict", "runs/plays", "ask.csv", "--out", "answers.csv", folder=tmp_path)
    likely, unlikely = (
        float(line.rsplit(",", 1)[1]) for line in (tmp_path / "answers.csv").read_text().splitlines()[1:]
    )
    assert likely > 2 * unlikely
