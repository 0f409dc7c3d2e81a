"""A short storm of handles, processes, forks and other SQLite libraries over one file."""

from pathlib import Path

from tests.torture.sqlite_handles import Storm


def test_mixed_sqlite_handles_and_libraries_lose_no_write(tmp_path: Path) -> None:
    storm = Storm(tmp_path, operations=120, workers=3, kills=0, seed=7)
    assert storm.run() == []
    assert storm.seen["put"] > 25
