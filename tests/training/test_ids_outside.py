"""A training that meets an id outside its table ends, saves nothing of it, and resumes as if it had not met it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import MakeExperiment
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.core.batch import Batch
from ziggurat.core.errors import FeatureError
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.embeddings.id_range import DeferredIdCheck
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.training import api
from ziggurat.training.run_folder.metrics_log import read_metrics_log

BAD_STEP, SAVE_EVERY, STEPS = 10, 8, 24


def train_past_a_bad_id(make: MakeExperiment) -> int:
    """Trains with a bad id in one batch, then resumes without; returns how many batches were drawn with it."""
    changes = {"training__save_every": SAVE_EVERY, "training__evaluate_every": STEPS, "training__log_every": 1000}
    experiment = make(**changes, training__max_steps=STEPS, training__prefetch=0)
    drawn: list[Batch] = []
    epochs = Loader.epoch

    def epoch(loader: Loader, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        for batch, cursor in epochs(loader, start):
            drawn.append(batch)
            if len(drawn) == BAD_STEP:
                assert batch.bags is not None
                batch.bags["user"].values()[5] = 4000
            yield batch, cursor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loader, "epoch", epoch)
        with pytest.raises(FeatureError, match=r"feature 'user': id 4000 is outside \[0, 4\d\).*'user', on rank 0"):
            api.train(experiment, "run")
    assert CheckpointFolder(Path("run/checkpoints")).steps() == [SAVE_EVERY]
    assert {each["step"] for each in read_metrics_log(Path("run/metrics.jsonl"))} <= {SAVE_EVERY}
    count = len(drawn)
    assert api.train(experiment, "run").step == api.train(experiment, "straight").step == STEPS
    assert_same_bits(tensors(Path("straight"), STEPS), tensors(Path("run"), STEPS))
    return count


@pytest.mark.parametrize("deferred", [False, True], ids=["at_once", "deferred"])
def test_a_bad_id_reaches_no_checkpoint(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, deferred: bool
) -> None:
    """Also where ids are checked as on a GPU, some steps later."""
    if deferred:
        made = EmbeddingLookup.__init__

        def deferring(lookup: EmbeddingLookup, *args: Any) -> None:
            made(lookup, *args)
            lookup._deferred = DeferredIdCheck(lookup._id_range, torch.device("cpu"))  # pyright: ignore[reportPrivateUsage]

        monkeypatch.setattr(EmbeddingLookup, "__init__", deferring)
    assert train_past_a_bad_id(make_experiment) == (2 * SAVE_EVERY if deferred else BAD_STEP)
