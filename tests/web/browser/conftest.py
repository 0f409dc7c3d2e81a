"""A real browser and a real daemon with sample content, shared by all tests of this folder.

Both are expensive to start, so the tests share them and one window. Each test uses its own
projects, tasks and messages.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import corral
from corral.api import Corral
from corral.domain.runs.model import RunState
from tests.support.browser import MISSING, headless_browser
from tests.support.daemon_nodes import Machine
from tests.support.home import wait_until
from tests.support.sample_store import HOSTILE, SampleStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TAKE_PICTURES = os.environ.get("CORRAL_PICTURES")  # read now: a fixture clears the environment
COLOURS = (
    "for i in 1 2 3; do printf '\\033[3%dmcolour %d\\033[0m \\033[38;2;200;120;80mrgb\\033[0m\\n' "
    "$i $i; done; printf '<b>bold?</b>\\n'; while read line; do echo \"received $line\"; done"
)
# The target is 250 ms at the 99th percentile (`bench web` measures it); here it must only be quick.
SOON = 60_000  # milliseconds; on a busy machine


class LiveSite(NamedTuple):
    """A daemon with its store, sample content and runs."""

    machine: Machine
    store: Corral
    sample: SampleStore
    runs: dict[str, str]
    link: str

    @property
    def base(self) -> str:
        return self.link.partition("/?")[0]


@pytest.fixture(scope="package")
def live_site(tmp_path_factory: pytest.TempPathFactory, browser: "Browser") -> Iterator[LiveSite]:
    folder = tmp_path_factory.mktemp("site")
    url = f"sqlite:///{folder}/corral.db"
    machine = Machine(folder / "one", url, "one")
    with corral.open(url, actor="user:tester") as store:
        sample = SampleStore(store, folder, host=machine.name)
        try:
            link = machine.up()["link"]
            runs = {
                "talks": machine.start_agent(
                    "scripted",
                    "say I read the code; write a.txt hi; spend 12000 900; sleep 600",
                    "--name",
                    "talks",
                ).id,
                "asks": machine.start_agent(
                    "scripted", "ask Delete the old branch?; say ok", "--name", "asks", "--pty"
                ).id,
                "colours": machine.start_detached(
                    "sh", "-c", COLOURS, options=("--name", "colours", "--pty")
                ).id,
                "hostile": machine.start_agent("scripted", f"say {HOSTILE}; crash 3").id,
            }
            machine.wait_for_end(runs["hostile"])
            for name in ("talks", "colours"):
                machine.in_state(runs[name], RunState.RUNNING)
            wait_until(lambda: store.runs.get(runs["asks"]).attention, "the run asks a question")
            sample.samples(store.runs.get(runs["talks"]))
            yield LiveSite(machine, store, sample, runs, link)
        finally:
            machine.kill_processes()


class BrowserTab:
    """One window; records its console errors, failed responses and requests to other hosts."""

    def __init__(self, page: "Page", base: str) -> None:
        self.page = page
        self.base = base
        self.faults: list[str] = []
        self.posted: list[str] = []
        self._listeners: dict[Any, Callable[[Any], None]] = {
            "console": self._on_console,
            "pageerror": self._on_error,
            "request": self._on_request,
            "response": self._on_response,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def close(self) -> None:
        """Stop listening; the window stays open."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)

    def _on_console(self, message: Any) -> None:
        # An image has no icon link, unlike the pages, so the browser requests the default icon.
        is_icon_request = message.location["url"].endswith("/favicon.ico")
        if message.type in ("error", "warning") and not is_icon_request:
            self.faults.append(f"console: {message.text}")

    def _on_error(self, error: Any) -> None:
        self.faults.append(f"error: {error}")

    def _on_request(self, request: Any) -> None:
        if request.method == "POST":
            self.posted.append(request.url)
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.faults.append(f"outside: {request.url}")

    def _on_response(self, response: Any) -> None:
        if response.status >= 400 and not response.url.endswith("/favicon.ico"):
            self.faults.append(f"{response.status}: {response.url}")

    def resize(self, mode: str) -> None:
        self.page.set_viewport_size(context_options(mode)["viewport"])

    def go(self, path: str) -> "Page":
        self.page.goto(self.base + path)
        return self.page


def context_options(mode: str) -> dict[str, Any]:
    """Context options for a mode: `light`, `dark`, `phone`, or `plain` (without scripts)."""
    size = {"width": 390, "height": 844} if mode == "phone" else {"width": 1320, "height": 900}
    return {
        "viewport": size,
        "color_scheme": "dark" if mode == "dark" else "light",
        "java_script_enabled": mode != "plain",
        # Animations are painted sixty times a second.
        "reduced_motion": "reduce",
    }


# Package scope: the driver runs an event loop, and tests of other folders run one of their own.
@pytest.fixture(scope="package")
def browser() -> Iterator["Browser"]:
    with headless_browser() as result:
        if result is None:
            pytest.skip(MISSING)
        yield result


@pytest.fixture(scope="package")
def pictures() -> Path:
    """The folder of the screenshots; git ignores it."""
    folder = Path(__file__).parent.parent / "pictures"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="package")
def take_picture(pictures: Path) -> Callable[..., None]:
    """Save a screenshot when CORRAL_PICTURES is set."""

    def save(page: "Page", name: str, *, full_page: bool = True) -> None:
        if TAKE_PICTURES:
            page.screenshot(path=pictures / f"{name}.png", full_page=full_page)

    return save


def new_window(browser: "Browser", live_site: LiveSite, mode: str) -> "Page":
    """Open a window in a context of its own and log in."""
    context = browser.new_context(**context_options(mode))
    context.set_default_timeout(SOON)
    page = context.new_page()
    page.goto(live_site.link)
    return page


class Window(NamedTuple):
    """The window that the tests share. A new context costs more CPU time than most tests."""

    page: "Page"
    start_url: str
    """The address after logging in."""
    cookies: list[Any]

    def reset(self) -> None:
        """Leave the page, so that it requests nothing more, and undo what a test may change."""
        self.page.unroute_all()
        # Of the same origin: about:blank would start a new renderer process.
        self.page.goto(f"{self.start_url}static/icon.svg")
        self.page.context.clear_cookies()
        self.page.context.add_cookies(self.cookies)
        self.page.set_viewport_size(context_options("light")["viewport"])


@pytest.fixture(scope="package")
def window(live_site: LiveSite, browser: "Browser") -> Iterator[Window]:
    page = new_window(browser, live_site, "light")
    yield Window(page, page.url, page.context.cookies())
    page.context.close()


@pytest.fixture
def tab(live_site: LiveSite, window: Window) -> Iterator[BrowserTab]:
    """The shared window, before any page is opened."""
    tab = BrowserTab(window.page, live_site.base)
    yield tab
    window.reset()
    tab.close()
    assert tab.faults == []


@pytest.fixture
def open_window(live_site: LiveSite, browser: "Browser") -> Iterator[Callable[[str], BrowserTab]]:
    """Open windows of their own, for another mode or without the state of the shared one."""
    opened: list[BrowserTab] = []

    def open_tab(mode: str = "light") -> BrowserTab:
        tab = BrowserTab(new_window(browser, live_site, mode), live_site.base)
        opened.append(tab)
        return tab

    yield open_tab
    faults = [fault for tab in opened for fault in tab.faults]
    for tab in opened:
        tab.page.context.close()
    assert faults == []
