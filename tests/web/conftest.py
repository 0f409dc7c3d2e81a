"""A house that is lived in, served; and a real browser to look at it with."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import corral
from corral.interfaces.web.pages import error_page, routes
from corral.library import Corral
from tests.support.browsers import MISSING, quiet_browser
from tests.support.lived_in import LivedIn
from tests.support.served import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


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


@pytest.fixture(scope="module")  # its driver keeps an event loop: other tests run one of their own
def browser() -> Iterator["Browser"]:
    with quiet_browser() as found:
        if found is None:
            pytest.skip(MISSING)
        yield found


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are kept; git does not see it."""
    folder = Path(__file__).parent / "pictures"
    folder.mkdir(exist_ok=True)
    return folder


def options(mode: str) -> dict[str, Any]:
    """How a page is looked at: by day, by night, on a phone, without scripts."""
    size = {"width": 390, "height": 844} if mode == "phone" else {"width": 1320, "height": 900}
    return {
        "viewport": size,
        "color_scheme": "dark" if mode == "dark" else "light",
        "java_script_enabled": mode != "plain",
        # What breathes is painted sixty times a second, on a machine that has other things to do.
        "reduced_motion": "reduce",
    }
