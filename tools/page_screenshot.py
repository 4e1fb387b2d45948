"""Makes the picture of the page of ``ziggurat serve`` that README and docs show.

    make demo && .venv/bin/ziggurat export runs/movielens exports/movielens
    .venv/bin/python -m tools.page_screenshot exports/movielens docs/images/serving.png

It serves the export, sends it traffic drawn from the sample rows, uses the page as a person does, and takes a picture.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from PIL import Image

from tools.chromium import browser

WIDTH, HEIGHT = 1180, 1490
SECONDS = 200
MOST_BYTES = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long there is traffic")
    options = parser.parse_args()
    command = [sys.executable, "-m", "ziggurat", "serve", str(options.export), "--port", "0", "--no-log"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        data = photographed(url, options.seconds)
    finally:
        server.terminate()
        server.wait(60)
    options.picture.write_bytes(data)
    print(f"{options.picture}: {len(data):,} bytes")


def photographed(url: str, seconds: float) -> bytes:
    """Returns the picture of the page of a server, as PNG."""
    model = _json(f"{url}/v1/model")
    rows: list[dict[str, Any]] = model["samples"]
    draw = random.Random(0)
    known = {
        each["name"]: each["known"]["values"] for each in model["columns"] if each["known"] and not each["is_list"]
    }
    changed = next((each["name"] for each in model["columns"] if each["range"]), None)
    with browser() as page:
        page.size(WIDTH, HEIGHT)
        page.open(f"{url}/")
        page.wait("document.querySelector('#scores dd')")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            some = [
                {**draw.choice(rows), **{name: draw.choice(values) for name, values in known.items()}}
                for _ in range(draw.randint(1, 40))
            ]
            _json(f"{url}/v1/predict", {"rows": some})
            time.sleep(draw.uniform(0.02, 0.3))
        if changed is not None:
            page.click(f"input[data-column={json.dumps(changed)}]")
            page.write("45")
            page.wait("document.querySelector('#said').textContent.includes('You changed')")
        page.click("#candidates button[type=submit]")
        page.wait("document.querySelector('#ranked').textContent")
        page.see("document.activeElement.blur(), scrollTo(0, document.querySelector('#predict').offsetTop - 12)")
        return _small(page.screenshot())


def _json(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def _small(png: bytes) -> bytes:
    """Returns the picture with 256 colours at most, which suffices for text and lines."""
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(out, "PNG", optimize=True)
    if out.tell() > MOST_BYTES:
        sys.exit(f"the picture has {out.tell():,} bytes, more than {MOST_BYTES:,}")
    return out.getvalue()


if __name__ == "__main__":
    main()
