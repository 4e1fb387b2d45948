"""Trains a workload with DeepCTR-Torch: `python -m bench.peers.deepctr FOLDER`.

The driver calls the public `fit` once, with a callback that waits between epochs. The settings are chosen for speed:
no output, no metrics, no regularisation (the default adds a pass over every table in each step), and float32 input,
which needs no conversion. A measured epoch includes everything from the DataLoader's shuffle to the optimizer step. It
excludes reading the file, building the model, and the single copy of the columns into a tensor.
"""

# deepctr_torch is installed in .venv-peers only, where the type checker does not look:
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

from __future__ import annotations

import sys
import types
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from bench.peers.protocol import Rounds
from bench.peers.workload import LABEL, Workload, columns


def main() -> None:
    rounds = Rounds()
    # On import the library asks the package index for a newer version of itself. An empty `requests` prevents that.
    sys.modules["requests"] = types.ModuleType("requests")
    from deepctr_torch.callbacks import Callback
    from deepctr_torch.inputs import SparseFeat
    from deepctr_torch.models import DeepFM

    folder = Path(sys.argv[1])
    workload = Workload.read(folder)
    data = {name: column.astype(np.float32) for name, column in columns(folder).items()}
    label = data.pop(LABEL)
    features = [SparseFeat(name, rows, embedding_dim=workload.dim) for name, rows in workload.tables.items()]
    model = DeepFM(features, features, dnn_hidden_units=tuple(workload.hidden), l2_reg_linear=0, l2_reg_embedding=0)
    model.compile(torch.optim.Adam(model.parameters(), lr=workload.lr), "binary_crossentropy")

    class WaitBetweenEpochs(Callback):
        def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            if epoch == 0:
                versions = {"deepctr-torch": metadata.version("deepctr-torch"), "torch (peers)": torch.__version__}
                rounds.ready(torch.get_num_threads(), versions)
            rounds.begin()

        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            rounds.end(len(label), float((logs or {})["loss"]))

    model.fit(
        data, label, batch_size=workload.batch_size, epochs=sys.maxsize, verbose=0, callbacks=[WaitBetweenEpochs()]
    )


if __name__ == "__main__":
    main()
