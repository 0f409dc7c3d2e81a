"""Fixtures of the daemon tests: machines with real daemons, which end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.daemon_nodes import Machine


@pytest.fixture
def new_machine(url: str, tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Return a function that creates a machine; `at` overrides the URL of the store."""
    machines: list[Machine] = []

    def create(name: str = "one", at: str | None = None) -> Machine:
        machines.append(Machine(tmp_path / name, at or url, name))
        return machines[-1]

    yield create
    for machine in machines:
        machine.kill_processes()


@pytest.fixture
def machine(new_machine: Callable[..., Machine]) -> Machine:
    return new_machine()
