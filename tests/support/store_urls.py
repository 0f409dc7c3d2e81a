"""Stores for tests that need many of them in sequence."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.database_pool import DatabasePool, others_connected


@pytest.fixture
def fresh_url(
    url: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[[], str]:
    """Return a function that returns the URL of an empty store at each call.

    On SQLite that is a new file; on PostgreSQL the same database, emptied.
    """
    count = 0
    database_pool: DatabasePool | None = (
        request.getfixturevalue("database_pool") if engine == "postgres" else None
    )

    def fresh() -> str:
        nonlocal count
        count += 1
        if database_pool is not None:
            wait_until_alone(url)
            assert database_pool.empty(url)
            return url
        copy = tmp_path / f"fresh-{count}.db"
        shutil.copyfile(url.removeprefix("sqlite:///"), copy)
        return f"sqlite:///{copy}"

    return fresh


def wait_until_alone(url: str, seconds: float = 120.0) -> None:
    """Wait until a PostgreSQL server has noticed that its clients are dead.

    Until then it keeps their locks, and a claim rightly skips locked rows.
    """
    if not url.startswith("postgres"):
        return
    deadline = time.monotonic() + seconds
    while others_connected(url):
        assert time.monotonic() < deadline, "another client still uses the store"
        time.sleep(0.002)
