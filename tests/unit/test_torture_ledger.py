"""The ledger of torture batches: its totals, and where a series continues."""

from pathlib import Path

import pytest

from tests.torture import ledger
from tests.torture.ledger import Batch


def write_ledger(folder: Path, *batches: Batch) -> str:
    file = str(folder / "kills")
    for batch in batches:
        ledger.append_batch(file, batch)
    return file


def test_batches_are_summed_by_engine_and_kind(tmp_path: Path) -> None:
    file = write_ledger(
        tmp_path,
        Batch("sqlite", "runs", 1, {"supervisor": 900, "agent": 100}, 10, 0, runs=40),
        Batch("sqlite", "runs", 2, {"supervisor": 200}, 20, 0, runs=2),
        Batch("sqlite", "runs", 7, {"supervisor": 1}, 1, 1),
        Batch("postgres", "commits", None, {"at a commit": 3}, 2, 0),
    )
    _, _, *rows = ledger.table(ledger.read(file)).splitlines()
    assert rows == [
        "| postgres | commits | 3 (at a commit 3) | 0 | 2 | 0 |  |",
        "| sqlite | runs | 1,201 (agent 100, supervisor 1,101) | 42 | 31 | 1 | 1-2, 7 |",
    ]


def test_series_ends_at_its_count_or_at_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_ledger(tmp_path, Batch("sqlite", "runs", 1, {"supervisor": 500}, 10, 0))
    assert ledger.run_batches(500, 100, 1, file, []) == 0
    assert "500 (supervisor 500)" in capsys.readouterr().out
    write_ledger(tmp_path, Batch("sqlite", "runs", 2, {"supervisor": 1}, 10, 1))
    assert ledger.run_batches(10_000, 100, 1, file, []) == 1, "no later batch hides a violation"
