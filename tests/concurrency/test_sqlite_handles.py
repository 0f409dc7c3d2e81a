"""A short stress test of handles, processes, forks and other SQLite libraries on one file."""

from pathlib import Path

from tests.torture.sqlite_handles import HandleStress


def test_mixed_sqlite_handles_and_libraries_lose_no_write(tmp_path: Path) -> None:
    stress = HandleStress(tmp_path, operations=120, workers=3, kills=0, seed=7)
    assert stress.run() == []
    assert stress.counts["put"] > 25
