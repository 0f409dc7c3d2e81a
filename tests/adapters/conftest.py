import os

import pytest


@pytest.fixture
def plain_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git without a configured user name and email."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
