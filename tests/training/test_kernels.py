"""Costs of fused look-ups are measured for real, noted one by one, and gone on with after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.plan import Shard, Span
from ziggurat.core.progress import Silent
from ziggurat.embeddings.kernel_time import Bags, TableMemory, kernel_seconds
from ziggurat.planning.autoshard.cost_network import CostNetwork
from ziggurat.planning.autoshard.features import shard_features
from ziggurat.planning.autoshard.pool import statistics, table_pool
from ziggurat.planning.usage import Usage
from ziggurat.training.placement import kernel_benchmark as kernels
from ziggurat.training.placement.cost_cache import kernel_folder
from ziggurat.training.placement.kernel_benchmark import Draw, TableRange, drawn, measure, measured

CPU = torch.device("cpu")
POOL = table_pool(tables=12, spread=0.3)


def bags(rows: int, columns: int, ids: int, examples: int = 64) -> Bags:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.full((examples,), ids // examples, dtype=torch.int64)
    return Bags(rows, columns, torch.randint(rows, (int(lengths.sum()),), generator=draw), lengths)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_every_call_is_timed(optimizer: str) -> None:
    steps = [[bags(1000, 8, 640), bags(50, 128, 64)]] * 2
    seconds = kernel_seconds(steps, optimizer, CPU, repeats=3)
    assert len(seconds) == 3
    assert all(0 < each < 10 for each in seconds)


def test_tables_of_one_kernel_after_the_other_lie_in_the_same_memory_as_zeros() -> None:
    memory = TableMemory()
    first, second = memory.zeros([2000, 10])
    assert (len(first), len(second)) == (2000, 10)
    start = first.data_ptr()
    kernel_seconds([[bags(100, 8, 640)]], "adagrad", CPU, memory=memory)
    (again,) = memory.zeros([1010])
    assert again.data_ptr() == start
    assert not again.any()
    (larger,) = memory.zeros([10_000])
    assert len(larger) == 10_000
    assert not larger.any()


def test_more_work_takes_longer() -> None:
    """Sixty-four times the ids, by far: not how long, only which is longer."""
    few, many = (min(kernel_seconds([[bags(20_000, 64, ids)]], "sgd", CPU, repeats=5)) for ids in (2048, 131_072))
    assert many > few


def test_a_set_is_the_same_whenever_it_is_drawn() -> None:
    for number in (0, 7):
        first, again = drawn(number, POOL), drawn(number, POOL)
        assert first == again
        assert first.bytes <= kernels.MOST_BYTES
    assert drawn(0, POOL) != drawn(1, POOL)


class Interrupted(Silent):
    """Ctrl-C behind the tenth set."""

    def advance(self, done: float, **figures: float | str) -> None:
        if done == 10:
            raise KeyboardInterrupt


def test_an_interrupted_measurement_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "EPOCHS", 3)  # the fit is not at stake here
    monkeypatch.setattr(kernels, "MOST_BYTES", 10**8)  # gigabytes of fresh pages take seconds
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, CPU, 24, Interrupted(), POOL)
    path = tmp_path / "samples.jsonl"
    before = path.read_text()
    assert len(before.splitlines()) == 10
    path.write_text(before + '{"features": [[1, 2')  # and a line that was being written
    threads = torch.get_num_threads()
    network = measure(tmp_path, CPU, 24, pool=POOL)
    assert torch.get_num_threads() == threads
    assert path.read_text().startswith(before)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 24
    assert all(line["seconds"] > 0 for line in lines)
    assert [len(line["features"]) for line in lines] == [len(drawn(number, POOL).parts) for number in range(24)]
    assert CostNetwork.load(tmp_path / "network.safetensors").origin == network.origin
    assert network.origin["samples"] == 22
    assert "one thread" in network.origin["machine"]


def test_what_was_measured_is_learned_from_as_a_whole_and_by_one_engine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "EPOCHS", 2)  # the fit is not at stake here
    monkeypatch.setattr(kernels, "MOST_BYTES", 10**7)  # small tables alone are measured
    first = measure(tmp_path, CPU, 20, pool=POOL)
    written = (tmp_path / "network.safetensors").stat().st_mtime_ns
    assert measure(tmp_path, CPU, 10, pool=POOL).origin == first.origin  # fewer are asked for than there are
    assert (tmp_path / "network.safetensors").stat().st_mtime_ns == written
    line = (tmp_path / "samples.jsonl").read_text().splitlines()[0]
    (tmp_path / "placements.jsonl").write_text(json.dumps({"round": 0, **json.loads(line)}) + "\n")
    assert measure(tmp_path, CPU, 20, pool=POOL).origin["sets"] == 21
    (tmp_path / "network.safetensors").write_bytes(b"")
    assert measure(tmp_path, CPU, 20, pool=POOL).origin["sets"] == 21  # fitted again
    whole = (tmp_path / "samples.jsonl").read_text()
    (tmp_path / "samples.jsonl").write_text(whole.replace('{"features"', "features", 3))
    with pytest.raises(DataError, match=r"samples\.jsonl, line 1: is damaged"):
        measure(tmp_path, CPU, 20, pool=POOL)
    (tmp_path / "samples.jsonl").write_text(whole)
    monkeypatch.setattr(torch, "__version__", "9.9.9")  # as if another one were installed
    with pytest.raises(ConfigError, match=r"was measured by .*; here is .* torch 9\.9\.9") as refused:
        measure(tmp_path, CPU, 30, pool=POOL)
    assert "name another folder, or remove samples.jsonl" in refused.value.hint
    monkeypatch.undo()
    (tmp_path / "measured_on.json").unlink()
    with pytest.raises(ConfigError, match="was measured by an older ziggurat"):
        measure(tmp_path, CPU, 30, pool=POOL)


def test_a_measured_set_is_described_by_what_was_looked_up() -> None:
    found = drawn(3, POOL)
    line = measured(found, CPU, seed=1, repeats=1)
    steps = found.steps(40, np.random.default_rng(0))
    for table, features in enumerate(line["features"]):
        ids = np.mean([len(step[table].ids) for step in steps])
        touched = np.mean([len(np.unique(step[table].ids)) for step in steps])
        assert 2 ** features[2] - 1 == pytest.approx(ids, rel=0.1, abs=8)
        assert 2 ** features[4] - 1 == pytest.approx(touched, rel=0.1, abs=8)


def test_a_range_of_rows_is_described_and_asked_for_as_a_planner_sees_it() -> None:
    """Features are those of a shard, ids those of the table that fall into it."""
    table = POOL[2]
    spec, rows = table.spec("adagrad"), Span(table.rows // 4, table.rows // 4)
    part = TableRange(table, rows, 8)
    usage = Usage.of(spec, statistics([table]))
    shard = Shard(0, rows, Span(0, 8))
    expected = shard_features(spec, shard, "row_wise", usage, 512, 2)
    assert Draw((part,), 1024, "adagrad").features[0] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    ids, lengths = table.ids(1024, np.random.default_rng(0))
    asked, whole = part.asked(ids, lengths), TableRange(table, Span(0, table.rows), 8).asked(ids, lengths)
    inside = (ids >= rows.first) & (ids < rows.first + rows.size)
    assert asked.ids.tolist() == (ids[inside] - rows.first).tolist()
    assert (asked.lengths <= whole.lengths).all()
    assert int(asked.lengths.sum()) == len(asked.ids)
    assert int(asked.lengths[:100].sum()) == inside[: int(lengths[:100].sum())].sum()


def test_measurements_of_a_machine_lie_in_its_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = kernel_folder(CPU)
    assert folder.parent == tmp_path / "ziggurat" / "kernels"
    assert folder.name.endswith("-one-thread")
