"""Runs are processes and files; where the store is matters little, so most tests run on SQLite."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.home import Home, Screen


@pytest.fixture
def engine() -> str:
    """Tests for which it matters say `on_both_engines`."""
    return "sqlite"


@pytest.fixture
def screen(home: Home) -> Iterator[Callable[..., Screen]]:
    """Makes terminals with `corral …` in them."""
    made: list[Screen] = []

    def make(*arguments: str, **options: Any) -> Screen:
        made.append(Screen.corral(home, *arguments, **options))
        return made[-1]

    yield make
    for screen in made:
        screen.end()
