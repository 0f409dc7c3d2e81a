"""Imported nanoclaw conversations: turns, search, attachments and damaged files."""

import json
from pathlib import Path
from typing import Any

import pytest

from corral.api import Corral
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Invalid
from tests.support import source_databases
from tests.support.invariants import check_store
from tests.support.store import rows

SESSION = "data/v2-sessions/ag-1/sess-1"


def message_row(id: str, seq: int, at: str, content: Any, **columns: Any) -> dict[str, Any]:
    return {
        "id": id,
        "seq": seq,
        "kind": "chat",
        "timestamp": f"2026-03-01T{at}:00Z",
        "content": content if isinstance(content, str) else json.dumps(content),
    } | columns


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A conversation with a question and files, spread over both database files of its session."""
    path = source_databases.make_nanoclaw(tmp_path)
    source_databases.change(tmp_path / SESSION / "inbound.db", "DELETE FROM messages_in")
    source_databases.change(tmp_path / SESSION / "outbound.db", "DELETE FROM messages_out")
    source_databases.change(
        path, "UPDATE pending_questions SET message_out_id = 'o3', question_id = 'q1'"
    )
    photo = {"name": "cat.png", "type": "image", "localPath": "inbox/i1/cat.png"}
    source_databases.grow(
        tmp_path / SESSION / "inbound.db",
        {
            "messages_in": [
                message_row(
                    "i1", 2, "10:00", {"text": "a photo", "sender": "Ann", "attachments": [photo]}
                ),
                message_row("i2", 4, "10:02", {"text": "and the zebra?"}),
                message_row("i3", 6, "10:06", {"prompt": "daily report"}, kind="task"),
                message_row("i4", 8, "10:07", "no JSON at all"),
            ]
        },
    )
    card = {
        "type": "ask_question",
        "questionId": "q1",
        "title": "Zebra",
        "question": "Which one?",
        "options": [{"label": "left", "value": "l"}, {"label": "right", "value": "r"}],
    }
    source_databases.grow(
        tmp_path / SESSION / "outbound.db",
        {
            "messages_out": [
                message_row(
                    "o1", 3, "10:01", {"text": "nice cat", "files": ["out.txt", "missing.txt"]}
                ),
                message_row("o3", 5, "10:03", card, kind="chat-sdk"),
            ]
        },
    )
    (tmp_path / SESSION / "inbox/i1").mkdir(parents=True)
    (tmp_path / SESSION / "inbox/i1/cat.png").write_bytes(b"meow")
    (tmp_path / SESSION / "outbox/o1").mkdir(parents=True)
    (tmp_path / SESSION / "outbox/o1/out.txt").write_bytes(b"woof")
    return path


def get_imported_session(store: Corral, key: str = "sess-1") -> str:
    origins = rows(
        store,
        "SELECT id FROM import_origins WHERE source_table = 'sessions' AND row_id = :key",
        key=key,
    )
    return str(origins[0][0])


def list_turns(store: Corral) -> list[tuple[str, str]]:
    turns = store.sessions.turns(get_imported_session(store)).items
    return [(turn.role, turn.content) for turn in turns]


def test_both_session_files_become_one_conversation_ordered_by_time(
    store: Corral, source: Path
) -> None:
    store.imports.import_database("nanoclaw", source)
    assert list_turns(store) == [
        ("user", "a photo\n[file: cat.png]"),
        ("assistant", "nice cat\n[file: out.txt]\n[file: missing.txt]"),
        ("user", "and the zebra?"),
        ("assistant", "Zebra\nWhich one?\n- left\n- right"),
        ("user", "daily report"),
        ("user", "no JSON at all"),
    ]
    (first_turn, *_) = store.sessions.turns(get_imported_session(store)).items
    assert first_turn.meta["sender"] == "Ann"
    check_store(store)
    assert store.imports.import_database("nanoclaw", source).new == 0
    assert len(list_turns(store)) == 6


def test_later_messages_are_appended(store: Corral, source: Path, tmp_path: Path) -> None:
    store.imports.import_database("nanoclaw", source)
    new_rows = [message_row("o9", 9, "11:02", {"text": "bye"})]
    source_databases.grow(tmp_path / SESSION / "outbound.db", {"messages_out": new_rows})
    new_rows = [message_row("i9", 10, "11:01", {"text": "see you"})]
    source_databases.grow(tmp_path / SESSION / "inbound.db", {"messages_in": new_rows})
    store.imports.import_database("nanoclaw", source)
    assert list_turns(store)[6:] == [("user", "see you"), ("assistant", "bye")]
    check_store(store)


def test_imported_conversation_is_searchable(store: Corral, source: Path) -> None:
    store.imports.import_database("nanoclaw", source)
    while store.internal.search.index_turns():
        pass
    (hit,) = store.search.find("zebra and").items
    assert hit.subject == get_imported_session(store)


def test_imported_question_has_text_and_options(store: Corral, source: Path) -> None:
    store.imports.import_database("nanoclaw", source)
    (question,) = store.questions.list(all=True).items
    assert (question.text, question.options) == ("Zebra\nWhich one?", ["left", "right"])


def test_attached_files_are_copied_and_missing_ones_reported(
    store: Corral, source: Path, clock: ManualClock
) -> None:
    report = store.imports.import_database("nanoclaw", source)
    turns = store.sessions.turns(get_imported_session(store)).items
    (cat,) = turns[0].meta["files"]
    assert Path(cat["path"]).read_bytes() == b"meow"
    copied, missing = turns[1].meta["files"]
    assert Path(copied["path"]).read_bytes() == b"woof"
    assert (missing["name"], missing["path"]) == ("missing.txt", None)
    assert any("not copied" in problem.what for problem in report.problems)
    clock.advance(5_000 * DAY)
    store.db.prune()
    assert Path(cat["path"]).exists(), "the file is kept as long as its session"
    store.sessions.close(get_imported_session(store))
    store.settings.set("imports.apply_retention", True)
    clock.advance(400 * DAY)
    store.db.prune()
    assert not Path(cat["path"]).exists()


@pytest.mark.parametrize("path", ["../../../../secret", "/etc/passwd", "inbox/i1/link"])
def test_attachment_path_cannot_leave_its_session_folder(
    store: Corral, source: Path, tmp_path: Path, path: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / SESSION / "inbox/i1/link").symlink_to(tmp_path / "secret")
    content = {"text": "x", "attachments": [{"name": "n", "localPath": path}]}
    source_databases.grow(
        tmp_path / SESSION / "inbound.db",
        {"messages_in": [message_row("i8", 12, "12:00", content)]},
    )
    store.imports.import_database("nanoclaw", source)
    (file,) = store.sessions.turns(get_imported_session(store)).items[-1].meta["files"]
    assert file["path"] is None


def test_provider_session_id_of_the_session_provider_is_kept(
    store: Corral, source: Path, tmp_path: Path
) -> None:
    source_databases.change(source, "UPDATE sessions SET agent_provider = 'codex'")
    source_databases.change(
        tmp_path / SESSION / "outbound.db",
        "DELETE FROM session_state; INSERT INTO session_state VALUES"
        " ('continuation:claude', 'c1', '2026-03-01'), ('continuation:codex', 'x1', '2026-03-01')",
    )
    store.imports.import_database("nanoclaw", source)
    session = store.sessions.get(get_imported_session(store))
    assert (session.provider, session.provider_session) == ("codex", "x1")


@pytest.mark.parametrize("file", ["inbound.db", "outbound.db"])
@pytest.mark.parametrize("damage", ["empty", "garbage", "truncated", "no tables"])
def test_damaged_session_file_does_not_stop_the_import(
    store: Corral, source: Path, tmp_path: Path, file: str, damage: str
) -> None:
    other_session = tmp_path / "data/v2-sessions/ag-1/sess-2"
    source_databases.make(
        other_session / "inbound.db",
        source_databases.NANOCLAW_INBOUND,
        source_databases.NANOCLAW_INBOUND_ROWS,
    )
    path = tmp_path / SESSION / file
    original = path.read_bytes()
    content = {"empty": b"", "garbage": b"x" * 5_000, "truncated": original[:4_096] + b"\0" * 9_000}
    if damage == "no tables":
        path.unlink()
        source_databases.make(path, "CREATE TABLE other (id TEXT)", {})
    else:
        path.write_bytes(content[damage])
    report = store.imports.import_database("nanoclaw", source)
    assert any(str(path) in reason for reason in report.skipped)
    assert store.agents.get("Andy")
    assert store.sessions.get(get_imported_session(store, "sess-2")).turns == 4
    check_store(store)


def test_damaged_main_database_is_rejected(store: Corral, source: Path, tmp_path: Path) -> None:
    source.write_bytes(source.read_bytes()[:4_096] + b"\0" * 9_000)
    with pytest.raises(Invalid):
        store.imports.import_database("nanoclaw", source)
