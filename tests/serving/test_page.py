"""The page at ``/`` in headless Chromium: what a person does with it, and what it must not do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.serving.http_kit import ADMIN, TOKEN, Exported, Running, exported, exported_again, running, served_here
from tests.serving.page_checks import CONTRAST, NAMES
from tools.chromium import CHROMIUM, Browser, browser
from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.http import predict_routes
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.page import description
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.tables.residence import reside
from ziggurat.serving.tables.serving_plan import TableMemory, plan_tables

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH (.ci/install_chromium)"
)

SCORE = "document.querySelector('#scores dd[data-label=click]')"


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


@pytest.fixture(scope="module")
def server(export: Exported) -> Generator[Running]:
    with running(export.folder) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Generator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def page(server: Running, chromium: Browser) -> Browser:
    """The page, opened anew."""
    opened(chromium, server.url)
    return chromium


def opened(chromium: Browser, url: str) -> None:
    chromium.open("about:blank")  # the page before asks for nothing more
    chromium.requests.clear()
    chromium.faults.clear()
    chromium.prefer("light")
    chromium.size(1200, 900)
    chromium.open(f"{url}/")
    chromium.wait(f"{SCORE} && document.querySelector('#stored table')")


def text(page: Browser, selector: str) -> str:
    return page.see(f"document.querySelector({json.dumps(selector)}).textContent")


def field(column: str) -> str:
    return f"input[data-column={column}]"


def change(page: Browser, column: str, value: str) -> None:
    """Types a value into a field, as a person does."""
    page.click(field(column))
    page.wait(f"document.activeElement.matches({json.dumps(field(column))})")
    page.write(value)


def sample(export: Exported) -> list[dict[str, Any]]:
    return json.loads((export.folder / "sample.json").read_text())["rows"]


def shown(value: float) -> str:
    return f"{value:.4f}"


def test_open_change_predict_rank_and_see_an_error(page: Browser, export: Exported) -> None:
    row = sample(export)[0]
    assert text(page, "h1") == "small"
    assert export.model.version.short in text(page, "#subtitle")
    values = {name: page.see(f"document.querySelector('{field(name)}').value") for name in row}
    assert values == {
        name: ", ".join(map(str, each)) if isinstance(each, list) else str(each).removesuffix(".0")
        for name, each in row.items()
    }
    before = float(export.predictions([row])[0, 0])
    assert text(page, "#scores dd[data-label=click]").startswith(shown(before))

    older = {**row, "age": 77.5}
    after = float(export.predictions([older])[0, 0])
    change(page, "age", "77.5")
    page.wait(f"{SCORE}.textContent.startsWith('{shown(after)}')")
    assert f"You changed age from {values['age']} to 77.5" in text(page, "#said")
    sign = "+" if after > before else "−"
    moved = text(page, "#scores dd[data-label=click]").partition(sign)[2]
    assert float(moved) == pytest.approx(abs(after - before), abs=2e-4)
    change(page, "age", "")
    page.wait(f"{SCORE}.textContent.startsWith('{shown(float(export.predictions([{**row, 'age': None}])[0, 0]))}')")

    change(page, "item", "a film")
    page.wait(f"document.querySelector('{field('item')}').getAttribute('aria-invalid') == 'true'")
    beside = page.see(f"document.querySelector('{field('item')}').getAttribute('aria-describedby')").split()[0]
    beside = text(page, f"#{beside}")
    assert "a film" in beside
    assert text(page, "#row-error") == "No prediction: item."
    assert page.see("document.querySelectorAll('[aria-invalid]').length") == 1
    change(page, "item", "50")
    page.wait("!document.querySelector('[aria-invalid]') && !document.querySelector('#row-error').textContent")

    page.click("#next-example")
    second = sample(export)[1]
    page.wait(f"{SCORE}.textContent.startsWith('{shown(float(export.predictions([second])[0, 0]))}')")


def candidates(page: Browser) -> list[list[str]]:
    """Returns rank, score and fields of each candidate, as they stand."""
    return page.see(
        "[...document.querySelectorAll('#candidate-rows tr')].map(row => [row.querySelector('.place').textContent,"
        " row.querySelector('.score').textContent, ...[...row.querySelectorAll('input')].map(each => each.value)])"
    )


def test_candidates_are_edited_and_ranked(page: Browser, export: Exported) -> None:
    user = export.model.scorer.manifest.user_columns
    rows = sample(export)
    assert user
    assert all(row[:2] == ["–", "–"] for row in candidates(page))
    start = len(candidates(page))
    page.click("#add-candidate")
    assert page.see("document.activeElement.getAttribute('aria-label')") == f"item of candidate {start + 1}"
    page.write("7")
    page.click("#candidate-rows tr:first-child button")
    assert len(candidates(page)) == start
    page.click("#candidates button[type=submit]")
    page.wait("document.querySelector('#ranked').textContent.includes('ranked by click')")
    found = candidates(page)
    assert [row[0] for row in found] == [str(number + 1) for number in range(start)]
    assert "7" in [row[2] for row in found]
    whole = [{**rows[0], "item": int(row[2])} for row in found]
    expected = export.predictions(whole)[:, 0]
    assert np.allclose([float(row[1]) for row in found], expected, atol=1e-4)
    assert (np.diff(expected) <= 0).all()

    page.see("document.querySelector('#rank-label').value = 'liking'")
    page.see("document.querySelector('#rank-label').dispatchEvent(new Event('change'))")
    page.wait("document.querySelector('#ranked').textContent.includes('ranked by liking')")
    assert (np.diff([float(row[1]) for row in candidates(page)]) <= 0).all()

    page.click("#candidate-rows tr:nth-child(2) input")
    page.write("a film")
    page.click("#candidates button[type=submit]")
    page.wait("document.querySelector('#candidate-rows tr:nth-child(2) input').getAttribute('aria-invalid') == 'true'")
    assert "candidates[1], column 'item'" in text(page, "#rank-error")


def test_ids_beyond_those_that_browsers_keep_stay_exact(
    chromium: Browser, export: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = 2**53 + 1
    rows = [{**sample(export)[0], "item": large, "history": [2**60 + 1, 5]}, {**sample(export)[1], "item": 7}]
    monkeypatch.setattr(description, "_samples", lambda _: [dict(row) for row in rows])
    bodies: dict[str, list[Any]] = {"predict_body": [], "rank_body": []}
    for name, found in bodies.items():
        read = getattr(predict_routes, name)

        def noted(data: bytes, limits: ServingLimits, read: Any = read, found: list[Any] = found) -> Any:
            found.append(json.loads(data))
            return read(data, limits)

        monkeypatch.setattr(predict_routes, name, noted)
    with served_here(export.model) as url:
        opened(chromium, url)
        expected = [float(each) for each in export.predictions(rows)[:, 0]]
        chromium.wait(f"{SCORE}.textContent.startsWith('{shown(expected[0])}')")
        assert chromium.see(f"document.querySelector('{field('item')}').value") == str(large)
        assert chromium.see(f"document.querySelector('{field('history')}').value") == f"{2**60 + 1}, 5"
        (sent,) = bodies["predict_body"][-1]["rows"]
        assert (sent["item"], sent["history"]) == (str(large), [str(2**60 + 1), "5"])
        change(chromium, "history", f"[{2**60 + 3}, 7]")
        chromium.wait("document.querySelector('#said').textContent.includes('history')")
        assert bodies["predict_body"][-1]["rows"][0]["history"] == [str(2**60 + 3), "7"]
        change(chromium, "history", "[3, 7]")
        chromium.wait("document.querySelector('#said').textContent.includes('to [3, 7]')")
        assert bodies["predict_body"][-1]["rows"][0]["history"] == [3, 7]
        change(chromium, "history", "[3, [7]]")  # no list: the server names it
        chromium.wait(f"document.querySelector('{field('history')}').getAttribute('aria-invalid') == 'true'")
        assert bodies["predict_body"][-1]["rows"][0]["history"] == "[3, [7]]"
        change(chromium, "history", "5")
        chromium.wait("!document.querySelector('[aria-invalid]')")
        chromium.click("#candidates button[type=submit]")
        chromium.wait("document.querySelector('#ranked').textContent.includes('ranked by click')")
        items = {each["item"] for each in bodies["rank_body"][-1]["candidates"]}
        assert items == {str(large), "7"}, "the values of a column are of one type"
    assert chromium.faults == []


def test_live_figures_follow_the_traffic(page: Browser, server: Running, export: Exported) -> None:
    for _ in range(3):
        server.client.post("/v1/predict", json={"rows": export.rows[:200]}).raise_for_status()
    page.wait("document.querySelector('#drift').textContent.includes('Scores of click')")
    page.wait("!document.querySelector('#drift .now').textContent.includes('of 500 scores')")
    assert float(text(page, "#drift .now")) >= 0
    labels = page.see("[...document.querySelectorAll('#charts svg')].map(each => each.getAttribute('aria-label'))")
    assert [each.partition(" of the last")[0] for each in labels] == [
        "Latency",
        "Throughput",
        "Rows that wait",
        "Requests refused",
    ]
    page.wait("document.querySelector('#charts svg').getAttribute('aria-label').includes('half below')")
    page.click("#charts summary")
    page.wait("document.querySelectorAll('#charts details[open] tbody tr').length > 1")
    rows = page.see("[...document.querySelectorAll('#stored tbody tr')].map(row => row.cells[0].textContent)")
    assert rows == [entry.name for entry in export.model.scorer.manifest.tables]
    page.click("#pause")
    assert page.see("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"


def test_a_version_that_arrives_is_shown(chromium: Browser, export: Exported) -> None:
    other = ServedModel.open(exported_again())
    with running(export.folder) as first:
        opened(chromium, first.url)
        port = first.url.rpartition(":")[2]
        change(chromium, "age", "31")
        chromium.wait("document.querySelector('#said').textContent.includes('to 31.')")
        first.stop()
    chromium.wait("!document.querySelector('#connection').hidden")
    assert "No connection" in text(chromium, "#connection")
    with running(exported_again(), "--port", port):
        chromium.wait("document.querySelector('#arrived').textContent")
        assert f"Version {other.version.short} arrived" in text(chromium, "#arrived")
        chromium.wait(f"document.querySelector('#said').textContent.includes('{other.version.short}')")
        assert chromium.see("document.querySelector('#connection').hidden")
        assert chromium.see(f"document.querySelector('{field('age')}').value") == "31"  # what was typed stays
        row = {**sample(export)[0], "age": 31.0}
        expected = float(Exported(exported_again(), [], other).predictions([row])[0, 0])
        assert text(chromium, "#scores dd[data-label=click]").startswith(shown(expected))
        versions = chromium.see("[...document.querySelectorAll('#versions code')].map(each => each.textContent)")
        assert versions == [export.model.version.short, other.version.short]
        marks = chromium.see(
            "[...document.querySelectorAll('#charts svg')].map(each => each.querySelectorAll('line.version').length)"
        )
        assert marks == [1, 1, 1, 1]
        assert f"version {other.version.short[:7]} arrived" in chromium.see(
            "document.querySelector('#charts svg').getAttribute('aria-label')"
        )


def test_tables_on_disk_show_their_hit_rate(chromium: Browser, export: Exported) -> None:
    plan = plan_tables(export.folder, Manifest.read(export.folder), TableMemory(1 << 16))
    tables = [  # so small that a plan leaves all of them in memory
        replace(each, placed=replace(each.placed, cache_bytes=1 << 14)) if each.entry.name == "item" else each
        for each in plan.tables
    ]
    residence = reside(export.folder, replace(plan, tables=tuple(tables)))
    model = ServedModel(Scorer.open(export.folder, residence=residence))
    with served_here(model) as url:
        opened(chromium, url)
        httpx.post(f"{url}/v1/predict", json={"rows": export.rows}, trust_env=False, timeout=60).raise_for_status()
        chromium.wait("document.querySelector('#charts').textContent.includes('Hit rate of the caches')")
        chromium.wait("/^[0-9.]+ %/.test([...document.querySelectorAll('#charts .now')].at(-1).textContent)")
        status = httpx.get(f"{url}/v1/status", trust_env=False).json()
        hits, misses = (sum(each.get(name, 0) for each in status["tables"]) for name in ("hits", "misses"))
        cells = "[...row.cells].map(each => each.textContent)"
        rows = f"[...document.querySelectorAll('#stored tbody tr')].map(row => {cells})"
        rate = hits / (hits + misses)
        shown_rate = f"{100 * rate:.{2 if rate < 0.1 else 1}f} %"
        chromium.wait(f"document.querySelector('#stored').textContent.includes('{shown_rate}')")
        found = {row[0]: row[3] for row in chromium.see(rows)}
        assert found == {name: "disk, with a cache" if name == "item" else "memory" for name in found}
        assert chromium.faults == []


def test_nothing_comes_from_elsewhere_and_the_policy_holds(page: Browser, server: Running) -> None:
    assert page.requests
    assert all(url.startswith(f"{server.url}/") for url in page.requests)
    assert page.faults == []
    answer = server.client.get("/")
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert "unsafe" not in answer.headers["content-security-policy"]
    script = "const it = document.createElement('script'); it.textContent = 'window.mine = 1'; document.body.append(it)"
    page.see(f"(() => {{ {script}; }})()")
    assert page.see("window.mine === undefined")
    elsewhere = server.url.replace("127.0.0.1", "localhost")
    assert page.see(f"fetch('{elsewhere}/v1/model').then(() => 'answered', () => 'refused')") == "refused"
    assert server.client.get("/page/../app.py").status_code == 404
    assert server.client.get("/page/%2e%2e%2froutes.py").status_code == 404
    assert server.client.get("/page/other.js").json()["code"] == "unknown_path"
    assert "sha" not in answer.text


def test_the_keyboard_alone_suffices(page: Browser, export: Exported) -> None:
    focused = (
        "(it => it.id || it.dataset.column || it.getAttribute('aria-label') || it.textContent)(document.activeElement)"
    )
    page.press("Tab")
    assert page.see(focused) == "Skip to the form"
    assert page.see("document.activeElement.getBoundingClientRect().left >= 0")  # it is seen while it has the focus
    page.press("Enter")
    page.wait("document.activeElement.id == 'predict'")
    page.press("Tab")
    columns = [page.see("document.activeElement.dataset.column")]
    for _ in export.model.columns.keys() - {columns[0]}:
        page.press("Tab")
        columns.append(page.see("document.activeElement.dataset.column"))
    assert columns == list(export.model.columns)
    page.press("Tab")
    page.press("Tab", shift=True)
    page.write("50, 7")
    page.press("Enter")
    row = {**sample(export)[0], columns[-1]: [50, 7]}
    page.wait(f"{SCORE}.textContent.startsWith('{shown(float(export.predictions([row])[0, 0]))}')")
    seen: list[str] = []
    while (name := page.see(focused)) != "pause":
        assert page.see("getComputedStyle(document.activeElement).outlineStyle") != "none"
        seen.append(name)
        page.press("Tab")
        assert len(seen) < 60, seen
    assert (
        seen.index("next-example")
        < seen.index("Candidates")
        < seen.index("Remove candidate 1")
        < seen.index("add-candidate")
    )
    page.press(" ")
    assert page.see("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
    while page.see(focused) != "rank-label":
        page.press("Tab", shift=True)
    page.press("Tab")
    page.press("Enter")
    page.wait("document.querySelector('#ranked').textContent.includes('ranked by click')")


def test_everything_has_a_name_and_enough_contrast(page: Browser) -> None:
    page.see("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    change(page, "item", "a film")
    page.wait("document.querySelector('[aria-invalid]')")
    page.click("#candidates button[type=submit]")
    page.wait("document.querySelector('#ranked').textContent || document.querySelector('#rank-error').textContent")
    assert page.see(NAMES) == []
    live = "['said', 'ranked', 'arrived'].map(id => document.getElementById(id).getAttribute('aria-live'))"
    assert page.see(live) == ["polite"] * 3
    found: dict[str, float] = {}
    for system, chosen in (("light", ""), ("dark", ""), ("dark", "light"), ("light", "dark")):
        page.prefer(system)
        page.see(f"document.querySelector('#theme').value = '{chosen}'")
        page.see("document.querySelector('#theme').dispatchEvent(new Event('change'))")
        count, low, paper = page.see(CONTRAST)
        assert count > 100
        assert low == []
        found[f"{system} {chosen}"] = paper
    assert min(found["light "], found["dark light"]) > 0.8
    assert max(found["dark "], found["light dark"]) < 0.05


@pytest.mark.parametrize("width", [360, 768])
def test_it_fits_small_screens(page: Browser, width: int) -> None:
    page.size(width, 800)
    page.wait(f"innerWidth == {width}")
    page.see("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert page.see("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    cut = (
        "[...document.querySelectorAll('button, input, select, h1, h2, h3, dd')].filter(it => !it.closest('.scroll')"
        " && it.getBoundingClientRect().right > innerWidth).map(it => it.outerHTML)"
    )
    assert page.see(cut) == []


def test_a_token_is_asked_for_and_kept_in_memory_alone(chromium: Browser, export: Exported, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    digests = [hashlib.sha256(each.encode()).hexdigest() for each in (TOKEN, ADMIN)]
    tokens.write_text(f"shop predict - sha256:{digests[0]}\nops admin - sha256:{digests[1]}\n")
    tokens.chmod(0o600)
    with running(export.folder, "--token-file", str(tokens)) as server:
        plain = {"trust_env": False, "timeout": 60}
        assert httpx.get(f"{server.url}/", **plain).status_code == 200
        assert httpx.get(f"{server.url}/page/main.js", **plain).status_code == 200
        for path in ("/v1/model", "/v1/status", "/openapi.json"):
            assert httpx.get(f"{server.url}{path}", **plain).status_code == 401
        assert "small" not in httpx.get(f"{server.url}/", **plain).text  # nothing of the model
        chromium.faults.clear()
        chromium.open(f"{server.url}/")
        chromium.wait("!document.querySelector('#token-form').hidden && document.activeElement.id == 'token'")
        assert chromium.see("document.querySelector('#main').hidden")
        chromium.write("wrong")
        chromium.press("Enter")
        chromium.wait("document.querySelector('#token-error').textContent.includes('does not know')")
        chromium.wait("document.activeElement.id == 'token'")
        chromium.write(TOKEN)
        chromium.press("Enter")
        chromium.wait(f"{SCORE} && document.querySelector('#token-form').hidden")
        assert chromium.see("localStorage.length + sessionStorage.length") == 0
        assert chromium.see("document.cookie") == ""
        assert TOKEN not in chromium.see("document.documentElement.outerHTML + location.href")
        assert not any(TOKEN in url for url in chromium.requests)
        assert '"client":"shop"' in server.lines()
