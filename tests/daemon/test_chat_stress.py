"""A small storm: see tests/torture/storm.py, which `make torture` lets loose for longer."""

import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_every_message_is_answered_once_despite_failures_and_kills(url: str) -> None:
    """A platform that fails, delays, doubles and reorders; hosts, supervisors and agents killed."""
    size = ["--places", "2", "--agents", "2", "--messages", "3", "--kills", "2", "--seed", "3"]
    said = subprocess.run(
        [sys.executable, "-m", "tests.torture", "--storm", *size, "--store", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    print(said.stdout)
    assert said.returncode == 0, said.stdout + said.stderr
