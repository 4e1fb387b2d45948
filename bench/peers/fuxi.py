"""Trains a workload with FuxiCTR: `python -m bench.peers.fuxi FOLDER [npz|parquet]`.

The driver builds DeepFM from FuxiCTR's own blocks, as its model zoo does (the wheel does not include the zoo), and
calls the public `fit` on its own data loader. The `npz` loader (an array in memory, one worker process) is the faster
one; `parquet` streams through Ray. The settings are chosen for speed: no output, no regularisation, no evaluation and
therefore no saved best weights. A measured epoch is a call of `train_epoch`, which starts the loader anew each time. It
excludes reading and converting the file, and building the model.
"""

# fuxictr is installed in .venv-peers only, where the type checker does not look:
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

from __future__ import annotations

import json
import logging
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.peers.protocol import Rounds
from bench.peers.workload import LABEL, Workload, columns


def main() -> None:
    rounds = Rounds()
    folder, loader = Path(sys.argv[1]), (sys.argv[2:] or ["npz"])[0]
    workload = Workload.read(folder)
    data = columns(folder)
    with tempfile.TemporaryDirectory(prefix="fuxi-") as scratch:
        feature_map = _feature_map(workload, Path(scratch))
        model = _model(workload, feature_map, rounds, Path(scratch), len(data[LABEL]))
        generator = _generator(loader, feature_map, data, Path(scratch), workload.batch_size)
        rounds.ready(
            torch.get_num_threads(), {"fuxictr": metadata.version("fuxictr"), "torch (peers)": torch.__version__}
        )
        model.fit(generator, epochs=sys.maxsize)


def _feature_map(workload: Workload, scratch: Path) -> Any:
    from fuxictr.features import FeatureMap

    features = [
        {name: {"type": "categorical", "source": "", "vocab_size": rows}} for name, rows in workload.tables.items()
    ]
    path = scratch / "feature_map.json"
    path.write_text(json.dumps({"dataset_id": workload.name, "labels": [LABEL], "features": features}))
    feature_map = FeatureMap(workload.name, str(scratch))
    feature_map.load(str(path), {"embedding_dim": workload.dim})
    return feature_map


def _model(workload: Workload, feature_map: Any, rounds: Rounds, scratch: Path, rows: int) -> Any:
    from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
    from fuxictr.pytorch.models import BaseModel

    class DeepFM(BaseModel):
        def __init__(self) -> None:
            super().__init__(feature_map, "DeepFM", verbose=0, model_root=str(scratch), metrics=["AUC"])
            self.embedding = FeatureEmbedding(feature_map, workload.dim)
            self.fm = FactorizationMachine(feature_map)
            self.mlp = MLP_Block(feature_map.num_fields * workload.dim, workload.hidden, output_dim=1)
            self.compile("adam", "binary_crossentropy", workload.lr)
            self.reset_parameters()
            self.loss_sum, self.steps = 0.0, 0

        def forward(self, inputs: Any) -> dict[str, Any]:
            X = self.get_inputs(inputs)
            emb_BFD = self.embedding(X)
            logit = self.fm(X, emb_BFD) + self.mlp(emb_BFD.flatten(start_dim=1))
            return {"y_pred": self.output_activation(logit)}

        def compute_loss(self, return_dict: dict[str, Any], y_true: Any) -> Any:
            loss = super().compute_loss(return_dict, y_true)
            self.loss_sum, self.steps = self.loss_sum + loss.detach(), self.steps + 1
            return loss

        def train_epoch(self, data_generator: Any) -> None:
            rounds.begin()
            super().train_epoch(data_generator)
            rounds.end(rows, float(self.loss_sum) / self.steps)
            self.loss_sum, self.steps = 0.0, 0

        def eval_step(self) -> None:
            """Does nothing, as no contestant evaluates between epochs."""

    return DeepFM()


def _generator(loader: str, feature_map: Any, data: dict[str, Any], scratch: Path, batch_size: int) -> Any:
    from fuxictr.pytorch.dataloaders import RankDataLoader

    logging.getLogger().setLevel(logging.ERROR)
    path = scratch / f"train.{loader}"
    if loader == "npz":
        np.savez(path, **data)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(data), path)
    train, _ = RankDataLoader(
        feature_map, stage="train", train_data=str(path), batch_size=batch_size, shuffle=True, data_format=loader
    )
    return train


if __name__ == "__main__":
    main()
