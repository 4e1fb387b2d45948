"""Followers of damaged, deleted or replaced checkpoints: errors are named, and no update is applied partially."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_kit import Table, same_bits, saver, write_legacy_checkpoint
from follower_kit import POLICIES, assert_holds, bits_of, dense, held_tensors, manifest_of, read_only
from torch import Tensor

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.follow import follower as follower_module
from ziggurat.checkpoint.follow.follower import Follower
from ziggurat.checkpoint.reader import folder_of
from ziggurat.core.errors import ConfigError, RunFolderError


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", keep=100)


def damage(path: Path, harm: str) -> None:
    content = bytearray(path.read_bytes())
    match harm:
        case "flipped":
            content[len(content) // 2] ^= 1
        case "torn":
            del content[len(content) // 2 :]
        case _:
            path.unlink()
            return
    path.write_bytes(content)


@pytest.mark.parametrize("harm", ["flipped", "torn", "missing"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_damaged_file_is_named_and_nothing_changes(folder: CheckpointFolder, policy: str, harm: str) -> None:
    table, follower = Table(), Follower(read_only(folder))
    with saver(folder, table, policy=policy) as saving:
        saving.save(1, dense(1), {})
        saving.finish()
        follower.advance()
        table.change(20)
        saving.save(2, dense(2), {})
        saving.finish()
        before = bits_of(held_tensors(follower))
        for path in sorted(Path(folder.where).glob("step-00000002/*")):
            content = path.read_bytes()
            damage(path, harm)
            if harm == "missing" and path.name == "manifest.json":
                assert follower.advance() is None  # without a manifest it is not a checkpoint
            else:
                with pytest.raises(RunFolderError, match=path.name):
                    follower.advance()
            assert follower.step == 1
            assert bits_of(held_tensors(follower)) == before
            path.write_bytes(content)
        damage(next(Path(folder.where).glob("step-00000002/rank-*-00001.*")), harm)
        table.change(20)
        saving.save(3, dense(3), {}, exact=True)
    if policy == "consecutive":  # the third needs the second
        with pytest.raises(RunFolderError, match="step-00000002/rank"):
            follower.advance()
        assert bits_of(held_tensors(follower)) == before
        return
    update = follower.advance()
    assert update is not None
    assert (update.from_step, update.to_step) == (1, 3)
    assert_holds(follower, folder, 3)


def test_an_older_complete_checkpoint_is_taken_and_the_damaged_one_reported(folder: CheckpointFolder) -> None:
    table, follower = Table(), Follower(read_only(folder))
    with saver(folder, table, policy="one_shot") as saving:
        for step in range(1, 5):
            saving.save(step, dense(step), {})
            saving.finish()
            if step == 1:
                follower.advance()
            table.change(10)
        damaged = next(Path(folder.where).glob("step-00000004/rank-00000-00001*"))
        damage(damaged, "flipped")
        update = follower.advance()
        assert update is not None
        assert (update.to_step, len(update.skipped)) == (3, 1)
        assert damaged.name in str(update.skipped[0])
        assert_holds(follower, folder, 3)
        for _ in range(2):
            with pytest.raises(RunFolderError, match=damaged.name):
                follower.advance()
            assert follower.step == 3  # it does not go back to 2
        saving.save(5, dense(5), {})
    update = follower.advance()
    assert update is not None
    assert (update.to_step, update.skipped) == (5, ())
    assert_holds(follower, folder, 5)


def test_the_next_full_checkpoint_replaces_a_damaged_chain(folder: CheckpointFolder) -> None:
    table, follower = Table(), Follower(read_only(folder))
    with saver(folder, table, policy="consecutive", consecutive_deltas=3) as saving:
        for step in range(1, 6):
            saving.save(step, dense(step), {})
            saving.finish()
            if step == 3:
                damage(next(Path(folder.where).glob("step-00000003/rank-00000-00001*")), "torn")
            if step in (3, 4):
                with pytest.raises(RunFolderError, match="step-00000003/rank"):
                    follower.advance()
                assert follower.step == 2
            else:
                update = follower.advance()
                assert update is not None
                assert update.full == (step != 2)
                assert_holds(follower, folder, step)
            table.change(10)


def test_a_checkpoint_that_is_pruned_while_it_is_read(tmp_path: Path) -> None:
    folder, table = CheckpointFolder(tmp_path, keep=1), Table()
    store = read_only(folder)
    follower = Follower(store)
    with saver(folder, table, policy="full") as saving:
        saving.save(1, dense(1), {})
        saving.finish()
        reached = 1

        def prune(read: str, name: str) -> None:
            nonlocal reached
            if name.startswith("rank") and "-00001." in name and read == folder_of(reached) and reached < 4:
                reached += 1
                table.change(5)
                saving.save(reached, dense(reached), {})
                saving.finish()

        store.before = prune
        update = follower.advance()
    assert update is not None
    assert (update.to_step, update.skipped) == (4, ())
    assert_holds(follower, folder, 4)


def test_a_step_that_was_written_again_is_followed_by_its_id(folder: CheckpointFolder) -> None:
    table, follower = Table(), Follower(read_only(folder))
    with saver(folder, table, policy="consecutive", bits=4) as saving:
        for step in (1, 2, 3):
            saving.save(step, dense(step), {})
            table.change(10)
        saving.finish()
        follower.advance()
        first = follower.reference
        saving.save(3, dense(4), {}, exact=True)
    update = follower.advance()
    assert update is not None
    assert (update.from_step, update.to_step, update.full) == (3, 3, True)
    assert follower.reference != first
    assert_holds(follower, folder, 3)
    assert torch.equal(follower.tables["item"], table.weight_RD)


def test_a_training_that_begins_anew_is_followed(folder: CheckpointFolder) -> None:
    table, follower = Table(), Follower(read_only(folder))
    with saver(folder, table) as saving:
        for step in (7, 8):
            saving.save(step, dense(step), {})
            table.change(10)
    follower.advance()
    shutil.rmtree(folder.where)
    assert follower.advance() is None
    assert follower.step == 8
    other = Table(seed=5)
    with saver(folder, other) as saving:
        saving.save(2, dense(2), {})
    update = follower.advance()
    assert update is not None
    assert (update.from_step, update.to_step, update.full) == (8, 2, True)
    assert_holds(follower, folder, 2)


def test_unknown_tables_and_groups_are_named(folder: CheckpointFolder) -> None:
    with saver(folder, Table()) as saving:
        saving.save(1, {"average/w": torch.ones(3), "random/torch": torch.zeros(2)}, {})
    store = read_only(folder)
    with pytest.raises(ConfigError, match=r"no table 'itm'[\s\S]*item"):
        Follower(store, ["itm"]).advance()
    wrong = torch.zeros(3, 7)
    with pytest.raises(ConfigError, match=r"'item' is \(300, 7\), the one held is \(3, 7\)"):
        next(Follower(store, {"item": wrong}).updates())
    assert not wrong.any()
    with pytest.raises(ConfigError, match=r"no group 'averages'[\s\S]*average"):
        Follower(store, groups=["averages"]).advance()
    averaged = Follower(store, [], groups=["average"])
    averaged.advance()
    assert same_bits(averaged.dense, {"average/w": torch.ones(3)})
    assert not averaged.tables


def test_format_1_is_refused_and_later_checkpoints_are_followed(folder: CheckpointFolder) -> None:
    groups = {"tables": {"item": torch.zeros(300, 7)}}
    write_legacy_checkpoint(Path(folder.where) / folder_of(1), groups, {})
    follower = Follower(read_only(folder))
    with pytest.raises(RunFolderError, match=r"step-00000001/?: of format 1"):
        follower.advance()
    with saver(folder, Table()) as saving:
        saving.save(2, dense(2), {})
    follower.advance()
    assert_holds(follower, folder, 2)


def test_after_an_interrupted_update_everything_is_read_again(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = (Table("user", 500, 7), Table("item", 90, 3, seed=1))
    follower, count = Follower(read_only(folder)), 0
    put = follower_module.put

    def interrupted(rows: Any, table: Tensor) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        put(rows, table)

    with saver(folder, *tables) as saving:
        saving.save(1, dense(1), {})
        saving.finish()
        follower.advance()
        for table in tables:
            table.change(20)
        saving.save(2, dense(2), {})
    with monkeypatch.context() as patched:
        patched.setattr(follower_module, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            follower.advance()
    assert follower.step is None
    update = follower.advance()
    assert update is not None
    assert (update.from_step, update.to_step, update.full) == (None, 2, True)
    assert_holds(follower, folder, 2)


def test_verify_names_what_differs(tmp_path: Path) -> None:
    folder, table = CheckpointFolder(tmp_path, keep=1), Table()
    follower = Follower(read_only(folder))
    with pytest.raises(RunFolderError, match="no checkpoint of it is held"):
        follower.verify()
    with saver(folder, table, policy="full", bits=4) as saving:
        saving.save(1, dense(1), {})
        saving.finish()
        follower.advance()
        follower.verify()
        follower.tables["item"][[7, 9], 2] += 1
        with pytest.raises(RunFolderError, match="table 'item': 2 of 300 rows, row 7 first"):
            follower.verify()
        follower = Follower(read_only(folder))
        follower.advance()
        follower.dense["dense/w"][0, 0] = 5
        with pytest.raises(RunFolderError, match="'dense'"):
            follower.verify()
        saving.save(1, dense(1), {})
        saving.finish()
        with pytest.raises(RunFolderError, match="written again"):
            follower.verify()
        saving.save(2, dense(2), {})
        saving.finish()
        with pytest.raises(RunFolderError, match="no checkpoint of step 1"):
            follower.verify()


def test_a_full_checkpoint_without_some_of_the_rows(folder: CheckpointFolder) -> None:
    with saver(folder, Table()) as saving:
        saving.save(1, dense(1), {})
    manifest = manifest_of(folder, 1)
    files = tuple(file for file in manifest.files if not file.blocks)
    folder.store.write(folder_of(1), "manifest.json", manifest.model_copy(update={"files": files}).to_bytes())
    with pytest.raises(RunFolderError, match="its files have 0 numbers of table 'item', which has 2,100"):
        Follower(read_only(folder)).advance()
