"""A headless browser, if one is installed, that makes no outgoing connections of its own."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
]
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no browser here: install chromium, or name one in CORRAL_BROWSER"


@contextmanager
def headless_browser() -> "Iterator[Browser | None]":
    """Return the named browser, one on the PATH or playwright's own; None if there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        yield None
        return
    with sync_playwright() as driver:
        program = _program(driver)
        if program is None:
            yield None
            return
        browser = driver.chromium.launch(executable_path=program, args=QUIET)
        try:
            yield browser
        finally:
            browser.close()


def _program(driver: "Playwright") -> str | None:
    named = os.environ.get("CORRAL_BROWSER")
    results = (path for name in PROGRAMS if (path := shutil.which(name)))
    bundled = driver.chromium.executable_path
    return named or next(results, None) or (bundled if Path(bundled).exists() else None)
