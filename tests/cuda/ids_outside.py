"""Looks up ids outside their tables; a program of its own, as an assertion that fails on a GPU ends its process' use.

Run as ``python -m tests.cuda.ids_outside DEVICE FOLDER``, in the root of the checkout. Prints "survived" at the end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.embeddings.test_lookup import CPU, SCHEMA, make_batch
from tests.training.conftest import config_values, write_log
from tests.training.test_ids_outside import BAD_STEP, SAVE_EVERY, train_past_a_bad_id
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import FeatureError
from ziggurat.core.plan import Plan
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import Positions, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.optim.rows import RowAdam, RowOptimizerConfig, RowwiseAdagrad
from ziggurat.training.experiment import Experiment
from ziggurat.training.process_group import process_group


def lookup_on(device: torch.device, optimizer: RowOptimizerConfig, history: Any) -> EmbeddingLookup:
    config = EmbeddingsConfig(dim=8, init_std=1.0, optimizer=optimizer)
    layout = lay_out(config, SCHEMA, {"tags": "sum", "history": history})
    torch.manual_seed(0)
    return EmbeddingLookup(layout, Plan.single_device(t.name for t in layout.tables), device, 0)


def check_lookups(device: torch.device) -> None:
    """Of FBGEMM's kernels and of torch's, in bags and in sequences; after each bad batch the next ones are right."""
    for optimizer in (RowwiseAdagrad(), RowAdam(rows="all")):
        for history in ("mean", Positions(AttentionPooling.Config(), 3)):
            for where in ("bags", "sequences"):
                for bad in (-1, 4000, 2**40):
                    lookup, other = (lookup_on(each, optimizer, history) for each in (device, CPU))
                    batch = make_batch(0, 40)
                    jagged = batch.bags if where == "bags" else batch.sequences
                    assert jagged is not None
                    jagged.values()[int(jagged.lengths()[:39].sum())] = bad  # of user, or in a history
                    message = rf"feature '{'user' if where == 'bags' else 'history'}': id {bad} is outside \[0, \d+\)"
                    with torch.no_grad(), pytest.raises(FeatureError, match=message):
                        lookup(batch.to(device))
                    found, expected = (each(make_batch(1, 40).to(on)) for each, on in ((lookup, device), (other, CPU)))
                    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)
                    with pytest.raises(FeatureError, match=message):
                        rows = lookup.finish(lookup.start(batch.to(device)))
                        lookup.fields(rows.by_feature, rows.masks, batch.dense_BF.to(device)).sum().backward()
                        lookup.check_ids()
                    assert bool(torch.isfinite(lookup(make_batch(2, 40).to(device))).all())


def main(device: str, folder: Path) -> None:
    with process_group(torch.device(device)):
        check_lookups(torch.device(device, 0) if device == "cuda" else CPU)

    def make(**changes: Any) -> Experiment:
        values = config_values(folder)
        values["training"]["device"] = device
        for path, value in changes.items():
            set_by_path(values, path.replace("__", "."), value)
        return parse_config(Experiment, values)

    write_log(folder / "log.csv")
    os.chdir(folder)
    assert train_past_a_bad_id(make) == (2 * SAVE_EVERY if device == "cuda" else BAD_STEP)
    print("survived")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
