"""A short run of the chat stress test of `make torture` (tests/torture/chat_stress.py)."""

import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_every_message_is_answered_once_despite_failures_and_kills(url: str) -> None:
    """The platform fails, delays, duplicates and reorders; processes are killed at random."""
    size = ["--places", "2", "--agents", "2", "--messages", "3", "--kills", "2", "--seed", "3"]
    result = subprocess.run(
        [sys.executable, "-m", "tests.torture", "--chat", *size, "--store", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
