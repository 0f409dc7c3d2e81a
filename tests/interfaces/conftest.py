import pytest

from tests.support.cli import Cli


@pytest.fixture
def cli(url: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on a store of either engine."""
    return Cli(capsys, url)


@pytest.fixture
def home_cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on the user's own store, in the test's home."""
    return Cli(capsys)
