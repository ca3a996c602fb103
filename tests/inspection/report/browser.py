"""A browser without a network, in which reports are opened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[3] / "viewer" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, driven by playwright; skips with the reason where one of them is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"needs one of {', '.join(NAMES)}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A page that is open, with what it asked for and complained of."""

    def __init__(self, chromium: Any, url: str, script: str = "", **options: Any) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        context = chromium.new_context(offline=True, **{"viewport": {"width": 1280, "height": 800}, **options})
        self.page = context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        if script:
            self.page.add_init_script(script)
        self.page.goto(url)
        self.page.wait_for_selector(".lists section, .page")

    def close(self) -> None:
        self.page.context.close()


def url(report: Path, address: str = "") -> str:
    return report.as_uri() + (f"#{address}" if address else "")
