"""Make docs/images/page.png and docs/images/report.png: the server's page and a report, both of the simulated log.

Usage: python scripts/screenshots.py [FOLDER]

FOLDER (build/screenshots) keeps the log, the bundle and the report; what is there is not made
again. Needs the extras `report` and `serve`, playwright, Pillow and the system's Chromium. Training
takes about a minute.
"""

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
MODEL = "simulated/autoint"
LIMIT = 150_000  # bytes of a picture


def fieldwise(*words: object) -> None:
    """Run a command of fieldwise; an error ends the script."""
    subprocess.run([sys.executable, "-m", "fieldwise", *map(str, words)], check=True)


def prepare(folder: Path) -> None:
    """Simulate the log, train the model and write its report, where they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "log.parquet").exists():
        fieldwise("simulate", "--out", folder / "log.parquet")
    if not (folder / "bundle").exists():
        fieldwise("train", MODEL, "--out", folder / "bundle", "--quiet")
    if not (folder / "report.html").exists():
        fieldwise(
            "report",
            folder / "bundle",
            "--slice",
            "device",
            "--out",
            folder / "report.html",
            "--quiet",
        )


def start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start the server on a free port; return its process and address."""
    words = ["serve", str(folder / "bundle"), "--log", str(folder / "log.parquet"), "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "fieldwise", *words], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    said = ""
    for line in server.stderr:
        said += line
        if result := re.search(r"http://[\d.:]+", line):
            return server, result[0]
    raise SystemExit(f"the server did not start: {said}")


def open_first(page: Page) -> None:
    """Open the reasons of the first recommendation."""
    page.wait_for_function(
        "() => document.querySelector('#list')?.getAttribute('aria-busy') === 'false'"
    )
    page.locator("#list > li >> nth=0").get_by_role("button").first.click()
    page.wait_for_selector(".bars")


def scroll_to_curves(page: Page) -> None:
    """Bring the report's curves and calibration into the window."""
    page.get_by_role("heading", name="ROC and precision-recall").evaluate(
        "one => one.scrollIntoView()"
    )


def take(
    browser: Any, address: str, name: str, height: int, ready: Callable[[Page], None] | None = None
) -> None:
    """Save what a window of 1,100 x `height` shows, in 256 colours."""
    page = browser.new_page(
        viewport={"width": 1100, "height": height}, color_scheme="light", reduced_motion="reduce"
    )
    page.goto(address)
    if ready is not None:
        ready(page)
    target = IMAGES / name
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(
        256, dither=Image.Dither.NONE
    ).save(target, optimize=True)
    page.close()
    size = target.stat().st_size
    if size > LIMIT:
        raise SystemExit(f"{target} must have at most {LIMIT:,} bytes, found {size:,}")
    print(f"{target}: {size:,} bytes")


def main(folder: Path) -> None:
    """Make both pictures."""
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if chromium is None:
        raise SystemExit("screenshots need Chromium: install the package chromium")
    prepare(folder)
    server, address = start(folder)
    try:
        with sync_playwright() as started:
            browser = started.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            take(browser, address, "page.png", 860, open_first)
            take(
                browser,
                (folder / "report.html").resolve().as_uri(),
                "report.png",
                860,
                scroll_to_curves,
            )
            browser.close()
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"))
