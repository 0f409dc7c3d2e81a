"""A house that is lived in, served; and a real browser to look at it with."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import corral
from corral.interfaces.web.pages import error_page, routes
from corral.library import Corral
from tests.support.lived_in import LivedIn
from tests.support.served import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# What a browser must not do by itself on a machine without a display or a way out.
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


class House(NamedTuple):
    served: Served
    lived_in: LivedIn

    @property
    def store(self) -> Corral:
        return self.served.store


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """Nothing changes in it: what a test does, it does to things of its own."""
    folder = tmp_path_factory.mktemp("house")
    if request.param == "sqlite":
        url = f"sqlite:///{folder}/corral.db"
    else:
        server = request.getfixturevalue("postgres_server")
        template = request.getfixturevalue("postgres_template")
        url = server.new_database(template=template)
    with corral.open(url, actor="user:tester") as store:
        lived_in = LivedIn(store, folder)
        with serving(store, pages=routes(), error_page=error_page) as served:
            yield House(served, lived_in)
    if request.param == "postgres":
        server.drop_database(url)


@pytest.fixture
def served(store: Corral) -> Iterator[Served]:
    """The pages on an empty store."""
    with serving(store, pages=routes(), error_page=error_page) as running:
        yield running


def find_browser() -> str | None:
    """The program of a browser: the one that was named, one on the PATH, or playwright's own."""
    named = os.environ.get("CORRAL_BROWSER")
    if named:
        return named
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is not None:
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        own = driver.chromium.executable_path
    return own if Path(own).exists() else None


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("no playwright here: pip install playwright")
    program = find_browser()
    if program is None:
        pytest.skip("no browser here: install chromium, or name one in CORRAL_BROWSER")
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are kept; git does not see it."""
    folder = Path(__file__).parent / "pictures"
    folder.mkdir(exist_ok=True)
    return folder


def options(mode: str) -> dict[str, Any]:
    """How a page is looked at: by day, by night, on a phone."""
    size = {"width": 390, "height": 844} if mode == "phone" else {"width": 1320, "height": 900}
    return {"viewport": size, "color_scheme": "dark" if mode == "dark" else "light"}
