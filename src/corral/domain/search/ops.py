"""Copying text into the index behind its writers, and finding it by its words."""

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.search import sql
from corral.domain.search.model import Cursor, Hit, Kind
from corral.domain.search.words import folded_of, pieces_of, query_of, snippet_of, text_in
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import Passage
from corral.kernel.errors import Invalid
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_text

BATCH = 1_000
RECENT = 1_000
_TURNS = "turns"
_FULL = 1_000_000  # characters in one statement


def find(
    tx: Tx,
    text: str,
    *,
    kind: str | None = None,
    project: str | None = None,
    limit: int = 20,
    after: str | None = None,
) -> Page[Hit]:
    """Passages that hold all the words of a text, newest first; of a kind, or of a project.

    Words that punctuation joins must stand together. Any text is a valid query.
    """
    query = query_of(text)
    if kind is not None and kind not in tuple(Kind):
        raise Invalid(f"{kind!r} cannot be searched; it is one of {', '.join(Kind)}.", kind=kind)
    (before,) = decode_cursor(after, LAST_NUMBER)
    params = {
        "words": query,
        "before": before,
        "kind": kind,
        "project_id": projects.find_id(tx, project) if project else None,
        "limit": check_limit(limit) + 1,
    }
    # A common word is found among the newest; only for a rare one is all of the index asked.
    recent = min(int(tx.value(sql.NEWEST) or 0), before) - RECENT
    rows = tx.all(sql.FIND_RECENT, behind=recent, **params)
    if len(rows) <= limit and recent > 0:
        rows = tx.all(sql.FIND, **params)
    page = page_of(rows, limit, lambda hit: (hit.seq,))
    return Page([_shown(hit, query) for hit in page.items], page.next)


def add(
    tx: Tx, kind: str, subject: str, place: int, project_id: str | None, at: int, text: str
) -> None:
    """Make a text findable: what a run printed, what was noted."""
    if kind not in tuple(Kind):
        raise Invalid(f"{kind!r} cannot be searched; it is one of {', '.join(Kind)}.", kind=kind)
    clean_text(subject, "The subject", most=MAX_NAME)
    check_int(place, "The place")
    encode_text(text, "The text")
    _add_all(tx, [(kind, subject, place, project_id, at, text.replace("\0", " "))])


def forget(tx: Tx, kind: str, subject: str, *, limit: int = BATCH) -> bool:
    """Take what is from a subject out of the index; False when there is more: call it again."""
    tx.serialize(f"search:{_TURNS}")
    return len(tx.run(sql.FORGET, kind=kind, subject=subject, limit=limit)) < limit


def index_turns(tx: Tx, *, limit: int = BATCH) -> int:
    """Make turns findable that are not yet, oldest first; gives back how many.

    No turn is ever passed over: one goes into the index only when no transaction can still bring
    an older one. While such a transaction runs, it may give 0 although there are more.
    """
    tx.serialize(f"search:{_TURNS}")
    cursor = tx.one(sql.CURSOR, source=_TURNS)
    if cursor is None or cursor.seq >= cursor.ahead:
        cursor = _look_ahead(tx)
    if cursor.seq >= cursor.ahead or not _settled(tx, cursor):
        return 0
    turns = sessions.turns_behind(tx, cursor.seq, upto=cursor.ahead, limit=limit)
    _add_all(tx, [_passage_of(turn) for turn in turns if turn.session_id])
    tx.run(sql.GO_ON, source=_TURNS, seq=turns[-1].seq if len(turns) == limit else cursor.ahead)
    return len(turns)


def go_back(tx: Tx) -> None:
    """In a store that has some of another one's turns and all their passages: go on behind them."""
    tx.run(sql.GO_BACK, source=_TURNS)


def behind(tx: Tx) -> int:
    """How many turns, at the most, were not made findable yet."""
    cursor = tx.one(sql.CURSOR, source=_TURNS)
    return max(sessions.newest_number(tx) - (cursor.seq if cursor else 0), 0)


def _look_ahead(tx: Tx) -> Cursor:
    ahead = sessions.newest_number(tx)
    cursor = tx.one(sql.LOOK_AHEAD, source=_TURNS, ahead=ahead)
    assert cursor is not None
    return cursor


def _settled(tx: Tx, cursor: Cursor) -> bool:
    settled, foreign = tx.run(sql.SETTLED, xid=cursor.ahead_xid)[0]
    if foreign:
        # Counted by another server, before the store was moved here: count anew.
        settled = tx.run(sql.SETTLED, xid=_look_ahead(tx).ahead_xid)[0][0]
    return bool(settled)


def _add_all(tx: Tx, passages: Sequence[tuple[str, str, int, str | None, int, str]]) -> None:
    names = ("kind", "subject", "place", "project_id", "at", "text", "folded")
    rows: list[dict[str, Any]] = []
    size = 0
    for passage in passages:
        for piece in pieces_of(passage[-1]):
            if piece and not piece.isspace():
                cells = (*passage[:-1], piece, folded_of(piece))
                rows.append(dict(zip(names, cells, strict=True)))
                size += len(piece)
        if size > _FULL:
            _write(tx, rows)
            rows, size = [], 0
    _write(tx, rows)


def _write(tx: Tx, rows: list[dict[str, Any]]) -> None:
    if rows:
        # Each text was checked when it was written.
        tx.run(sql.ADD, rows=msgspec.json.encode(rows).decode())


def _passage_of(turn: Passage) -> tuple[str, str, int, str | None, int, str]:
    """All that was said, the call of a tool and its answer included."""
    parts = [turn.content]
    if turn.tool_name:
        parts.append(turn.tool_name)
    parts += [text_in(part) for part in (turn.arguments, turn.result) if part]
    text = "\n".join(parts)
    return Kind.TURN, turn.session_id, turn.number, turn.project_id, turn.at, text


def _shown(hit: Hit, query: str) -> Hit:
    return msgspec.structs.replace(hit, snippet=snippet_of(hit.snippet, query))
