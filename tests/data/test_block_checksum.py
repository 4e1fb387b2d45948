"""A block's checksum covers its values and nothing else, and the loader compares it with every block it reads."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.data.conftest import SCHEMA, encoded_rows
from ziggurat.core.errors import DataError
from ziggurat.data.encoded.block_checksum import block_checksum
from ziggurat.data.encoded.dataset import SPLITS, Dataset, DatasetWriter, arrow_schema
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.encoded.manifest import manifest, record_block_checksums, split_files, write_manifest

MakeDataset = Callable[..., Dataset]


def test_where_arrow_keeps_a_block_does_not_matter(make_dataset: MakeDataset) -> None:
    block = make_dataset().split("train").read(3)
    expected = block_checksum(block)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as stream:
        stream.write_batch(block)
    assert block_checksum(pa.ipc.open_stream(sink.getvalue()).read_next_batch()) == expected
    twice = pa.concat_batches([block, block])
    assert block_checksum(twice.slice(block.num_rows)) == expected
    assert block_checksum(twice.slice(0, block.num_rows)) == expected
    assert block_checksum(twice) != expected


def test_every_value_counts(make_dataset: MakeDataset) -> None:
    block = make_dataset().split("train").read(0)
    known = {block_checksum(block)}
    for number, column in enumerate(block.columns):
        values = column.to_pylist()
        place = next(row for row, value in enumerate(values) if value != [])
        values[place] = [*values[place], 1] if isinstance(values[place], list) else values[place] + 1
        other = block.set_column(number, block.schema.field(number), pa.array(values, column.type))
        known.add(block_checksum(other))
    moved = [[], [1, 2]], [[1], [2]]  # the same values, divided otherwise
    for lists in moved:
        known.add(block_checksum(pa.record_batch({"a": pa.array(lists, pa.list_(pa.int32()))})))
    assert len(known) == 1 + block.num_columns + len(moved)


@pytest.mark.parametrize("first", [0, 3, 6, 9])
def test_any_bit_of_a_file_is_harmless_or_named(make_dataset: MakeDataset, first: int) -> None:
    dataset = make_dataset(train=100, block_rows=40)
    path = dataset.folder / "train" / "00000.arrow"
    whole = path.read_bytes()
    expected = [dataset.split("train").read(block) for block in range(3)]
    expected = [pa.RecordBatch.from_pydict(block.to_pydict(), block.schema) for block in expected]
    caught: list[DataError] = []
    for byte in range(first, len(whole), 12):
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << byte // 12 % 8
        path.write_bytes(damaged)
        split = Dataset(dataset.folder).split("train")
        for block in range(3):
            try:
                assert split.read(block).equals(expected[block])
            except DataError as error:
                caught.append(error)
    assert all(error.problem.startswith(f"{path}: ") and "prepare" in error.hint for error in caught)
    assert len(caught) > len(whole) / 40


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_loader_names_a_damaged_block(make_dataset: MakeDataset, shuffle: bool, prefetch: int) -> None:
    dataset = make_dataset()
    path = dataset.folder / "train" / "00000.arrow"
    data = bytearray(path.read_bytes())
    first = dataset.split("train").read(5)  # the second byte of a float of its first column
    place = data.index(first.column(0).to_numpy().tobytes())
    data[place + 1] ^= 2
    path.write_bytes(data)
    loader = Loader(
        Dataset(dataset.folder).split("train"), SCHEMA, 50, shuffle=shuffle, prefetch=prefetch, pool_blocks=2
    )
    with pytest.raises(DataError, match=r"00000\.arrow: block 5 \(from byte [\d,]+ on\) is damaged: its content"):
        list(loader.epoch(Cursor()))


@pytest.mark.parametrize("change", ["renamed", "retyped", "nulls", "fewer", "reordered"])
def test_a_block_of_other_columns_is_named(tmp_path: Path, change: str) -> None:
    """A file that is intact in itself, in place of the right one, also where there are no checksums."""
    writer = DatasetWriter(tmp_path, SCHEMA, 64)
    writer.append("train", encoded_rows(64))
    writer.finish("f", {})
    block = Dataset(tmp_path).split("train").read(0)
    table = pa.table(block)
    schema = arrow_schema(SCHEMA)
    name = schema.names[0]
    if change == "renamed":
        table = table.rename_columns(["other", *schema.names[1:]])
    elif change == "retyped":
        table = table.set_column(0, name, table[name].cast(pa.float64()))
    elif change == "nulls":
        values = [None, *table[name].to_pylist()[1:]]
        table = table.set_column(0, pa.field(name, schema.field(0).type), pa.array(values, schema.field(0).type))
    elif change == "fewer":
        table = table.drop_columns([name])
    else:
        table = table.select([*schema.names[1:], name])
    with pa.ipc.new_file(str(tmp_path / "other.arrow"), table.schema) as file:
        file.write_table(table)
    (tmp_path / "other.arrow").replace(tmp_path / "train" / "00000.arrow")
    blocks = Dataset(tmp_path).split("train")
    for each in (blocks, replace(blocks, checksums=None)):
        with pytest.raises(DataError, match=r"00000\.arrow: block 0 "):
            each.read(0)


def test_manifests_have_a_checksum_for_each_block(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    assert dataset.format_version == 2
    for split in SPLITS:
        blocks = dataset.split(split)
        assert blocks.checksums is not None
        assert list(blocks.checksums) == [block_checksum(blocks.read(b)) for b in range(len(blocks.blocks))]
    assert len(set(dataset.split("train").checksums or ())) == 16


def test_a_block_is_compared_again_if_its_file_has_changed(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    path = dataset.folder / "train" / "00000.arrow"
    whole = path.read_bytes()
    blocks = dataset.split("train")
    place = whole.index(blocks.read(5).column(0).to_numpy().tobytes())
    path.with_name("other").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    path.with_name("other").replace(path)
    for each in (blocks, dataset.split("train"), replace(blocks, checksums=blocks.checksums)):
        with pytest.raises(DataError, match=r"block 5 .* is damaged"):
            each.read(5)
    unchecked = replace(blocks, checksums=None)
    unchecked.read(5)
    with pytest.raises(DataError, match=r"block 5 .* is damaged"):
        blocks.read(5)


def test_checksums_of_copied_blocks_are_added_to_a_manifest(tmp_path: Path, make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    sizes = {split: dataset.split(split).sizes for split in SPLITS}
    made = manifest("f", SCHEMA, 64, {split: split_files(sizes[split]) for split in SPLITS}, {}, {})
    write_manifest(tmp_path, made)
    copy = Dataset(tmp_path)
    assert copy.split("train").checksums is None
    test = dataset.split("test").checksums
    assert test is not None
    record_block_checksums(tmp_path, {"validation": [], "test": test})
    assert Dataset(tmp_path).split("test").checksums == test
    assert Dataset(tmp_path).split("train").checksums is None
    with pytest.raises(DataError, match=r"test/00000\.arrow: has 1 checksums for 2 blocks"):
        write_manifest(tmp_path, {**made, "splits": {**made["splits"], "test": split_files(sizes["test"], test[:1])}})
        Dataset(tmp_path)


def test_blocks_that_are_held_keep_no_file_open(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    blocks = dataset.split("train")
    held = [blocks.read(block) for _ in range(5) for block in range(16)]
    gc.collect()
    opened = [path for path in Path("/proc/self/fd").iterdir() if _leads_into(path, dataset.folder)]
    assert opened == []
    assert len({block_checksum(block) for block in held}) == 16
    with (dataset.folder / "train" / "00000.arrow").open("rb") as file:
        assert _leads_into(Path(f"/proc/self/fd/{file.fileno()}"), dataset.folder)


def _leads_into(descriptor: Path, folder: Path) -> bool:
    try:
        return descriptor.readlink().is_relative_to(folder)
    except FileNotFoundError:  # the descriptor by which the folder of descriptors was listed
        return False


def test_damaged_offsets_of_version_1_are_named(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    blocks = replace(dataset.split("train"), checksums=None)
    offsets = next(column for column in blocks.read(2).columns if pa.types.is_list(column.type)).offsets.to_numpy()
    path = dataset.folder / "train" / "00000.arrow"
    data = bytearray(path.read_bytes())
    place = data.index(offsets.tobytes())
    data[place + 8 : place + 12] = np.int32(2**30).tobytes()
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"00000\.arrow: block \d+ cannot be read"):
        for block in range(len(blocks.blocks)):
            blocks.read(block)
