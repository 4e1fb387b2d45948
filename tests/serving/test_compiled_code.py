"""Compiled code of the dense part: the graph's outputs but for the last bits, with any weights, or a reason."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.serving.http_kit import exported, running
from tests.serving.versions_kit import STEPS, trained, until
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.data.readers.table_reader import read_table
from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.model.compiled_code import CompiledCode, words
from ziggurat.serving.model.scorer import Scorer


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="module")
def code(cache: Path) -> CompiledCode:
    """Compiles the dense part once; the verdict is taken for faster code, as this machine may be busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.setattr("ziggurat.serving.model.compiled_code._WORTH", 1e9)
        folder = exported().folder
        found = CompiledCode(folder, Manifest.read(folder), 1)
        verdict = found.compile()
        assert verdict.is_used, verdict.reason
        assert verdict.difference <= 4e-6
        assert len(verdict.graph_us) == len(verdict.code_us) == 2
        return found


def logits(scorer: Scorer, rows: list[dict[str, object]]) -> np.ndarray:
    model = ServedModel(scorer)
    block = read_table(to_arrow(rows, model.raw_schema), model.raw_schema)
    return scorer.score(block).predictions_BT


def test_predictions_are_those_of_the_graph(code: CompiledCode) -> None:
    rows = exported().rows
    by_graph, by_code = (Scorer.open(exported().folder, compiled=threads) for threads in (0, 1))
    expected, found = logits(by_graph, rows), logits(by_code, rows)
    assert by_code._runner is not None
    assert by_graph._runner is None
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert words(by_code.code).startswith("by code compiled here: it takes ")
    assert words(by_graph.code) == "by the graph"


def test_another_version_has_its_own_weights(code: CompiledCode) -> None:
    rows = exported().rows
    scorer = Scorer.open(exported().folder, compiled=1)
    before = logits(scorer, rows)
    other: nn.Module = copy.deepcopy(scorer.dense)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    manifest = scorer.manifest
    by_graph = Scorer(scorer.folder, manifest, scorer.transform, scorer.lookup, other)
    by_code = Scorer(scorer.folder, manifest, scorer.transform, scorer.lookup, other, scorer.code)
    np.testing.assert_allclose(logits(by_code, rows), logits(by_graph, rows), rtol=0, atol=1e-6)
    assert np.abs(logits(by_code, rows) - before).max() > 1e-3
    assert np.array_equal(logits(scorer, rows), before)


def test_a_server_takes_code_that_is_there(code: CompiledCode) -> None:
    served = exported()
    with running(served.folder, "--compile") as server:
        answer = server.client.post("/v1/predict", json={"rows": served.rows[:5]}).json()
        assert server.client.get("/admin/status").json()["dense"].startswith("by code compiled here")
    with running(served.folder) as server:
        exact = server.client.post("/v1/predict", json={"rows": served.rows[:5]}).json()
        assert server.client.get("/admin/status").json()["dense"] == "by the graph"
    click, expected = (np.array(each["predictions"]["click"]) for each in (answer, exact))
    np.testing.assert_allclose(click, expected, rtol=0, atol=1e-6)


def test_versions_that_are_followed_share_the_code_and_have_their_own_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ziggurat.serving.model.compiled_code._WORTH", 1e9)
    run, rows, place = trained(), 5, tmp_path / "checkpoints"
    first, second = STEPS[0], STEPS[1]
    expected = {step: run.predicted_of(run.export(step), rows) for step in (first, second)}
    assert np.abs(expected[first] - expected[second]).max() > 1e-4, "the versions tell apart"
    verdict = CompiledCode(run.export(first), Manifest.read(run.export(first)), 1).compile()
    assert verdict.is_used, verdict.reason
    run.put(first, place)
    export = tmp_path / "export"
    shutil.copytree(run.export(first), export)
    with running(export, "--compile", "--follow", str(place), "--poll", "0.05") as server:

        def answer() -> tuple[int, list[float]]:
            found = server.client.post("/v1/predict", json={"rows": run.rows[:rows]}).json()
            return found["model"]["step"], found["predictions"]["click"]

        step, before = answer()
        assert step == first
        np.testing.assert_allclose(before, expected[first], rtol=0, atol=1e-6)
        run.put(second, place)
        until(lambda: answer()[0] == second)
        np.testing.assert_allclose(answer()[1], expected[second], rtol=0, atol=1e-6)
        assert server.client.get("/admin/status").json()["dense"].startswith("by code compiled here")
        assert server.client.post("/admin/rollback").json()["reached_all_workers"] is True
        assert answer() == (first, before)


@pytest.mark.parametrize("damage", ["library", "library gone", "verdict", "verdict of another kind"])
def test_damaged_code_is_not_used(
    code: CompiledCode, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ziggurat" / "compiled"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = CompiledCode(code.export, Manifest.read(code.export), 1)
    found.library.write_bytes(code.library.read_bytes())
    found.verdict_file.write_bytes(code.verdict_file.read_bytes())
    assert found.verdict == code.verdict
    match damage:
        case "library":
            data = bytearray(found.library.read_bytes())
            data[len(data) // 2] ^= 1
            found.library.write_bytes(data)
        case "library gone":
            found.library.unlink()
        case "verdict":
            found.verdict_file.write_text("{")
        case _:
            found.verdict_file.write_text(json.dumps({"is_used": True}))
    again = CompiledCode(code.export, Manifest.read(code.export), 1)
    assert again.verdict is None
    assert again.runner(nn.Linear(1, 1)) is None
    assert words(again) == "by the graph, until it is compiled"


def test_code_that_cannot_be_loaded_is_not_used(
    code: CompiledCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were of another processor or library, though its checksum is right: the graph answers."""
    (tmp_path / "ziggurat" / "compiled").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = CompiledCode(code.export, Manifest.read(code.export), 1)
    found.library.write_bytes(b"no library")
    values = json.loads(code.verdict_file.read_text())
    values["sha256"] = hashlib.sha256(b"no library").hexdigest()
    found.verdict_file.write_text(json.dumps(values))
    assert found.verdict is not None
    assert found.verdict.is_used
    served = exported()
    scorer = Scorer.open(served.folder, compiled=1)
    assert np.array_equal(logits(scorer, served.rows[:3]), logits(Scorer.open(served.folder), served.rows[:3]))
    assert words(scorer.code).startswith("by the graph; compiled code is not used: it cannot be loaded: ")


def test_without_a_compiler_the_graph_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = exported().folder
    found = CompiledCode(folder, Manifest.read(folder), 1)
    # Torch's own patch: monkeypatch would delete the option at the test's end, for every later test of the process.
    with inductor.patch({"cpp.cxx": ("/no/such/compiler",)}):
        verdict = found.compile()
    assert not verdict.is_used
    assert not verdict.is_settled
    assert re.match(r"it cannot be compiled: \w+: ", verdict.reason)
    assert found.runner(nn.Linear(1, 1)) is None
    assert words(found).startswith("by the graph; compiled code is not used: it cannot be compiled: ")
    assert not found.library.exists()


def test_a_server_answers_by_the_graph_while_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    served = exported()
    with running(served.folder, "--compile") as server:
        assert server.client.post("/v1/predict", json={"rows": served.rows[:1]}).status_code == 200
        assert server.client.get("/admin/status").json()["dense"] == "by the graph, until it is compiled"
        started = time.monotonic()
        assert server.stop() == 0
    assert not list((tmp_path / "ziggurat" / "compiled").glob("*.so"))
    assert time.monotonic() - started < 60
