from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.keeping import Home


@pytest.fixture
def home(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home for real runs, on both engines, whose processes are all ended with the test."""
    monkeypatch.delenv("CORRAL_STORE", raising=False)
    home = Home(tmp_path, url)
    try:
        yield home
    finally:
        home.end_all()
