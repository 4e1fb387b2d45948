"""The contract of a store of checkpoints, for local folders, memory, and an S3 server."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ziggurat.checkpoint.store.object_store import ObjectStore, open_store
from ziggurat.checkpoint.store.store import LocalStore, Store
from ziggurat.core.errors import RunFolderError

_numbers = itertools.count(1)
NewPlace = Callable[[], str]
"""Returns the path or URL of an empty store."""


@pytest.fixture(params=["local", "file", "memory", "s3"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> NewPlace:
    roots = {
        "local": lambda: str(tmp_path / "local"),
        "file": lambda: (tmp_path / "with space").as_uri(),
        "memory": lambda: "memory://tests",
        "s3": lambda: str(request.getfixturevalue("s3")),
    }
    root = roots[request.param]()
    return lambda: f"{root}/{next(_numbers)}"


def uncached_client(place: str) -> Store:
    """Opens a store with a client of its own, as another process would; fsspec otherwise reuses the cached client."""
    store = open_store(place)
    if isinstance(store, ObjectStore):
        type(store._files).clear_instance_cache()
    return open_store(place)


def test_the_kind_of_store_follows_its_url(tmp_path: Path, new_place: NewPlace) -> None:
    place = new_place()
    store = open_store(place)
    assert isinstance(store, LocalStore if place.startswith(("/", "file:")) else ObjectStore)
    assert isinstance(open_store(tmp_path), LocalStore)


def test_an_empty_store(new_place: NewPlace) -> None:
    store = open_store(new_place())
    assert store.folders() == []
    assert store.files() == []
    assert store.files("step-00000001") == []
    store.delete("step-00000001")
    store.delete("step-00000001", "manifest.json")
    store.delete("", "best.json")
    with pytest.raises(RunFolderError, match=r"step-00000001/manifest\.json: missing"):
        store.read("step-00000001", "manifest.json")


def test_other_clients_read_what_was_written(new_place: NewPlace) -> None:
    place = new_place()
    store, other = open_store(place), open_store(place)
    content = bytes(range(256)) * 8000
    for data in (b"first", b"", content):
        store.write("step-00000001", "rank.safetensors", data)
        assert other.read("step-00000001", "rank.safetensors") == data
    store.write("", "best.json", b"{}")
    assert other.read("", "best.json") == b"{}"
    with pytest.raises(RunFolderError, match="missing"):
        other.read("step-00000001", "best.json")


def test_listings_are_never_stale(new_place: NewPlace) -> None:
    place = new_place()
    store, other = open_store(place), uncached_client(place)
    for step in (1, 2):
        assert other.folders() == [f"step-{each}" for each in range(1, step)]
        assert other.files(f"step-{step}") == []
        store.write(f"step-{step}", "a", b"a")
        store.write(f"step-{step}", "b", b"b")
        assert sorted(other.files(f"step-{step}")) == ["a", "b"]
        assert sorted(other.folders()) == [f"step-{each}" for each in range(1, step + 1)]
    store.write("", "best.json", b"{}")
    assert other.files() == ["best.json"]
    assert sorted(other.folders()) == ["step-1", "step-2"]
    store.delete("step-1", "a")
    assert other.files("step-1") == ["b"]
    store.delete("step-1")
    assert other.files("step-1") == []
    assert other.folders() == ["step-2"]
    with pytest.raises(RunFolderError, match="missing"):
        other.read("step-1", "b")


def test_names_with_a_common_prefix_are_distinct(new_place: NewPlace) -> None:
    place = new_place()
    store, beside = open_store(place), open_store(f"{place}-more")
    store.write("step-1", "a", b"1")
    store.write("step-10", "a", b"10")
    beside.write("step-2", "a", b"2")
    assert sorted(store.folders()) == ["step-1", "step-10"]
    store.delete("step-1")
    assert store.folders() == ["step-10"]
    assert beside.read("step-2", "a") == b"2"


def test_where_returns_the_full_path_or_url(new_place: NewPlace) -> None:
    place = new_place()
    store = open_store(place)
    shown = str(store.root) if isinstance(store, LocalStore) else place
    assert store.where("").rstrip("/") == shown
    assert store.where("", "best.json") == f"{shown}/best.json"
    assert store.where("step-1", "manifest.json") == f"{shown}/step-1/manifest.json"


def test_several_threads_write_at_once(new_place: NewPlace) -> None:
    store = open_store(new_place())

    def write(rank: int) -> None:
        for number in range(3):
            store.write("step-1", f"rank-{rank}-{number}", f"{rank} {number}".encode() * 1000)

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.files("step-1")) == 12
    assert all(
        store.read("step-1", f"rank-{rank}-{number}") == f"{rank} {number}".encode() * 1000
        for rank in range(4)
        for number in range(3)
    )


FOLDERS, NAMES = st.sampled_from(["", "step-1", "step-10"]), st.sampled_from(["a", "manifest.json", "b.safetensors"])
ACTIONS = st.one_of(
    st.tuples(st.just("write"), FOLDERS, NAMES, st.binary(max_size=20)),
    st.tuples(st.just("delete"), FOLDERS, NAMES, st.just(b"")),
    st.tuples(st.just("drop"), st.sampled_from(["step-1", "step-10"]), st.just(""), st.just(b"")),
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, min_size=3, max_size=9))
def test_a_store_behaves_like_a_dictionary(new_place: NewPlace, actions: list[tuple[str, str, str, bytes]]) -> None:
    store: Store = open_store(new_place())
    expected: dict[tuple[str, str], bytes] = {}
    for action, folder, name, data in actions:
        if action == "write":
            store.write(folder, name, data)
            expected[folder, name] = data
        elif action == "delete":
            store.delete(folder, name)
            expected.pop((folder, name), None)
        else:
            store.delete(folder)
            expected = {place: data for place, data in expected.items() if place[0] != folder}
    for folder in ("", "step-1", "step-10"):
        found = {name: store.read(folder, name) for name in store.files(folder)}
        assert found == {name: data for (each, name), data in expected.items() if each == folder}
    full = {folder for folder, _ in expected if folder}
    if isinstance(store, ObjectStore):  # only a file system has folders without files
        assert set(store.folders()) == full
    else:
        assert full <= set(store.folders())
