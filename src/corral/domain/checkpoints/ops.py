"""Keeping the states of threads, step by step, and giving them back."""

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.tx import Tx
from corral.domain.checkpoints import sql
from corral.domain.checkpoints.model import Checkpoint, Head, Kept, NewWrite, Write
from corral.kernel.errors import Invalid
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, encode_json

KEPT = (sql.WRITES_KEPT, sql.CHECKPOINTS_KEPT)
MAX_BYTES = 64 * 1024 * 1024
MAX_ID = 2 * MAX_NAME
_LAST = chr(0x10FFFF)  # behind every id


def put(
    tx: Tx,
    thread: str,
    id: str,
    format: str,
    body: bytes,
    *,
    ns: str = "",
    parent: str | None = None,
    metadata: Any = None,
    caller: str | None = None,
) -> None:
    """Keep the state of a thread after a step; the same id again replaces it.

    A checkpoint is its own record: it writes no event.
    """
    tx.run(
        sql.PUT,
        thread=_check(thread, "The thread"),
        ns=_check_part(ns),
        id=_check(id, "The checkpoint"),
        parent=_check(parent, "The parent") if parent else None,
        format=_check(format, "The format"),
        body=_check_bytes(body, "The state"),
        metadata=encode_json(metadata or {}, "The metadata"),
        caller=_check(caller, "The caller") if caller else None,
        now=tx.now,
    )


def put_writes(
    tx: Tx,
    thread: str,
    checkpoint: str,
    task: str,
    writes: Sequence[NewWrite],
    *,
    ns: str = "",
    path: str = "",
    replace: bool = False,
) -> None:
    """Keep what a part of a step wrote; what stands in its place already stays, or is replaced.

    The checkpoint may come later: a framework keeps both at the same time.
    """
    named = {
        "thread": _check(thread, "The thread"),
        "ns": _check_part(ns),
        "checkpoint": _check(checkpoint, "The checkpoint"),
        "task": _check(task, "The task"),
        "path": clean_text(path, "The path") if path else "",
        "now": tx.now,
    }
    statement = sql.SET_WRITE if replace else sql.ADD_WRITE
    given = [
        {
            "place": write.place,
            "channel": _check(write.channel, "The channel"),
            "format": _check(write.format, "The format"),
            "value": _check_bytes(write.value, "The value"),
            **named,
        }
        for write in writes
    ]
    if len(given) == 1:
        tx.execute(statement, given[0])
    elif given:
        tx.execute_each(statement, given)


def get(tx: Tx, thread: str, *, ns: str = "", id: str | None = None) -> Checkpoint | None:
    """A checkpoint with its writes, the latest when no id is given; None when there is none."""
    rows = tx.run(
        sql.GET,
        thread=_check(thread, "The thread"),
        ns=_check_part(ns),
        id=None if id is None else _check(id, "The checkpoint"),
    )
    found: Checkpoint | None = None
    writes = []
    for row in rows:
        _, _, part, of, _, format, body, _, _, task, place, path, channel = row
        if task is None:
            found = sql.OF_PART.make(row[:9])
        else:
            writes.append(Write(part, of, task, place, path, channel, format, body))
    # Without the checkpoint: a framework may keep the writes first.
    return None if found is None else _with(found, writes)


