"""Tracked files contain no local path and are valid text."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Assembled from parts, so that this file itself passes.
FORBIDDEN = {
    "a path of a home folder": re.compile(r"(?<![\w}./-])/(?:home|Users|root)/" + r"\w"),
    "a path of a development folder": re.compile("/wo" + r"rk/(?:main|shared)\b"),
    "a file outside of the repository": re.compile(r"\.\./" + "shared"),
}


def list_tracked_files() -> list[Path]:
    try:
        process = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return []  # an unpacked archive has no file list
    return [ROOT / name for name in process.stdout.split("\0") if name and (ROOT / name).is_file()]


FILES = list_tracked_files()


def read_text(file: Path) -> str:
    data = file.read_bytes()
    return "" if b"\0" in data[:8_000] else data.decode("utf-8", errors="replace")


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_file_contains_a_local_path(kind: str) -> None:
    if not FILES:
        pytest.skip("not a git repository, so the list of files is unknown")
    results = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for file in FILES
        for number, line in enumerate(read_text(file).splitlines(), 1)
        if FORBIDDEN[kind].search(line)
    ]
    assert results == []


def test_every_text_file_is_utf_8_and_ends_with_a_newline() -> None:
    if not FILES:
        pytest.skip("not a git repository, so the list of files is unknown")
    for file in FILES:
        data = file.read_bytes()
        if b"\0" not in data and file.suffix in {".py", ".md", ".toml", ".sql", ".json"}:
            data.decode("utf-8")
            assert not data or data.endswith(b"\n"), file
