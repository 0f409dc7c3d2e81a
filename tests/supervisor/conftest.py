"""Fixtures of the supervisor tests. Most tests use SQLite: runs do not depend on the engine."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.home import Home
from tests.support.screen import Screen


@pytest.fixture
def engine() -> str:
    """The default engine. Tests that depend on the engine are marked `on_both_engines`."""
    return "sqlite"


@pytest.fixture
def screen(home: Home) -> Iterator[Callable[..., Screen]]:
    """Return a function that runs `corral …` in a new pseudo-terminal."""
    screens: list[Screen] = []

    def open_screen(*arguments: str, **options: Any) -> Screen:
        screens.append(Screen.corral(home, *arguments, **options))
        return screens[-1]

    yield open_screen
    for screen in screens:
        screen.end()
