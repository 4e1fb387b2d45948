"""While versions change, each answer is that of the export of exactly the checkpoint which its version names."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.commands import ziggurat
from tests.serving.http_kit import ADMIN, TOKEN, Running, running
from tests.serving.versions_kit import STEPS, Trained, trained, until

ROWS = 5


class Clients:
    """Two clients that ask all the time, each time over a connection of its own, and keep all answers."""

    def __init__(self, url: str, rows: list[dict[str, Any]]) -> None:
        self.answers: list[tuple[dict[str, Any], list[float]]] = []
        self.lost = 0
        self._url, self._body = url, {"rows": rows}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(2)]
        for each in self._threads:
            each.start()

    def _ask(self) -> None:
        while not self._stop.wait(0.005):
            try:
                found = httpx.post(f"{self._url}/v1/predict", json=self._body, trust_env=False, timeout=60)
            except (httpx.RemoteProtocolError, httpx.ReadError):
                self.lost += 1  # it was with a worker that was killed
                continue
            assert found.status_code == 200, found.text
            answer = found.json()
            self.answers.append((answer["model"], answer["predictions"]["click"]))

    def steps_from_now(self, count: int = 12) -> set[int]:
        """Returns the steps of the versions of the next answers that are asked for from now on."""
        skipped = len(self.answers) + 2  # those that are under way
        until(lambda: len(self.answers) >= skipped + count)
        return {model["step"] for model, _ in self.answers[skipped : skipped + count]}

    def close(self) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()


def versions(server: Running) -> dict[str, Any]:
    return server.client.get("/admin/versions").json()


def events(server: Running, name: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in server.lines().splitlines() if line.startswith("{")]
    return [each for each in entries if each["event"] == name]


@contextlib.contextmanager
def serving(run: Trained, tmp_path: Path, *options: str) -> Generator[tuple[Running, Path]]:
    """Serves the export of the first checkpoint with two workers; a batch is the five rows of one request."""
    place = tmp_path / "checkpoints"
    run.put(STEPS[0], place)
    export = tmp_path / "export"
    shutil.copytree(run.export(STEPS[0]), export)
    followed = ("--follow", str(place), "--poll", "0.05", "--batch-rows", str(ROWS))
    with running(export, "--workers", "2", *followed, *options) as server:
        yield server, place


def test_every_answer_is_that_of_the_checkpoint_which_it_names(tmp_path: Path) -> None:
    run = trained()
    expected = {step: run.predicted_of(run.export(step), ROWS) for step in STEPS[:4]}
    memory = ("--memory", "60KB")  # the largest table stays on disk
    with serving(run, tmp_path, *memory) as (server, place):
        places = {each["name"]: each["place"] for each in server.client.get("/admin/status").json()["tables"]}
        assert "disk" in places.values()
        clients = Clients(server.url, run.rows[:ROWS])
        try:
            run.put(STEPS[1], place)
            until(lambda: versions(server)["current"].startswith(f"{STEPS[1]}-"))
            killed = versions(server)["updates"]["process"]
            run.put(STEPS[2], place)
            os.kill(killed, signal.SIGKILL)  # before, while or after it takes the version
            until(lambda: events(server, "updater_lost") != [])
            until(lambda: versions(server)["current"].startswith(f"{STEPS[2]}-"))
            until(lambda: clients.steps_from_now() == {STEPS[2]})

            changed = server.client.post("/admin/rollback").json()
            assert changed["reached_all_workers"] is True
            assert changed["mode"] == "pinned"
            assert clients.steps_from_now() == {STEPS[1]}
            first = next(each["version"] for each in changed["versions"] if each["step"] == STEPS[0])
            assert server.client.post("/admin/pin", json={"version": first}).json()["current"] == first
            assert clients.steps_from_now() == {STEPS[0]}

            worker = min(int(each) for each in changed["workers"])
            os.kill(worker, signal.SIGKILL)
            run.put(STEPS[3], place)
            until(lambda: events(server, "worker_started") != [])
            until(lambda: len(versions(server)["workers"]) == 2)
            assert versions(server)["mode"] == "pinned"  # also for the worker that has taken the other's place
            assert clients.steps_from_now() == {STEPS[0]}

            assert server.client.post("/admin/follow").json()["mode"] == "following"
            until(lambda: versions(server)["current"].startswith(f"{STEPS[3]}-"))
            until(lambda: clients.steps_from_now() == {STEPS[3]})
        finally:
            clients.close()
        shown = versions(server)
        text = server.client.get("/metrics").text
        assert server.stop() == 0
        assert "Traceback" not in server.lines()
    assert {model["step"] for model, _ in clients.answers} == set(STEPS[:4])
    assert len({model["version"] for model, _ in clients.answers}) == 4
    for model, found in clients.answers:
        np.testing.assert_array_equal(np.array(found, np.float32), expected[model["step"]])
    assert clients.lost <= 4
    assert shown["updates"]["failures"] == {}
    assert [each["step"] for each in shown["versions"]] == list(STEPS[:4])
    assert f'step="{STEPS[3]}",version="{shown["current"]}"}} 1.0' in text
    assert text.count("\nziggurat_model{") == 1  # series of versions before would pile up
    taken = re.search(r"^ziggurat_versions_taken_total ([23])\.0$", text, re.M)
    assert taken is not None  # an updater that dies between a version and its count has not counted it
    assert "ziggurat_follow_failing 0.0" in text


def test_only_admin_tokens_change_versions_and_none_of_a_page_in_a_browser(tmp_path: Path) -> None:
    run = trained()
    tokens = tmp_path / "tokens"
    tokens.write_text(
        "".join(
            f"{who} - sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"
            for who, token in (("shop predict", TOKEN), ("ops admin", ADMIN))
        )
    )
    tokens.chmod(0o600)
    with serving(run, tmp_path, "--token-file", str(tokens)) as (server, _):
        shop, ops = ({"Authorization": f"Bearer {each}"} for each in (TOKEN, ADMIN))
        for path in ("pin", "follow", "rollback"):
            assert server.client.post(f"/admin/{path}", headers=shop).status_code == 403
            page = {**ops, "Origin": "https://shop.example"}
            answer = server.client.post(f"/admin/{path}", headers=page, json={"version": "1-0"})
            assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
        assert server.client.get("/admin/versions", headers=shop).status_code == 403
        answer = server.client.post("/admin/rollback", headers=ops)
        assert (answer.status_code, answer.json()["code"]) == (409, "no_version")
        answer = server.client.post("/admin/pin", headers=ops, json={"version": "1-0"})
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_version")
        assert server.client.post("/admin/pin", headers=ops, json={"version": 1}).status_code == 422
        assert server.client.post("/admin/follow", headers=ops).json()["mode"] == "following"
        # two servers must not write into one folder of versions
        command = ["serve", str(tmp_path / "export"), "--no-compile", "--port", "0", "--follow"]
        status, _, said = ziggurat(*command, str(tmp_path / "checkpoints"))
        assert status == 1
        assert "another server uses this folder of versions" in said
        other = tmp_path / "other" / "checkpoints"
        shutil.copytree(tmp_path / "checkpoints", other)
        (other.parent / "environment.json").write_text(json.dumps({"run_id": "0" * 16}))
        status, _, said = ziggurat(*command, str(other.parent))
        assert status == 1
        assert "was made of another run" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("precision", [None, "int8"])
def test_a_run_is_exported_and_served(precision: str | None, tmp_path: Path) -> None:
    run = trained()
    options = ["--export-to", str(tmp_path / "out")] if precision is None else ["--precision", precision]
    with running(run.run, *options) as server:
        found = server.client.post("/v1/predict", json={"rows": run.rows[:ROWS]}).json()
        assert server.client.get("/admin/versions").json()["mode"] == "fixed"
        assert server.client.post("/admin/rollback").json()["code"] == "not_following"
        assert server.client.get("/admin/status").json()["precision"] == (precision or "fp32")
        assert "exported the best checkpoint, of step" in server.lines()
    if precision is None:
        np.testing.assert_array_equal(
            np.array(found["predictions"]["click"], np.float32), run.predicted_of(tmp_path / "out", ROWS)
        )
