"""Tables beyond memory: the same bits at every budget, plans that say what lies where, and disks that fail."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from tests.serving.http_kit import running
from tests.training.conftest import config_values, write_log
from ziggurat.cli.main import app
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ConfigError, DataError, EnvironmentMismatch
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.data.readers.table_reader import read_table
from ziggurat.exporting.export import export
from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.artefact.row_codec import PRECISIONS
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.model.scorer import Scorer, open_dense
from ziggurat.serving.tables.lookup import Lookup, TableUnreadable
from ziggurat.serving.tables.residence import reside
from ziggurat.serving.tables.serving_plan import TableMemory, plan_tables
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

ITEMS, TAGS = 6_000, 5_000


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Exports a model with two tables of thousands of rows at each precision."""
    root = tmp_path_factory.mktemp("beyond")
    write_log(root / "log.csv")
    values = config_values(root)
    identity = {"name": "identity", "rows": ITEMS}
    for path, value in {
        "training.epochs": 1,
        "features": [
            {"name": "item", "kind": "categorical", "type": "integer", "encoder": identity},
            {"name": "age", "kind": "numeric", "transforms": [{"name": "standardise"}]},
            {"name": "tags", "kind": "bag", "type": "integer", "encoder": {"name": "identity", "rows": TAGS}},
            {"name": "history", "kind": "sequence", "type": "integer", "last": 3, "table": "item"},
        ],
        "data.group": None,
        "evaluation.slices": [],
    }.items():
        set_by_path(values, path, value)
    run = api.train(parse_config(Experiment, values), str(root / "run"), prepared=str(root / "prepared")).run.folder
    found: dict[str, Path] = {}
    for precision in PRECISIONS:
        found[precision] = root / precision
        export(run, found[precision], precision=precision, prepared=root / "prepared")
    return found


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Draws rows, of which some have long bags, and bags that others have in another order."""
    random = np.random.default_rng(seed)

    def ids(most: int, longest: int) -> list[int]:
        return (most * random.random(random.integers(0, longest)) ** 3).astype(int).tolist()

    found: list[dict[str, Any]] = [
        {"item": int(ITEMS * random.random() ** 3), "age": 30.0, "tags": ids(TAGS, 60), "history": ids(ITEMS, 8)}
        for _ in range(count)
    ]
    return found + [{**each, "tags": each["tags"][::-1]} for each in found[:5]]


def scores(scorer: Scorer, given: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    needed = scorer.transform.raw_schema(labelled=False)
    return scorer.score(read_table(to_arrow(given, needed), needed)).predictions_BT


def options(folder: Path, share: float, **more: Any) -> TableMemory:
    manifest = Manifest.read(folder)
    size = sum(entry.layout(manifest.precision).bytes for entry in manifest.tables)
    return TableMemory(int(share * size), **more)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_answers_have_the_same_bits_at_every_budget(exports: dict[str, Path], precision: str) -> None:
    folder = exports[precision]
    expected_of = Scorer.open(folder)
    batches = [rows(40, seed) for seed in range(4)]
    expected = [scores(expected_of, each) for each in batches]
    reads: list[int] = []
    pooled = {"pooled_bytes": 50_000, "pooled_longer_than": 4, "candidates": 1}
    cases = [(2.0, {}), (0.6, {}), (0.3, {}), (0.55, pooled), (2.0, {"dequantise": True}), (0.6, {"dequantise": True})]
    for share, more in cases:
        memory = options(folder, share, **more)
        residence = reside(folder, plan_tables(folder, expected_of.manifest, memory))
        assert residence.plan.memory_bytes <= memory.bytes or share == 2.0
        scorer = Scorer.open(folder, residence=residence)
        assert isinstance(scorer.lookup, Lookup)
        for _ in range(2):  # the second time many rows, and all long bags, are in the caches
            for given, right in zip(batches, expected, strict=True):
                assert scores(scorer, given).tobytes() == right.tobytes(), (share, more)
        total = scorer.lookup.figures.total
        reads.append(total.reads)
        assert (total.pooled_hits > 0) == ("pooled_bytes" in more)
        scorer.lookup.close()
    assert reads[0] == 0
    assert 0 < reads[1] < reads[2]


def test_a_bag_in_another_order_may_be_taken_for_the_same(exports: dict[str, Path]) -> None:
    """It changes no more than the last bits, and happens only where it was asked for."""
    folder = exports["fp32"]
    ids = list(range(100, 160))
    given, turned = ([{"item": 1, "age": 30.0, "tags": tags, "history": []}] for tags in (ids, ids[::-1]))
    expected = scores(Scorer.open(folder), turned)
    for any_order in (False, True):
        memory = options(folder, 0.3, pooled_bytes=20_000, pooled_any_order=any_order)
        residence = reside(folder, plan_tables(folder, Manifest.read(folder), memory))
        scorer = Scorer.open(folder, residence=residence)
        assert isinstance(scorer.lookup, Lookup)
        scores(scorer, given)
        found = scores(scorer, turned)
        assert scorer.lookup.figures.total.pooled_hits == any_order
        assert found.tobytes() == expected.tobytes() if not any_order else np.abs(found - expected).max() < 1e-6
        scorer.lookup.close()


def test_more_memory_than_there_is_is_refused_before_tables_are_loaded(
    exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exports["fp32"]
    plan = plan_tables(folder, Manifest.read(folder), options(folder, 2.0))
    monkeypatch.setattr("ziggurat.serving.tables.residence.most_bytes", lambda: plan.memory_bytes - 1)
    with pytest.raises(
        EnvironmentMismatch, match=r"tables and caches take [\d,]+ bytes of memory; [\d,]+ are available"
    ):
        reside(folder, plan)


def test_the_figures_count_what_is_in_memory(exports: dict[str, Path]) -> None:
    """Rows that are dequantised take more than their file, and pooled rows count."""
    size = sum(entry.layout("int8").bytes for entry in Manifest.read(exports["int8"]).tables)
    with running(exports["int8"], "--memory", f"{9 * size}B", "--dequantise") as server:
        tables = server.client.get("/v1/status").json()["tables"]
        assert [each["memory_bytes"] for each in tables] == [each["rows"] * each["dim"] * 4 for each in tables]


def test_a_new_version_of_a_table_shares_the_cache(exports: dict[str, Path], tmp_path: Path) -> None:
    """The old version, which may still be in use, answers from its own file; the new one keeps what did not change."""
    folder = exports["fp32"]
    residence = reside(folder, plan_tables(folder, Manifest.read(folder), options(folder, 0.5, pooled_bytes=9_000)))
    old = residence.lookup()
    before = old.tables["tags"]
    rows_of_tags = np.fromfile(before.path, np.float32)  # pyright: ignore[reportAttributeAccessIssue]
    (rows_of_tags * 2).tofile(tmp_path / "new.rows")
    old_scorer = Scorer.open(folder, residence=residence)
    given = rows(30)
    expected = scores(old_scorer, given)
    new = residence.lookup()
    new.tables["tags"] = before.succeeded(tmp_path / "new.rows", 2)  # pyright: ignore[reportAttributeAccessIssue]
    new = Lookup(Manifest.read(folder), new.tables)
    new_scorer = Scorer(folder, old_scorer.manifest, old_scorer.transform, new, open_dense(folder, old_scorer.manifest))
    changed = [scores(new_scorer, given) for _ in range(2)]
    assert changed[0].tobytes() == changed[1].tobytes() != expected.tobytes()
    assert scores(old_scorer, given).tobytes() == expected.tobytes()
    assert scores(new_scorer, given).tobytes() == changed[0].tobytes()


def test_a_table_that_is_loaded_is_compared_with_its_checksum(exports: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "export"
    shutil.copytree(exports["int8"], folder)
    manifest = Manifest.read(folder)
    plan = plan_tables(folder, manifest, TableMemory(10_000_000))
    reside(folder, plan)
    path = folder / "tables" / manifest.tables[-1].file
    rows = bytearray(path.read_bytes())
    rows[9] ^= 1
    path.write_bytes(rows)
    with pytest.raises(DataError, match=rf"{path.name}: is damaged: its content differs from its checksum"):
        reside(folder, plan)


def test_memory_that_does_not_suffice_is_refused_with_what_does(exports: dict[str, Path]) -> None:
    folder = str(exports["fp32"])
    for command in (["serve", folder], ["plan", "--serving", folder]):
        found = CliRunner().invoke(app, [*command, "--memory", "1kB"])
        assert isinstance(found.exception, ConfigError)
        assert "the smallest caches need" in found.exception.problem
        assert "--memory 2" in found.exception.hint
        found = CliRunner().invoke(app, [*command, "--memory", "lots"])
        assert isinstance(found.exception, ConfigError)
        assert "expected bytes, as in 8GB or 512MiB; received 'lots'" in found.exception.problem
        found = CliRunner().invoke(app, [*command, "--memory", "1MB", "--pooled-cache", "2MB"])
        assert isinstance(found.exception, ConfigError)
        assert "a part of the memory" in found.exception.hint
    for more, problem in ((["exp.yaml"], "give one of the two"), ([], "--memory 2GB")):
        found = CliRunner().invoke(app, ["plan", *more, "--serving", folder])
        assert isinstance(found.exception, ConfigError)
        assert problem in found.exception.hint
    with pytest.raises(ConfigError, match="missing"):
        CliRunner().invoke(app, ["plan"], catch_exceptions=False)


def test_what_a_context_gives_is_looked_up_once_also_in_a_table_of_the_candidates(exports: dict[str, Path]) -> None:
    manifest = Manifest.read(exports["int8"])
    assert "history" in manifest.user_columns
    assert "item" not in manifest.user_columns
    entry = manifest.table_of["history"]
    assert (entry, entry.side) == (manifest.table_of["item"], "item")
    lookups = {
        count: next(
            table.placed.demand.lookups
            for table in plan_tables(exports["int8"], manifest, TableMemory(120_000, candidates=count)).tables
            if table.entry == entry
        )
        for count in (1, 50)
    }
    assert lookups[1] == pytest.approx(1 + entry.lookups["history"])
    assert lookups[50] == pytest.approx(50 + entry.lookups["history"])


def test_a_plan_says_and_draws_what_lies_where(exports: dict[str, Path], tmp_path: Path) -> None:
    command = ["plan", "--serving", str(exports["int8"]), "--memory", "80kB", "--candidates", "50", "--qps", "200"]
    found = CliRunner().invoke(app, [*command, "--json"])
    plan = json.loads(found.stdout)
    assert [each["name"] for each in plan["tables"]] == ["item", "tags"]
    assert {each["place"] for each in plan["tables"]} == {"memory", "disk"} or plan["tables"][0]["place"] == "disk"
    assert plan["used_bytes"] <= plan["memory_bytes"] == 80_000
    assert plan["reads_per_second"] == pytest.approx(200 * plan["reads_per_request"])
    assert plan["reads_per_request"] == pytest.approx(sum(each["reads_per_request"] for each in plan["tables"]))
    found = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "plan.html")])
    assert "disk, cached" in found.stdout
    assert "At 200 requests a second" in found.stdout
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<svg") >= 2
    assert "read from the disk" in page


def test_workers_share_tables_and_caches(exports: dict[str, Path]) -> None:
    folder = exports["fp32"]
    expected_of = ServedModel.open(folder)
    given = rows(60, 7)
    with running(folder, "--memory", "90kB", "--workers", "2", "--pooled-cache", "20kB") as server:
        answers: set[bytes] = set()
        for _ in range(20):  # a connection of its own for each reaches both workers
            answer = httpx.post(f"{server.url}/v1/predict", json={"rows": given}, trust_env=False, timeout=60)
            answers.add(np.array(answer.json()["predictions"]["click"], np.float32).tobytes())
        assert answers == {scores(expected_of.scorer, given).tobytes()}
        status = server.client.get("/admin/status").json()
        assert "disk" in {each["place"] for each in status["tables"]}
        metrics = server.client.get("/metrics").text
        values = {
            line.split(" ")[0]: float(line.split(" ")[1])
            for line in metrics.splitlines()
            if line.startswith("ziggurat_table")
        }
        table = next(each["name"] for each in status["tables"] if each["place"] == "disk")
        assert values[f'ziggurat_table_hits_total{{table="{table}"}}'] > 0
        reads = values[f'ziggurat_table_reads_total{{table="{table}"}}']
        assert 0 < reads <= values[f'ziggurat_table_misses_total{{table="{table}"}}']
        assert values["ziggurat_table_read_seconds_count"] > 0
        assert server.stop() == 0
        assert "disk, cached" in server.lines()


def test_a_table_that_cannot_be_read_fails_only_what_needs_it(exports: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "export"
    shutil.copytree(exports["fp32"], folder)
    manifest = Manifest.read(folder)
    item = next(entry for entry in manifest.tables if entry.name == "item")
    with (exports["fp32"].parent / "log.csv").open(newline="") as file:
        known = int(next(csv.DictReader(file))["item"])
    good = {"item": known, "age": 30.0, "tags": [1], "history": []}
    with running(folder, "--memory", "120kB") as server:
        assert server.client.post("/v1/predict", json={"rows": [good]}).status_code == 200
        (folder / "tables" / item.file).write_bytes(b"")
        refused = server.client.post("/v1/predict", json={"rows": [{**good, "item": ITEMS - 1}]})
        assert refused.status_code == 503
        assert refused.json()["code"] == "table_unreadable"
        assert "'item'" in refused.json()["error"]
        assert "Retry-After" in refused.headers
        assert server.client.post("/v1/predict", json={"rows": [good]}).status_code == 200
        assert 'ziggurat_table_errors_total{table="item"} 1.0' in server.client.get("/metrics").text
        assert "Traceback" not in server.lines()
    with pytest.raises(TableUnreadable, match=r"\.rows: cannot be read at byte"):
        residence = reside(exports["fp32"], plan_tables(exports["fp32"], manifest, TableMemory(120_000)))
        scores(Scorer.open(exports["fp32"], residence=replace(residence, folder=folder)), [{**good, "item": ITEMS - 1}])
