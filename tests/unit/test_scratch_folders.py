"""Scratch folders: removed with their owner, or by a later clean-up if the owner was killed."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from corral import scratch_folders
from corral.api import Corral
from corral.db import backup as db_backup
from corral.importers.source.database import open_source
from tests.support import source_databases

KILL_WITH_FOLDER_OPEN = """
import os, signal
from pathlib import Path
from corral.{module} import {maker}
with {maker}(Path({path!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return source_databases.make(
        tmp_path / "s.db", source_databases.AGENT_YES, source_databases.AGENT_YES_ROWS
    )


def run_and_kill(module: str, maker: str, path: Path) -> None:
    program = KILL_WITH_FOLDER_OPEN.format(module=module, maker=maker, path=str(path))
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9


def test_leftovers_of_a_killed_import_are_removed_by_the_next(
    temporary: Path, source: Path
) -> None:
    run_and_kill("importers.source.database", "open_source", source)
    (leftover,) = temporary.iterdir()
    assert [file.name for file in leftover.iterdir()] == ["copy.db"]
    with open_source(source):
        assert not leftover.exists()
        (current,) = temporary.iterdir()
        assert stat.S_IMODE(current.stat().st_mode) == 0o700
    assert os.listdir(temporary) == []


def test_leftovers_of_a_killed_restore_are_removed_when_old(
    store: Corral, temporary: Path, tmp_path: Path
) -> None:
    backup = store.db.backup(tmp_path / "b.db")
    run_and_kill("db.backup", "current_copy", backup)
    assert len(os.listdir(temporary)) == 1
    store.db.prune(dry_run=True)
    assert len(os.listdir(temporary)) == 1
    store.db.prune()
    assert os.listdir(temporary) == []
    with db_backup.current_copy(backup) as current:
        store.db.prune()
        assert current.exists(), "the folder is in use"


def test_folders_in_use_or_of_others_are_kept(temporary: Path, tmp_path: Path) -> None:
    (temporary / "corral-scratch-notes").mkdir()
    (temporary / "corral-import-abcdefgh").mkdir()
    (user_folder := tmp_path / "user").mkdir()
    (user_folder / "file").touch()
    (temporary / "corral-scratch-import-abcdefgh").symlink_to(user_folder)
    (temporary / "corral-scratch-import-12345678").touch()
    before = sorted(os.listdir(temporary))
    with scratch_folders.scratch_folder("check") as folder:
        scratch_folders.remove_stale_folders()
        assert folder.is_dir()
    assert sorted(os.listdir(temporary)) == before
    assert (user_folder / "file").exists()


def test_folder_removed_before_it_is_locked_is_created_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp
    results = []

    def make_and_remove(prefix: str) -> str:
        results.append(make(prefix=prefix))
        if len(results) == 1:
            scratch_folders.remove_stale_folders()
        return results[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_remove)
    with scratch_folders.scratch_folder("check") as folder:
        assert folder.is_dir()
    assert len(results) == 2
