"""Index texts asynchronously, and search them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.search import sql
from corral.domain.search.model import Hit, IndexCursor, PassageKind
from corral.domain.search.text import (
    build_query,
    extract_text,
    fold_words,
    make_snippet,
    split_text,
)
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import TurnText
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit, decode_cursor, make_page
from corral.kernel.validation import MAX_NAME, check_choice, check_int, check_text, encode_text

BATCH_SIZE = 1_000
RECENT_PASSAGES = 1_000
_TURNS = "turns"
_MAX_STATEMENT = 1_000_000  # characters in one statement


def find(
    tx: Tx,
    text: str,
    *,
    kind: str | None = None,
    project: str | None = None,
    limit: int = 20,
    after: str | None = None,
) -> Page[Hit]:
    """Find the passages that contain all words of a text, newest first.

    Optionally of a kind or a project. Words joined by punctuation must be adjacent. Any text with a
    letter or digit is a valid query.
    """
    query = build_query(text)
    if kind is not None:
        check_choice(kind, PassageKind, "The kind")
    (before,) = decode_cursor(after, LAST_NUMBER)
    params = {
        "words": query,
        "before": before,
        "kind": kind,
        "project_id": projects.find_id(tx, project) if project else None,
        "limit": check_limit(limit) + 1,
    }
    # Common words are found among the newest passages; only for rare words the whole index is
    # searched.
    recent = min(int(tx.value(sql.NEWEST) or 0), before) - RECENT_PASSAGES
    rows = tx.all(sql.FIND_RECENT, behind=recent, **params)
    if len(rows) <= limit and recent > 0:
        rows = tx.all(sql.FIND, **params)
    page = make_page(rows, limit, lambda hit: (hit.seq,))
    return Page([_add_snippet(hit, query) for hit in page.items], page.next)


def add(
    tx: Tx, kind: str, subject: str, location: int, project_id: str | None, at: int, text: str
) -> None:
    """Add a text to the index: the output of a run, or a note."""
    check_choice(kind, PassageKind, "The kind")
    check_text(subject, "The subject", max_bytes=MAX_NAME)
    check_int(location, "The position")
    encode_text(text, "The text")
    _add_all(tx, [(kind, subject, location, project_id, at, text.replace("\0", " "))])


def remove_subject(tx: Tx, kind: str, subject: str, *, limit: int = BATCH_SIZE) -> bool:
    """Remove a batch of passages of a subject; False while more remain: call it again."""
    tx.serialize(f"search:{_TURNS}")
    return len(tx.run(sql.DELETE, kind=kind, subject=subject, limit=limit)) < limit


def index_turns(tx: Tx, *, limit: int = BATCH_SIZE) -> int:
    """Index the next batch of turns, oldest first; returns how many.

    No turn is skipped: a turn is indexed only when no open transaction can still commit a lower
    seq. While such a transaction is open, this may return 0 although turns remain.
    """
    tx.serialize(f"search:{_TURNS}")
    cursor = tx.first(sql.CURSOR, source=_TURNS)
    if cursor is None or cursor.seq >= cursor.ahead:
        cursor = _set_target(tx)
    if cursor.seq >= cursor.ahead or not _is_settled(tx, cursor):
        return 0
    turns = sessions.list_turns_after(tx, cursor.seq, upto=cursor.ahead, limit=limit)
    _add_all(tx, [_to_passage(turn) for turn in turns if turn.session_id])
    tx.run(sql.ADVANCE, source=_TURNS, seq=turns[-1].seq if len(turns) == limit else cursor.ahead)
    return len(turns)


def rewind_cursor(tx: Tx) -> None:
    """Reset the cursor in a partial copy of a store whose passages were copied as well."""
    tx.run(sql.REWIND, source=_TURNS)


def count_unindexed(tx: Tx) -> int:
    """Return an upper bound of the number of turns that are not indexed yet."""
    cursor = tx.first(sql.CURSOR, source=_TURNS)
    return max(sessions.get_highest_turn_seq(tx) - (cursor.seq if cursor else 0), 0)


def _set_target(tx: Tx) -> IndexCursor:
    ahead = sessions.get_highest_turn_seq(tx)
    return tx.one(sql.SET_TARGET, source=_TURNS, ahead=ahead)


def _is_settled(tx: Tx, cursor: IndexCursor) -> bool:
    settled, foreign = tx.run(sql.SETTLED, xid=cursor.ahead_xid)[0]
    if foreign:
        # The transaction id is from another server, before the store was moved: take a new one.
        settled = tx.run(sql.SETTLED, xid=_set_target(tx).ahead_xid)[0][0]
    return bool(settled)


def _add_all(tx: Tx, passages: Sequence[tuple[str, str, int, str | None, int, str]]) -> None:
    names = ("kind", "subject", "location", "project_id", "at", "text", "folded")
    rows: list[dict[str, Any]] = []
    size = 0
    for passage in passages:
        for piece in split_text(passage[-1]):
            if piece and not piece.isspace():
                cells = (*passage[:-1], piece, fold_words(piece))
                rows.append(dict(zip(names, cells, strict=True)))
                size += len(piece)
        if size > _MAX_STATEMENT:
            _write(tx, rows)
            rows, size = [], 0
    _write(tx, rows)


def _write(tx: Tx, rows: list[dict[str, Any]]) -> None:
    if rows:
        # Not checked again: each text was checked when it was stored.
        tx.run(sql.ADD, rows=msgspec.json.encode(rows).decode())


def _to_passage(turn: TurnText) -> tuple[str, str, int, str | None, int, str]:
    """Return the passage of a turn, including its tool call and result."""
    parts = [turn.content]
    if turn.tool_name:
        parts.append(turn.tool_name)
    parts += [extract_text(part) for part in (turn.arguments, turn.result) if part]
    text = "\n".join(parts)
    return PassageKind.TURN, turn.session_id, turn.number, turn.project_id, turn.at, text


def _add_snippet(hit: Hit, query: str) -> Hit:
    return msgspec.structs.replace(hit, snippet=make_snippet(hit.snippet, query))
