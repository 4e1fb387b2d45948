"""Ids outside their tables are named: at once on the CPU, when asked for on a GPU, whose kernels never get them.

What a GPU does is tested here on the CPU, with tensors of the CPU (``tests/cuda`` repeats it on a GPU).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.embeddings.test_lookup import CPU, SCHEMA, make_batch, make_lookup
from ziggurat.core.errors import FeatureError
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.id_range import DeferredIdCheck, IdRange
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.optim.rows import RowAdam, RowSGD

ROWS = {key: SCHEMA.rows[table] for key, table in SCHEMA.tables.items()}


def id_range() -> IdRange:
    return IdRange(lay_out(EmbeddingsConfig(dim=8), SCHEMA, {"tags": "sum", "history": "mean"}).table_of, 0)


def deferring(config: EmbeddingsConfig) -> EmbeddingLookup:
    """Returns a lookup that checks ids as on a GPU."""
    lookup = make_lookup(config)
    lookup._deferred = DeferredIdCheck(lookup._id_range, CPU)  # pyright: ignore[reportPrivateUsage]
    return lookup


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_confined_ids_and_the_first_bad_one_are_those_of_a_loop(seed: int, dtype: torch.dtype) -> None:
    """Over batches of changing keys and sizes, empty bags among them."""
    draw = np.random.default_rng(seed)
    check, first = DeferredIdCheck(id_range(), CPU), None
    for _ in range(6):
        keys = list(draw.permutation(list(ROWS))[: draw.integers(1, len(ROWS) + 1)])
        lengths = draw.integers(0, 3, (len(keys), int(draw.integers(1, 5))))
        expected: list[int] = []
        values: list[int] = []
        for key, count in zip(keys, lengths.sum(1), strict=True):
            for _ in range(count):
                far = int(draw.choice([-(2**31), -1, ROWS[key], 2**31 - 1]))
                value = far if draw.random() < 0.05 else int(draw.integers(0, ROWS[key]))
                if value == far and first is None:
                    first = f"feature '{key}': id {value} is outside [0, {ROWS[key]}), the rows of table"
                values.append(value)
                expected.append(min(max(value, 0), ROWS[key] - 1))
        ids = KeyedJaggedTensor(keys, torch.tensor(values, dtype=dtype), lengths=torch.from_numpy(lengths.reshape(-1)))
        confined = check.confined(ids)
        assert ids.values().tolist() == values
        assert confined.values().tolist() == expected
        assert confined.keys() == keys
        assert torch.equal(confined.lengths(), ids.lengths())
    if first is None:
        check.check()
        return
    with pytest.raises(FeatureError) as raised:
        check.check()
    assert str(raised.value).startswith(first)
    check.check()  # it is told once


@pytest.mark.parametrize("optimizer", [RowSGD(), RowAdam(rows="all")], ids=lambda o: o.name)
@pytest.mark.parametrize("bad", [30, -1, 2**40])
def test_a_training_is_told_when_it_asks_and_a_prediction_at_once(optimizer: RowSGD | RowAdam, bad: int) -> None:
    lookup = deferring(EmbeddingsConfig(dim=8, optimizer=optimizer))
    batch = make_batch(0)
    assert batch.bags is not None
    batch.bags.values()[8 + 3] = bad  # the fourth row's item
    message = rf"feature 'item': id {bad} is outside \[0, 30\).*table 'item', on rank 0"
    rows = lookup.finish(lookup.start(batch))
    lookup.fields(rows.by_feature, rows.masks, batch.dense_BF).sum().backward()
    lookup.finish(lookup.start(make_batch(1)))
    with pytest.raises(FeatureError, match=message):
        lookup.check_ids()
    with torch.no_grad(), pytest.raises(FeatureError, match=message):
        lookup.start(batch)
    with pytest.raises(FeatureError, match=message):
        lookup(batch)
    lookup.check_ids()
    assert bool(torch.isfinite(lookup(make_batch(0))).all())


def test_good_ids_are_looked_up_and_updated_the_same() -> None:
    config = EmbeddingsConfig(dim=8, init_std=1.0)
    plain, checked = make_lookup(config), deferring(config)
    for step in range(3):
        outputs = [lookup(make_batch(step)) for lookup in (plain, checked)]
        assert torch.equal(outputs[0], outputs[1])
        for output in outputs:
            output.square().sum().backward()
    for name, weight in plain.weights().items():
        assert torch.equal(weight, checked.weights()[name])
