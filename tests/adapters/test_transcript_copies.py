"""Copies of a sandboxed CLI's transcript: hostile files cannot misuse the reader."""

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from corral.adapters import transcript_copies
from corral.adapters.transcript_copies import TranscriptCopy
from corral.adapters.transcripts import opencode
from corral.adapters.transcripts.reader import iter_lines
from tests.support.threads import Racer

PATTERNS = (".codex/sessions/*/rollout-*.jsonl",)
FILE = ".codex/sessions/18/rollout-1.jsonl"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / FILE).parent.mkdir(parents=True)
    return tmp_path / "home"


def make_copy(home: Path, patterns: tuple[str, ...] = PATTERNS) -> tuple[TranscriptCopy, Path]:
    folder = home.parent / "copy"
    return TranscriptCopy(str(home), patterns, folder), folder


def test_appended_lines_are_copied(home: Path) -> None:
    copy, folder = make_copy(home)
    copy.refresh()
    assert not (folder / FILE).exists()
    (home / FILE).write_text("one\n")
    (home / FILE).with_name("other.jsonl").write_text("not a record\n")
    copy.refresh()
    assert (folder / FILE).read_text() == "one\n"
    assert (folder / FILE).stat().st_mtime_ns == (home / FILE).stat().st_mtime_ns
    with (home / FILE).open("a") as file:
        file.write("two\n")
    copy.refresh()
    copy.refresh()
    assert (folder / FILE).read_text() == "one\ntwo\n"
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / FILE]
    (home / FILE).write_text("new\n")
    copy.refresh()
    assert (folder / FILE).stat().st_size == 4
    copy.close()
    assert not folder.exists()


@pytest.mark.parametrize("component", [".codex", ".codex/sessions", ".codex/sessions/18", FILE])
def test_no_component_of_the_path_may_be_a_symlink(home: Path, component: str) -> None:
    secret = home.parent / "secret"
    (secret / FILE).parent.mkdir(parents=True)
    (secret / FILE).write_text("secret\n")
    path = home / component
    for old in sorted(home.rglob("*"), reverse=True):
        if not path.is_relative_to(old) or old == path:
            old.rmdir()
    path.symlink_to(secret / component)
    assert (home / FILE).read_text() == "secret\n"
    copy, folder = make_copy(home)
    copy.refresh()
    assert list(folder.rglob("*")) == []


@pytest.mark.parametrize("trick", ["pipe", "hard link", "socket", "folder"])
def test_only_regular_files_are_copied(home: Path, trick: str) -> None:
    if trick == "pipe":
        os.mkfifo(home / FILE)
    elif trick == "hard link":
        (home.parent / "secret").write_text("secret\n")
        os.link(home.parent / "secret", home / FILE)
    elif trick == "folder":
        (home / FILE).mkdir()
    else:
        before = os.getcwd()
        os.chdir((home / FILE).parent)  # the path of a socket is limited
        try:
            with closing(socket.socket(socket.AF_UNIX)) as bound:
                bound.bind(Path(FILE).name)
        finally:
            os.chdir(before)
    copy, folder = make_copy(home)
    Racer(copy.refresh).result()  # a pipe would block it
    assert list(folder.rglob("*")) == []


def test_sizes_and_counts_are_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_copies, "MAX_BYTES", 100)
    monkeypatch.setattr(transcript_copies, "MAX_FILES", 3)
    for number in range(9):
        (home / FILE).with_name(f"rollout-{number}.jsonl").write_text("x" * 60)
    copy, folder = make_copy(home)
    for _ in range(3):
        copy.refresh()
        for path in (home / FILE).parent.iterdir():
            path.write_text("x" * 60)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert sum(path.stat().st_size for path in files) == 100


def test_number_of_scanned_entries_is_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_copies, "MAX_ENTRIES", 50)
    for number in range(200):
        (home / FILE).with_name(f"rollout-{number}.jsonl").write_text("x")
    copy, folder = make_copy(home)
    copy.refresh()
    assert 0 < len([path for path in folder.rglob("*") if path.is_file()]) <= 50


def test_unterminated_line_is_skipped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is not loaded into memory, even if it is longer than the copy."""
    monkeypatch.setattr(transcript_copies, "MAX_BYTES", 48 << 20)
    with (home / FILE).open("wb") as file:
        file.write(b'{"a": 1}\n{"b": "')
        file.truncate(200 << 20)
    copy, folder = make_copy(home)
    copy.refresh()
    assert (folder / FILE).stat().st_size == 48 << 20
    assert [line for line, _ in iter_lines(folder / FILE)] == [{"a": 1}]


# -- a database --------------------------------------------------------------------------------

TABLES = """
    CREATE TABLE session (id, directory, time_created, time_updated, title, version, parent_id);
    CREATE TABLE message (id, session_id, data);
    CREATE TABLE part (id, message_id, session_id, time_created, time_updated, data);
"""


def create_database(home: Path, script: str) -> Path:
    folder = home / ".local/share/opencode"
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "opencode.db")) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.executescript(script)
    return folder


def test_database_is_copied_with_its_wal(home: Path) -> None:
    folder = create_database(home, TABLES)
    patterns = tuple(f".local/share/opencode/{name}" for name in opencode.RECORD_FILES)
    copy, copied = make_copy(home, patterns)
    root = copied / ".local/share/opencode"
    with closing(sqlite3.connect(folder / "opencode.db", isolation_level=None)) as opened:
        for number in range(3):
            opened.execute(
                "INSERT INTO session VALUES (?, '/w', 5, 5, 't', '1', NULL)", (f"ses_{number}",)
            )
            copy.refresh()
            assert opencode.list_sessions_since(root, "/w", 1) == [
                f"ses_{n}" for n in range(number + 1)
            ]
    # The last process to close the database removes its WAL.
    assert not (folder / "opencode.db-wal").exists()
    with closing(sqlite3.connect(folder / "opencode.db", isolation_level=None)) as opened:
        opened.execute("DELETE FROM session WHERE id <> 'ses_0'")
    copy.refresh()
    assert opencode.list_sessions_since(root, "/w", 1) == ["ses_0"]


def test_hostile_database_cannot_block_its_reader(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode, "MAX_SECONDS", 0.5)
    endless = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)"
    columns = "id, '/w' AS directory, 5 AS time_created, NULL AS parent_id"
    root = create_database(home, f"CREATE VIEW session AS {endless} SELECT {columns} FROM n")
    assert Racer(lambda: opencode.list_sessions_since(root, "/w", 1)).result() == []