def history(
    tx: Tx,
    thread: str | None = None,
    *,
    ns: str | None = None,
    before: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Page[Checkpoint]:
    """Checkpoints with their writes, newest first; of a thread, of a part of it, or of all.

    `before` is the id of a checkpoint: only those that came earlier.
    """
    if ns is not None and thread is None:
        raise Invalid("A part is that of a thread; name the thread too.")
    last = _check(before, "The checkpoint") if before else _LAST
    query: dict[str, Any] = {"limit": check_limit(limit) + 1}
    if thread is not None:
        query["thread"] = _check(thread, "The thread")
    if ns is None:
        (query["behind"],) = decode_cursor(after, LAST_NUMBER)
        statement = sql.OF_ALL if thread is None else sql.OF_THREAD
        rows = tx.all(statement, before=last, **query)
        page = page_of(rows, limit, lambda each: (each.seq,))
    else:
        (place,) = decode_cursor(after, _LAST)
        rows = tx.all(sql.OF_PART, ns=_check_part(ns), before=min(place, last), **query)
        page = page_of(rows, limit, lambda each: (each.id,))
    return Page(_with_writes(tx, page.items), page.next)


def list_checkpoints(
    tx: Tx, *, thread: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Kept]:
    """Checkpoints without their states, newest first; of a thread or of all."""
    (behind,) = decode_cursor(after, LAST_NUMBER)
    query = {"behind": behind, "limit": check_limit(limit) + 1}
    if thread is None:
        rows = tx.all(sql.LIST, **query)
    else:
        rows = tx.all(sql.LIST_OF_THREAD, thread=_check(thread, "The thread"), **query)
    return page_of(rows, limit, lambda each: (each.seq,))


def heads(tx: Tx, thread: str) -> list[Head]:
    """The latest checkpoint of every part of a thread."""
    return tx.all(sql.HEADS, thread=_check(thread, "The thread"))


def copy(tx: Tx, source: str, target: str) -> None:
    """Give another thread all that a thread has; what it has already stays as it is."""
    named = {"source": _check(source, "The thread"), "target": _check(target, "The thread")}
    tx.run(sql.COPY, now=tx.now, **named)
    tx.run(sql.COPY_WRITES, now=tx.now, **named)


def delete(tx: Tx, thread: str) -> int:
    """Forget a thread; gives back how many checkpoints it had."""
    _check(thread, "The thread")
    gone = len(tx.run(sql.FORGET, thread=thread))
    tx.run(sql.FORGET_WRITES, thread=thread)
    if gone:
        tx.note("checkpoint", "delete", thread, data={"checkpoints": gone})
    return gone


def delete_of_callers(tx: Tx, callers: Sequence[str]) -> int:
    """Forget the checkpoints that some calls of the framework made; gives back how many."""
    gone = 0
    for caller in dict.fromkeys(callers):
        for thread, ns, id in tx.run(sql.OF_CALLER, caller=_check(caller, "The caller")):
            tx.run(sql.FORGET_ONE, thread=thread, ns=ns, id=id)
            tx.run(sql.FORGET_WRITES_OF_ONE, thread=thread, ns=ns, id=id)
            gone += 1
    if gone:
        tx.note("checkpoint", "delete", "", data={"checkpoints": gone})
    return gone


def trim(tx: Tx, thread: str, ns: str, kept: Sequence[str]) -> int:
    """Forget what a part of a thread had before its newest checkpoint in `kept`, but for those.

    What is added meanwhile is younger, and stays. Gives back how many are gone.
    """
    if not kept:
        raise Invalid("Name the checkpoints that are to stay; `delete` forgets all of a thread.")
    named = {
        "thread": _check(thread, "The thread"),
        "ns": _check_part(ns),
        "newest": max(_check(id, "The checkpoint") for id in kept),
        "keys_": msgspec.json.encode(list(kept)).decode(),
    }
    gone = len(tx.run(sql.FORGET_OLDER, **named))
    tx.run(sql.FORGET_OLDER_WRITES, **named)
    if gone:
        tx.note("checkpoint", "trim", thread, data={"ns": ns, "checkpoints": gone})
    return gone


def _with_writes(tx: Tx, found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Checkpoints with their writes, which are read by one statement for each part of a thread."""
    parts: dict[tuple[str, str], list[str]] = {}
    for each in found:
        parts.setdefault((each.thread, each.ns), []).append(each.id)
    writes: dict[tuple[str, str, str], list[Write]] = {}
    for (thread, ns), ids in parts.items():
        keys = msgspec.json.encode(ids).decode()
        for write in tx.all(sql.WRITES, thread=thread, ns=ns, keys_=keys):
            writes.setdefault((thread, ns, write.checkpoint), []).append(write)
    return [_with(each, writes.get((each.thread, each.ns, each.id), [])) for each in found]


def _with(found: Checkpoint, writes: list[Write]) -> Checkpoint:
    if not writes:
        return found
    ordered = sorted(writes, key=lambda write: (write.path, write.task, write.place))
    return msgspec.structs.replace(found, writes=ordered)


def _check(text: str, what: str) -> str:
    return clean_text(text, what, most=MAX_ID)


def _check_part(ns: str) -> str:
    return clean_text(ns, "The part of the thread", most=4 * MAX_NAME) if ns else ""


def _check_bytes(value: bytes, what: str) -> bytes:
    if len(value) > MAX_BYTES:
        raise Invalid(
            f"{what} has {len(value):,} bytes and {MAX_BYTES:,} are allowed; keep what is large in "
            "a file and the path in the state.",
            size=len(value),
            limit=MAX_BYTES,
        )
    return value
