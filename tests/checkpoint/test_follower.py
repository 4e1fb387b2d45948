"""A follower holds the same weights as a restore of the newest checkpoint, and reads only the files it needs."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_kit import Table, load_tensors, saver
from follower_kit import POLICIES, assert_holds, assert_rows_reported, dense, manifest_of, read_only
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.follow.follower import Follower
from ziggurat.checkpoint.format import blocks
from ziggurat.checkpoint.format.manifest import ManifestFile, TableShape
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.saver import Saver
from ziggurat.core.errors import RunFolderError
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.dirty_rows import DirtyRows, TrackedShard
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.training.process_group import process_group

DELTAS = POLICIES[1:]


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", keep=100)


@pytest.mark.parametrize("keep", [1, 100])
@pytest.mark.parametrize("bits", [32, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_follower_holds_what_a_restore_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, bits: int, keep: int
) -> None:
    monkeypatch.setattr(blocks, "FILE_BYTES", 3_000)
    folder = CheckpointFolder(tmp_path, keep=keep)
    tables = (Table("user", 500, 7), Table("item", 90, 3, seed=1))
    follower, late = Follower(read_only(folder)), Follower(read_only(folder))
    assert follower.advance() is None
    assert (follower.step, follower.latest()) == (None, None)
    with saver(folder, *tables, policy=policy, bits=bits, consecutive_deltas=4) as saving:
        for step in range(1, 13):
            saving.save(step, dense(step), {})
            saving.finish()
            for each in (follower, late)[: 1 + (step % 5 == 0)]:
                before, was = each.step, {name: table.clone() for name, table in each.tables.items()}
                update = each.advance()
                assert update is not None
                assert (update.from_step, update.to_step, update.skipped) == (before, step, ())
                assert_holds(each, folder, step)
                each.verify()
                assert each.advance() is None
                assert_rows_reported(update, was, each.tables)
            assert bits == 4 or all(torch.equal(follower.tables[table.name], table.weight_RD) for table in tables)
            for table in tables:
                table.change(20)


@pytest.mark.parametrize(
    ("policy", "read", "full"),
    [("full", {5}, True), ("one_shot", {5}, False), ("intermittent", {5}, False), ("consecutive", {3, 4, 5}, False)],
)
def test_only_what_is_missing_is_read(folder: CheckpointFolder, policy: str, read: set[int], full: bool) -> None:
    table, store = Table(rows=1000), read_only(folder)
    follower = Follower(store)
    with saver(folder, table, policy=policy) as saving:
        for step in range(1, 6):
            saving.save(step, dense(step), {})
            if step == 2:
                saving.finish()
                follower.advance()
                store.steps_read()
            table.change(10)
    update = follower.advance()
    assert update is not None
    assert (update.full, store.steps_read()) == (full, read)
    files = [file for step in read for file in manifest_of(folder, step).files]
    rows = sum(file.bytes for file in files if file.blocks)
    assert update.bytes == rows + sum(file.bytes for file in manifest_of(folder, 5).files if not file.blocks)
    assert full or 10 <= len(update.rows["item"]) <= 40
    assert_holds(follower, folder, 5)


def test_a_consecutive_follower_needs_no_checkpoint_before_its_own(folder: CheckpointFolder) -> None:
    table, follower = Table(), Follower(read_only(folder))
    with saver(folder, table, policy="consecutive") as saving:
        for step in range(1, 4):
            saving.save(step, dense(step), {})
            saving.finish()
            follower.advance()
            table.change(10)
        saving.save(4, dense(4), {})
        expected = table.weight_RD.clone()
    folder.store.delete(folder_of(1))
    update = follower.advance()
    assert update is not None
    assert not update.full
    assert torch.equal(follower.tables["item"], expected)


MOVES = ("save", "save", "save", "follow", "follow", "again", "exact", "restart", "back")


class _Training:
    """A training that saves, restarts, goes back or saves a step again, and a follower that advances at times."""

    def __init__(self, root: Path, policy: str, bits: int, keep: int) -> None:
        self.folder = CheckpointFolder(root, keep=keep)
        self.follower = Follower(read_only(self.folder))
        self.config: dict[str, Any] = {"policy": policy, "bits": bits, "consecutive_deltas": 3}
        self.table, self.step = Table(rows=40, dim=3), 0
        self.writing = contextlib.ExitStack()
        self.saving = self.start()

    def start(self) -> Saver:
        self.writing.close()
        return self.writing.enter_context(saver(self.folder, self.table, **self.config))

    def do(self, move: str) -> None:
        match move:
            case "save" | "exact":
                self.step += 1
                self.saving.save(self.step, dense(self.step), {}, exact=move == "exact")
            case "again" if self.step:
                self.saving.save(self.step, dense(self.step), {})
            case "restart":
                self.saving = self.start()
            case "back":
                self.writing.close()
                for step in self.folder.steps()[-2:]:
                    self.folder.store.delete(folder_of(step))
                self.step = max(0, self.step - 2)
                self.saving = self.start()
            case _:
                self.follow()
        self.table.change(int(self.step) % 9)

    def follow(self) -> None:
        self.saving.finish()
        before = {name: table.clone() for name, table in self.follower.tables.items()}
        was, newest = self.follower.reference, self.folder.last()
        update = self.follower.advance()
        if newest is None:
            assert update is None
            return
        assert (update is None) == (was == manifest_of(self.folder, newest).reference)
        assert_holds(self.follower, self.folder, newest)
        if update is not None:
            assert_rows_reported(update, before, self.follower.tables)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.sampled_from([4, 32]),
    st.integers(1, 3),
    st.lists(
        st.sampled_from(["save", "save", "save", "follow", "follow", "again", "exact", "restart", "back"]), max_size=16
    ),
)
def test_a_follower_matches_a_restore_after_any_sequence_of_saves_and_restarts(
    policy: str, bits: int, keep: int, moves: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        training = _Training(Path(root), policy, bits, keep)
        with training.writing:
            for move in (*moves, "follow"):
                training.do(move)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_newer_delta_has_all_rows_of_an_older_one(data: st.DataObject) -> None:
    """This is why the newest delta since a full checkpoint can be applied on top of any older one."""
    ids = st.lists(st.integers(0, 29), max_size=6)
    with tempfile.TemporaryDirectory() as root:
        folder, table = CheckpointFolder(Path(root), keep=100), Table(rows=30, dim=2)
        followers = [Follower(read_only(folder)) for _ in range(3)]
        with saver(folder, table, policy="one_shot") as saving:
            for step in range(1, 6):
                saving.save(step, {}, {})
                saving.finish()
                for follower in followers:
                    if step == 5 or data.draw(st.booleans()):
                        follower.advance()
                drawn = torch.tensor(data.draw(ids), dtype=torch.int64)
                table.dirty.touch(drawn)
                table.weight_RD[drawn] += step
        last = [manifest_of(folder, step) for step in range(1, 6)]
        assert [each.kind for each in last[1:]] == ["delta"] * 4
        for follower in followers:
            assert_holds(follower, folder, 5)


def test_rows_missing_in_a_newer_delta_come_from_the_full_checkpoint(folder: CheckpointFolder) -> None:
    """A training goes back to its full checkpoint and then changes other rows."""
    table, store = Table(), read_only(folder)
    follower = Follower(store)
    with saver(folder, table, policy="one_shot") as saving:
        saving.save(1, dense(1), {})
        saving.finish()
        base = table.weight_RD.clone()
        table.change(20)
        saving.save(2, dense(2), {})
        saving.finish()
        follower.advance()
        table.weight_RD[:] = base
        table.dirty.begin_snapshot("base", "base").drop()  # as if nothing had changed
        table.change(5)
        saving.save(3, dense(3), {})
    assert [need.step for need in manifest_of(folder, 3).needs] == [1]
    store.steps_read()
    update = follower.advance()
    assert update is not None
    assert update.full
    assert store.steps_read() == {1, 3}
    assert_holds(follower, folder, 3)
    assert torch.equal(follower.tables["item"], table.weight_RD)


def test_rows_of_all_applied_deltas_count_as_changed(folder: CheckpointFolder) -> None:
    """In a hand-made chain the newest delta has the rows of the delta before it, but not of the one before that."""
    table, follower = Table(), Follower(read_only(folder))
    with saver(folder, table, policy="consecutive") as saving:
        for step, ids in enumerate([[], [1], [2], [2, 3]], 1):
            table.dirty.touch(torch.tensor(ids, dtype=torch.int64))
            table.weight_RD[ids] += 1
            saving.save(step, dense(step), {})
            saving.finish()
            if step < 4:
                follower.advance()
    last = manifest_of(folder, 4)
    folder.store.write(folder_of(4), "manifest.json", last.model_copy(update={"needs": last.needs[:1]}).to_bytes())
    follower.advance()
    assert_holds(follower, folder, 4)
    assert not torch.equal(follower.tables["item"][1], table.weight_RD[1])


class Columns:
    """A table that is split by columns into two shards."""

    def __init__(self) -> None:
        self.weight_RD = torch.rand(50, 8, generator=torch.Generator().manual_seed(0))
        parts = [(0, self.weight_RD[:, :3].clone()), (3, self.weight_RD[:, 3:].clone())]
        self.dirty = [DirtyRows({"": part}) for _, part in parts]
        spec = TableSpec("item", 50, 8, ("item",), "sum", {"name": "sgd", "lr": 0.1, "l2": 0.0}, 0.01)
        self.shards = [
            TrackedShard("item", spec, TensorSlice("item", part, (50, 8), (0, first)), {}, dirty)
            for (first, part), dirty in zip(parts, self.dirty, strict=True)
        ]

    def change(self, part: int, ids: list[int]) -> None:
        shard, dirty = self.shards[part], self.dirty[part]
        dirty.touch(torch.tensor(ids))
        begin = shard.weight.first[1]
        self.weight_RD[ids, begin : begin + shard.weight.tensor.shape[1]] += 1
        shard.weight.tensor[ids] += 1


@pytest.mark.parametrize("policy", DELTAS)
def test_columns_of_several_shards(folder: CheckpointFolder, policy: str) -> None:
    table, store = Columns(), read_only(folder)
    follower = Follower(store)
    shape = TableShape(rows=50, dim=8, states={})
    config = CheckpointsConfig(policy=policy)
    with (
        process_group(torch.device("cpu")),
        Saver(folder, config, table.shards, {"item": shape}, versions={}) as saving,
    ):
        for step, (part, ids) in enumerate([(0, [1, 2]), (1, [2, 3]), (0, [9]), (1, [1])], 1):
            saving.save(step, dense(step), {})
            saving.finish()
            update = follower.advance()
            assert update is not None
            assert update.full == (step == 1)
            assert torch.equal(follower.tables["item"], table.weight_RD)
            table.change(part, ids)
        base_RD = table.weight_RD.clone()
        saving.save(5, dense(5), {})
        saving.finish()
        follower.advance()
        if policy == "consecutive":
            return
        for dirty in table.dirty:
            dirty.begin_snapshot(
                "base", "base"
            ).drop()  # as if nothing had changed since the first; both shards go back to it
        first_RD = load_tensors(folder, 1)["tables/item"]
        table.weight_RD[:] = first_RD
        for shard in table.shards:
            begin = shard.weight.first[1]
            shard.weight.tensor[:] = first_RD[:, begin : begin + shard.weight.tensor.shape[1]]
        table.change(0, [1, 2, 3, 9])  # the ids of all rows that differ, but not all of their columns
        saving.save(6, dense(6), {})
    update = follower.advance()
    assert update is not None
    assert update.full
    assert torch.equal(follower.tables["item"], table.weight_RD)
    assert not torch.equal(table.weight_RD, base_RD)


def of(file: ManifestFile, table: str) -> bool:
    return any(block.table == table for block in file.blocks)


def test_a_follower_fills_given_tensors_of_some_tables(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "FILE_BYTES", 1)  # one file per table
    tables = (Table("user", 500, 7), Table("item", 90, 4, seed=1))
    half_RD = torch.nn.Parameter(torch.zeros(4, 90, dtype=torch.half).t())
    store = read_only(folder)
    follower, read = Follower(store, {"item": half_RD}, groups=()), set[str]()
    with saver(folder, *tables) as saving:
        for step in (1, 2):
            saving.save(step, dense(step), {})
            saving.finish()
            update = follower.advance()
            assert update is not None
            assert set(update.rows) == {"item"}
            assert update.bytes == sum(file.bytes for file in manifest_of(folder, step).files if of(file, "item"))
            assert torch.equal(half_RD, tables[1].weight_RD.half())
            read |= {name for _, name in store.read_files}
            follower.verify()
            store.read_files.clear()
            for table in tables:
                table.change(20)
    files = [file for step in (1, 2) for file in manifest_of(folder, step).files]
    assert read == {"manifest.json", *(file.name for file in files if of(file, "item"))}
    assert follower.tables["item"].data_ptr() == half_RD.data_ptr()
    assert not follower.dense
    named = Follower(store, ["user"])
    named.advance()
    assert set(named.tables) == {"user"}
    made = named.tables["user"]
    with saver(folder, *tables) as saving:
        saving.save(3, dense(3), {})
    named.advance()
    assert named.tables["user"] is made  # the tensor is filled in place
    assert torch.equal(made, tables[0].weight_RD)


def test_an_update_from_a_full_checkpoint_lists_the_rows_that_differ(folder: CheckpointFolder) -> None:
    table = Table()
    table.weight_RD[9] = 0
    mine_RD = table.weight_RD.clone()
    mine_RD[[4, 200]] += 1
    mine_RD[9] = -0.0
    follower = Follower(read_only(folder), {"item": mine_RD})
    with saver(folder, table) as saving:
        saving.save(1, {}, {})
    update = follower.advance()
    assert update is not None
    assert update.rows["item"].tolist() == [4, 9, 200]
    assert not torch.signbit(mine_RD[9]).any()


def test_a_run_in_place_of_its_checkpoints_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: shop\n")
    with pytest.raises(RunFolderError, match=r"is a run; a follower takes its checkpoints\n.*checkpoints"):
        Follower(str(tmp_path))
