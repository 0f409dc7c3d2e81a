"""Daemons are real processes; each test's are ended with it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.daemon_nodes import Machine


@pytest.fixture
def machine(url: str, tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Makes machines on the store, by name; another URL leads to it another way."""
    made: list[Machine] = []

    def make(name: str = "one", at: str | None = None) -> Machine:
        made.append(Machine(tmp_path / name, at or url, name))
        return made[-1]

    yield make
    for one in made:
        one.kill_processes()


@pytest.fixture
def one(machine: Callable[..., Machine]) -> Machine:
    return machine()
