"""The page in headless Chromium while a server follows a training: a version that arrives is shown, and predicts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.serving.http_kit import running
from tests.serving.versions_kit import STEPS, trained
from tools.chromium import CHROMIUM, browser

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH (.ci/install_chromium)"
)


def test_a_checkpoint_that_arrives_is_shown(tmp_path: Path) -> None:
    run, place = trained(), tmp_path / "checkpoints"
    run.put(STEPS[0], place)
    shutil.copytree(run.export(STEPS[0]), tmp_path / "export")
    followed = ("--follow", str(place), "--poll", "0.1")
    with running(tmp_path / "export", "--no-log", *followed) as server, browser() as chromium:
        chromium.open(f"{server.url}/")
        chromium.wait("document.querySelector('#scores dd[data-label=click]')")
        first = server.client.get("/v1/model").json()["model"]["version"]
        assert first in chromium.see("document.querySelector('#versions').textContent")
        run.put(STEPS[1], place)
        chromium.wait("document.querySelector('#arrived').textContent")
        arrived = server.client.get("/v1/model").json()["model"]
        assert arrived["step"] == STEPS[1]
        assert f"Version {arrived['version']} arrived" in chromium.see("document.querySelector('#arrived').textContent")
        chromium.wait(f"document.querySelector('#said').textContent.includes('{arrived['version']}')")
        shown = chromium.see("[...document.querySelectorAll('#versions code')].map(each => each.textContent)")
        assert shown == [first, arrived["version"]]
