"""The pages in a real browser: nothing is fetched, and nothing overflows the screen or its drawing."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from plan_sample import sample_plan
from report_sample import HOSTILE, rare_inputs, sample_inputs
from scale_sample import sweep_result, sweep_series

from ziggurat.metrics.power_law import PowerLaw
from ziggurat.report.html import render_report
from ziggurat.report.plan.page import render_plan
from ziggurat.report.scaling.page import render_scale
from ziggurat.training.scaling.model_sizes import Size

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")

# The harness loads the report in a frame of the given width, measures it, and replaces its own body by the results.
HARNESS = """<!DOCTYPE html><html><body><iframe id="frame" style="border:0;width:{width}px;height:3000px"></iframe>
<script>
const frame = document.getElementById("frame");
frame.onload = () => {{
  const page = frame.contentDocument, view = frame.contentWindow;
  const outside = [];
  for (const text of page.querySelectorAll("svg text")) {{
    const inner = text.getBoundingClientRect(), outer = text.closest("svg").getBoundingClientRect();
    if (inner.left < outer.left - 0.5 || inner.right > outer.right + 0.5 || inner.bottom > outer.bottom + 0.5
        || inner.top < outer.top - 0.5) outside.push(text.textContent);
  }}
  const small = [...page.querySelectorAll("figure svg text")].map(
    text => parseFloat(view.getComputedStyle(text).fontSize) * text.closest("svg").getScreenCTM().a);
  document.body.textContent = JSON.stringify({{
    overflow: page.documentElement.scrollWidth - view.innerWidth,
    cut: Math.max(...[...page.querySelectorAll(".scroll")].map(box => box.scrollWidth - box.clientWidth)),
    fetched: view.performance.getEntriesByType("resource").length,
    outside, scripts: page.scripts.length, drawings: page.querySelectorAll("svg").length,
    smallest: Math.min(...small), mode: page.compatMode,
    ink: view.getComputedStyle(page.body).color, paper: view.getComputedStyle(page.body).backgroundColor,
  }});
}};
frame.srcdoc = {source};
</script></body></html>"""


def measured(page: str, folder: Path, width: int, dark: bool = False) -> dict:
    source = json.dumps(page).replace("</", "<\\/")
    (folder / "harness.html").write_text(HARNESS.format(width=width, source=source), encoding="utf-8")
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--virtual-time-budget=5000"]
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    command += ["--dump-dom", (folder / "harness.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<body[^>]*>(\{.*\})</body>", done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(html.unescape(found.group(1)))


@pytest.mark.parametrize("width", [390, 1200])
def test_fits_and_fetches_nothing(tmp_path, width):
    found = measured(render_report(sample_inputs(("like", "share"), title=HOSTILE)), tmp_path, width)
    assert found["mode"] == "CSS1Compat"
    assert found["overflow"] <= 0
    assert found["fetched"] == 0
    assert found["scripts"] == 0
    assert found["outside"] == []
    assert found["drawings"] == 13 + 4
    assert found["smallest"] >= 9  # pixels, of any label in a drawing


def test_long_tick_labels_stay_inside(tmp_path):
    assert measured(render_report(rare_inputs()), tmp_path, 390)["outside"] == []


def test_a_sweeps_tables_are_not_cut(tmp_path):
    result = sweep_result()
    larger = [replace(each, size=Size(each.size.flops, 10**9 + each.number, 10**9)) for each in result.rungs]
    assert measured(render_scale(sweep_series(replace(result, rungs=tuple(larger)))), tmp_path, 1100)["cut"] <= 0


@pytest.mark.parametrize("width", [390, 1200])
def test_sweeps_fit_and_fetch_nothing(tmp_path, width):
    flat = sweep_result(PowerLaw(0.47, 0, 0), "dlrm", HOSTILE)
    found = measured(render_scale(sweep_series(sweep_result(), flat)), tmp_path, width)
    assert found["overflow"] <= 0
    assert found["fetched"] == found["scripts"] == 0
    assert found["outside"] == []
    assert found["drawings"] == 1
    assert found["smallest"] >= 9


@pytest.mark.parametrize("width", [390, 1200])
def test_plans_fit_and_fetch_nothing(tmp_path, width):
    found = measured(render_plan(HOSTILE, sample_plan()), tmp_path, width)
    assert found["overflow"] <= 0
    assert found["fetched"] == found["scripts"] == 0
    assert found["outside"] == []
    assert found["drawings"] == 2
    assert found["smallest"] >= 9


def test_dark_mode_is_dark(tmp_path):
    page = render_report(sample_inputs())
    light, dark = (measured(page, tmp_path, 800, dark) for dark in (False, True))
    brightness = lambda colour: sum(map(int, re.findall(r"\d+", colour)[:3]))  # noqa: E731
    assert brightness(light["paper"]) > 600 > 300 > brightness(light["ink"])
    assert brightness(dark["paper"]) < 150 < 450 < brightness(dark["ink"])
