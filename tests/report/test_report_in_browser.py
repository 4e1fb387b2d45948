"""The pages in a real browser: nothing is fetched, and nothing overflows the screen or its drawing."""

from __future__ import annotations

import html
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from plan_sample import sample_plan
from report_sample import HOSTILE, rare_inputs, sample_inputs
from scale_sample import sweep_result, sweep_series

from tests.search.pipelines.pipelines_sample import sample
from tools.chromium import CHROMIUM
from ziggurat.metrics.power_law import PowerLaw
from ziggurat.report.html import render_report
from ziggurat.report.plan.page import render_plan
from ziggurat.report.scaling.page import render_scale
from ziggurat.search.pipelines.comparison_page import render_comparison
from ziggurat.search.pipelines.page import render
from ziggurat.search.pipelines.scored_by import by_folds
from ziggurat.training.scaling.model_sizes import Size

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH (.ci/install_chromium)"
)

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--window-size=1400,1000",
    "--virtual-time-budget=5000",
]

# Each page sits in a frame of the wanted width; this one measures them and shows the results in their place.
HARNESS = """<!DOCTYPE html><html><body><script>
const cases = {cases}, found = {{}};
const measured = frame => {{
  const page = frame.contentDocument, view = frame.contentWindow;
  const outside = [];
  for (const text of page.querySelectorAll("svg text")) {{
    const inner = text.getBoundingClientRect(), outer = text.closest("svg").getBoundingClientRect();
    if (inner.left < outer.left - 0.5 || inner.right > outer.right + 0.5 || inner.bottom > outer.bottom + 0.5
        || inner.top < outer.top - 0.5) outside.push(text.textContent);
  }}
  const small = [...page.querySelectorAll("figure svg text")].map(
    text => parseFloat(view.getComputedStyle(text).fontSize) * text.closest("svg").getScreenCTM().a);
  return {{
    overflow: page.documentElement.scrollWidth - view.innerWidth,
    cut: Math.max(...[...page.querySelectorAll(".scroll")].map(box => box.scrollWidth - box.clientWidth)),
    fetched: view.performance.getEntriesByType("resource").length,
    outside, scripts: page.scripts.length, drawings: page.querySelectorAll("svg").length,
    smallest: Math.min(...small), mode: page.compatMode,
    ink: view.getComputedStyle(page.body).color, paper: view.getComputedStyle(page.body).backgroundColor,
  }};
}};
for (const [name, [source, width]] of Object.entries(cases)) {{
  const frame = document.createElement("iframe");
  frame.style = `border:0;width:${{width}}px;height:3000px`;
  frame.onload = () => {{
    found[name] = measured(frame);
    if (Object.keys(found).length == Object.keys(cases).length) document.body.textContent = JSON.stringify(found);
  }};
  frame.srcdoc = source;
  document.body.append(frame);
}}
</script></body></html>"""


def browse(cases: dict[str, tuple[str, int]], folder: Path, *flags: str) -> dict[str, dict]:
    """Returns what a browser, started once, measures of each page: name -> (page, width in pixels)."""
    (folder / "harness.html").write_text(
        HARNESS.format(cases=json.dumps(cases).replace("</", "<\\/")), encoding="utf-8"
    )
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}"]
    command += ["--dump-dom", (folder / "harness.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<body[^>]*>(\{.*\})</body>", done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(html.unescape(found.group(1)))


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict[str, dict]:
    """Every page, measured in one start of the browser."""
    result = sweep_result()
    larger = [replace(each, size=Size(each.size.flops, 10**9 + each.number, 10**9)) for each in result.sizes]
    flat = sweep_result(PowerLaw(0.47, 0, 0), "dlrm", HOSTILE)
    scores = {"ours": (0.9,), "standard": (0.8,), HOSTILE: (0.7,)}
    pages = {
        "report": render_report(sample_inputs(("like", "share"), title=HOSTILE)),
        "sweep": render_scale(sweep_series(result, flat)),
        "plan": render_plan(HOSTILE, sample_plan()),
        "pipelines": render(HOSTILE, by_folds("auc"), sample()),
        "ranks": render_comparison(HOSTILE, {"mlp": {"one": scores, "two": scores}}, "ours"),
    }
    cases = {f"{name} {width}": (page, width) for name, page in pages.items() for width in (390, 1200)}
    cases["rare labels"] = (render_report(rare_inputs()), 390)
    cases["large sweep"] = (render_scale(sweep_series(replace(result, sizes=tuple(larger)))), 1100)
    cases["light"] = (render_report(sample_inputs()), 800)
    return browse(cases, tmp_path_factory.mktemp("browser"))


@pytest.mark.parametrize("width", [390, 1200])
def test_fits_and_fetches_nothing(measured, width):
    found = measured[f"report {width}"]
    assert found["mode"] == "CSS1Compat"
    assert found["overflow"] <= 0
    assert found["fetched"] == 0
    assert found["scripts"] == 0
    assert found["outside"] == []
    assert found["drawings"] == 13 + 4
    assert found["smallest"] >= 9  # pixels, of any label in a drawing


def test_long_tick_labels_stay_inside(measured):
    assert measured["rare labels"]["outside"] == []


def test_a_sweeps_tables_are_not_cut(measured):
    assert measured["large sweep"]["cut"] <= 0


@pytest.mark.parametrize("width", [390, 1200])
def test_sweeps_fit_and_fetch_nothing(measured, width):
    found = measured[f"sweep {width}"]
    assert found["overflow"] <= 0
    assert found["fetched"] == found["scripts"] == 0
    assert found["outside"] == []
    assert found["drawings"] == 1
    assert found["smallest"] >= 9


@pytest.mark.parametrize("width", [390, 1200])
def test_plans_fit_and_fetch_nothing(measured, width):
    found = measured[f"plan {width}"]
    assert found["overflow"] <= 0
    assert found["fetched"] == found["scripts"] == 0
    assert found["outside"] == []
    assert found["drawings"] == 2
    assert found["smallest"] >= 9


@pytest.mark.parametrize(("name", "drawings"), [("pipelines", 7), ("ranks", 1)])
@pytest.mark.parametrize("width", [390, 1200])
def test_searches_of_pipelines_fit_and_fetch_nothing(measured, name, drawings, width):
    found = measured[f"{name} {width}"]
    assert found["overflow"] <= 0
    assert found["fetched"] == found["scripts"] == 0
    assert found["outside"] == []
    assert found["drawings"] == drawings
    assert found["smallest"] >= 9


def test_dark_mode_is_dark(measured, tmp_path):
    cases = {"dark": (render_report(sample_inputs()), 800)}
    light, dark = measured["light"], browse(cases, tmp_path, "--blink-settings=preferredColorScheme=0")["dark"]
    brightness = lambda colour: sum(map(int, re.findall(r"\d+", colour)[:3]))  # noqa: E731
    assert brightness(light["paper"]) > 600 > 300 > brightness(light["ink"])
    assert brightness(dark["paper"]) < 150 < 450 < brightness(dark["ink"])
