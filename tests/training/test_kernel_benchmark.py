"""The benchmark measures fused lookups, stores every result when it is complete, and resumes when interrupted."""

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
from ziggurat.training.placement.cost_cache import cost_cache_folder
from ziggurat.training.placement.kernel_benchmark import LookupSet, TableRange, draw_set, measure, measure_set

CPU = torch.device("cpu")
POOL = table_pool(tables=12, spread=0.3)


def bags(rows: int, columns: int, ids: int, examples: int = 64) -> Bags:
    random = torch.Generator().manual_seed(0)
    lengths = torch.full((examples,), ids // examples, dtype=torch.int64)
    return Bags(rows, columns, torch.randint(rows, (int(lengths.sum()),), generator=random), lengths)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_every_call_is_timed(optimizer: str) -> None:
    steps = [[bags(1000, 8, 640), bags(50, 128, 64)]] * 2
    seconds = kernel_seconds(steps, optimizer, CPU, repeats=3)
    assert len(seconds) == 3
    assert all(0 < each < 10 for each in seconds)


def test_tables_of_consecutive_kernels_reuse_memory_that_is_zeroed() -> None:
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
    """Compares two times that differ by a factor of 64, so that noise does not matter."""
    few, many = (min(kernel_seconds([[bags(20_000, 64, ids)]], "sgd", CPU, repeats=5)) for ids in (2048, 131_072))
    assert many > few


def test_a_number_always_draws_the_same_set() -> None:
    for number in (0, 7):
        first, again = draw_set(number, POOL), draw_set(number, POOL)
        assert first == again
        assert first.bytes <= kernels.MAX_BYTES
    assert draw_set(0, POOL) != draw_set(1, POOL)


class Interrupted(Silent):
    """Raises KeyboardInterrupt after the tenth set."""

    def advance(self, done: float, **figures: float | str) -> None:
        if done == 10:
            raise KeyboardInterrupt


def test_an_interrupted_measurement_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "EPOCHS", 3)  # the quality of the fit is not tested here
    monkeypatch.setattr(kernels, "MAX_BYTES", 10**8)  # gigabytes of fresh pages take seconds
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, CPU, 24, Interrupted(), POOL)
    path = tmp_path / "samples.jsonl"
    before = path.read_text()
    assert len(before.splitlines()) == 10
    path.write_text(before + '{"features": [[1, 2')  # as if killed while writing a line
    threads = torch.get_num_threads()
    network = measure(tmp_path, CPU, 24, pool=POOL)
    assert torch.get_num_threads() == threads
    assert path.read_text().startswith(before)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 24
    assert all(line["seconds"] > 0 for line in lines)
    assert [len(line["features"]) for line in lines] == [len(draw_set(number, POOL).parts) for number in range(24)]
    assert CostNetwork.load(tmp_path / "network.safetensors").origin == network.origin
    assert network.origin["samples"] == 22
    assert "one thread" in network.origin["machine"]


def test_the_network_is_fitted_to_all_measurements_of_one_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "EPOCHS", 2)  # the quality of the fit is not tested here
    monkeypatch.setattr(kernels, "MAX_BYTES", 10**7)  # only small tables are measured
    first = measure(tmp_path, CPU, 20, pool=POOL)
    written = (tmp_path / "network.safetensors").stat().st_mtime_ns
    assert measure(tmp_path, CPU, 10, pool=POOL).origin == first.origin  # fewer sets than there are
    assert (tmp_path / "network.safetensors").stat().st_mtime_ns == written
    line = (tmp_path / "samples.jsonl").read_text().splitlines()[0]
    (tmp_path / "placements.jsonl").write_text(json.dumps({"round": 0, **json.loads(line)}) + "\n")
    assert measure(tmp_path, CPU, 20, pool=POOL).origin["sets"] == 21
    (tmp_path / "network.safetensors").write_bytes(b"")
    assert measure(tmp_path, CPU, 20, pool=POOL).origin["sets"] == 21  # fitted again
    intact = (tmp_path / "samples.jsonl").read_text()
    (tmp_path / "samples.jsonl").write_text(intact.replace('{"features"', "features", 3))
    with pytest.raises(DataError, match=r"samples\.jsonl, line 1: is not valid JSON"):
        measure(tmp_path, CPU, 20, pool=POOL)
    (tmp_path / "network.safetensors").unlink()
    (tmp_path / "samples.jsonl").write_text(intact.replace('"seconds": ', '"seconds": -', 1))
    with pytest.raises(DataError, match=r"measurement 1 of samples\.jsonl and placements\.jsonl: has no features"):
        measure(tmp_path, CPU, 20, pool=POOL)
    (tmp_path / "samples.jsonl").write_text(intact)
    known = (tmp_path / "measured_on.json").read_text()
    (tmp_path / "measured_on.json").write_text(known.replace('"versions": {', '"versions": 3, "others": {'))
    with pytest.raises(DataError, match=r"measured_on\.json: versions is 3"):
        measure(tmp_path, CPU, 20, pool=POOL)
    (tmp_path / "measured_on.json").write_text(known)
    monkeypatch.setattr(torch, "__version__", "9.9.9")  # as if another version were installed
    with pytest.raises(ConfigError, match=r"was measured by .*; here is .* torch 9\.9\.9") as refused:
        measure(tmp_path, CPU, 30, pool=POOL)
    assert "name another folder, or remove samples.jsonl" in refused.value.hint
    monkeypatch.undo()
    (tmp_path / "measured_on.json").unlink()
    with pytest.raises(ConfigError, match="was measured by an older ziggurat"):
        measure(tmp_path, CPU, 30, pool=POOL)


def test_the_features_of_a_set_describe_its_lookups() -> None:
    lookups = draw_set(3, POOL)
    line = measure_set(lookups, CPU, seed=1, repeats=1)
    steps = lookups.draw_steps(40, np.random.default_rng(0))
    for table, features in enumerate(line["features"]):
        ids = np.mean([len(step[table].ids) for step in steps])
        touched = np.mean([len(np.unique(step[table].ids)) for step in steps])
        assert 2 ** features[2] - 1 == pytest.approx(ids, rel=0.1, abs=8)
        assert 2 ** features[4] - 1 == pytest.approx(touched, rel=0.1, abs=8)


def test_a_row_range_has_the_features_and_the_ids_of_a_row_wise_shard() -> None:
    table = POOL[2]
    spec, rows = table.spec("adagrad"), Span(table.rows // 4, table.rows // 4)
    part = TableRange(table, rows, 8)
    usage = Usage.of(spec, statistics([table]))
    shard = Shard(0, rows, Span(0, 8))
    expected = shard_features(spec, shard, "row_wise", usage, 512, 2)
    assert LookupSet((part,), 1024, "adagrad").features[0] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    ids, lengths = table.ids(1024, np.random.default_rng(0))
    found, complete = part.bags(ids, lengths), TableRange(table, Span(0, table.rows), 8).bags(ids, lengths)
    inside = (ids >= rows.first) & (ids < rows.first + rows.size)
    assert found.ids.tolist() == (ids[inside] - rows.first).tolist()
    assert (found.lengths <= complete.lengths).all()
    assert int(found.lengths.sum()) == len(found.ids)
    assert int(found.lengths[:100].sum()) == inside[: int(lengths[:100].sum())].sum()


def test_measurements_are_stored_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cost_cache_folder(CPU)
    assert folder.parent == tmp_path / "ziggurat" / "kernels"
    assert folder.name.endswith("-one-thread")
