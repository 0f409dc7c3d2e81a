"""A small disk that fills up quickly."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def fill(ballast: Path) -> None:
    file = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while os.write(file, b"x" * 4096):
            pass
    os.close(file)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a 3 MB disk on an empty folder; skip the test where that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root; other tests check the file size limit")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield folder
    # A killed process may keep a file open for a moment.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
