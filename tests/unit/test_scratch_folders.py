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

KILLED = """
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


def killed(module: str, maker: str, path: Path) -> None:
    program = KILLED.format(module=module, maker=maker, path=str(path))
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9


def test_leftovers_of_a_killed_import_are_removed_by_the_next(
    temporary: Path, source: Path
) -> None:
    killed("importers.source.database", "open_source", source)
    (left,) = temporary.iterdir()
    assert [file.name for file in left.iterdir()] == ["copy.db"]
    with open_source(source):
        assert not left.exists()
        (own,) = temporary.iterdir()
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert os.listdir(temporary) == []


def test_leftovers_of_a_killed_restore_are_removed_when_old(
    store: Corral, temporary: Path, tmp_path: Path
) -> None:
    backup = store.db.backup(tmp_path / "b.db")
    killed("db.backup", "current_copy", backup)
    assert len(os.listdir(temporary)) == 1
    store.db.prune(dry_run=True)
    assert len(os.listdir(temporary)) == 1
    store.db.prune()
    assert os.listdir(temporary) == []
    with db_backup.current_copy(backup) as current:
        store.db.prune()
        assert current.exists(), "it is in use"


def test_folders_in_use_or_of_others_are_kept(temporary: Path, tmp_path: Path) -> None:
    (temporary / "corral-scratch-notes").mkdir()
    (temporary / "corral-import-abcdefgh").mkdir()
    (precious := tmp_path / "precious").mkdir()
    (precious / "file").touch()
    (temporary / "corral-scratch-import-abcdefgh").symlink_to(precious)
    (temporary / "corral-scratch-import-12345678").touch()
    before = sorted(os.listdir(temporary))
    with scratch_folders.scratch_folder("check") as own:
        scratch_folders.remove_stale_folders()
        assert own.is_dir()
    assert sorted(os.listdir(temporary)) == before
    assert (precious / "file").exists()


def test_folder_removed_before_it_is_locked_is_created_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp
    results = []

    def made_and_swept(prefix: str) -> str:
        results.append(make(prefix=prefix))
        if len(results) == 1:
            scratch_folders.remove_stale_folders()
        return results[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_swept)
    with scratch_folders.scratch_folder("check") as own:
        assert own.is_dir()
    assert len(results) == 2
