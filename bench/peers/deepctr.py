"""DeepCTR-Torch trains a workload: `python -m bench.peers.deepctr FOLDER`.

One call of its public `fit` with a callback that parks between epochs. Chosen for speed: silent, no metrics, no
regularisation (its defaults would add a pass over every table a step), float32 input so that nothing is converted.
Measured: all of `fit`'s epoch, from its DataLoader's shuffle to the optimizer's step. Not measured: reading the file,
building the model, `fit`'s one-off copy of the columns into a tensor.
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
    # Importing the library asks the package index for a newer version of itself; without `requests` it does not.
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

    class Park(Callback):
        def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            if epoch == 0:
                versions = {"deepctr-torch": metadata.version("deepctr-torch"), "torch (peers)": torch.__version__}
                rounds.ready(torch.get_num_threads(), versions)
            rounds.begin()

        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            rounds.end(len(label), float((logs or {})["loss"]))

    model.fit(data, label, batch_size=workload.batch_size, epochs=sys.maxsize, verbose=0, callbacks=[Park()])


if __name__ == "__main__":
    main()
