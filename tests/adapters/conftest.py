import os

import pytest


@pytest.fixture
def plain_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git as on a machine where nobody has told it who they are."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
