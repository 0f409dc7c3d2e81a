"""Store, read, copy and delete checkpoints. `ns` is a namespace within a thread."""

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.tx import Tx
from corral.domain.checkpoints import sql
from corral.domain.checkpoints.model import (
    Checkpoint,
    CheckpointHead,
    CheckpointInfo,
    CheckpointWrite,
    NewCheckpointWrite,
)
from corral.kernel.errors import Invalid
from corral.kernel.pagination import Page
from corral.kernel.validation import MAX_NAME, check_optional_text, check_text, encode_json

RETENTION = (sql.WRITES_RETENTION, sql.CHECKPOINTS_RETENTION)
MAX_BYTES = 64 * 1024 * 1024
MAX_ID = 2 * MAX_NAME


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
    """Store the state of a thread after a step; an existing checkpoint with this id is replaced.

    It writes no event.
    """
    tx.run(
        sql.PUT,
        thread=_check(thread, "The thread"),
        ns=_check_namespace(ns),
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
    writes: Sequence[NewCheckpointWrite],
    *,
    ns: str = "",
    path: str = "",
    replace: bool = False,
) -> None:
    """Store the writes of a task. An existing write is kept, or with `replace` replaced.

    The checkpoint may not exist yet: a framework stores both concurrently.
    """
    common = {
        "thread": _check(thread, "The thread"),
        "ns": _check_namespace(ns),
        "checkpoint": _check(checkpoint, "The checkpoint"),
        "task": _check(task, "The task"),
        "path": check_optional_text(path, "The path") or "",
        "now": tx.now,
    }
    statement = sql.SET_WRITE if replace else sql.ADD_WRITE
    rows = [
        {
            "position": write.position,
            "channel": _check(write.channel, "The channel"),
            "format": _check(write.format, "The format"),
            "value": _check_bytes(write.value, "The value"),
            **common,
        }
        for write in writes
    ]
    if len(rows) == 1:
        tx.execute(statement, rows[0])
    elif rows:
        tx.execute_batch(statement, rows)


def get(tx: Tx, thread: str, *, ns: str = "", id: str | None = None) -> Checkpoint | None:
    """Return a checkpoint with its writes, by default the latest; None when there is none."""
    rows = tx.run(
        sql.GET,
        thread=_check(thread, "The thread"),
        ns=_check_namespace(ns),
        id=None if id is None else _check(id, "The checkpoint"),
    )
    checkpoint: Checkpoint | None = None
    writes = []
    for row in rows:
        _, _, row_ns, row_id, _, format, body, _, _, task, position, path, channel = row
        if task is None:
            checkpoint = sql.HISTORY_OF_NAMESPACE.query.make(row[:9])
        else:
            writes.append(
                CheckpointWrite(row_ns, row_id, task, position, path, channel, format, body)
            )
    # Writes may exist without the checkpoint: a framework may store them first.
    return None if checkpoint is None else _add_writes(checkpoint, writes)


def list_history(
    tx: Tx,
    thread: str | None = None,
    *,
    ns: str | None = None,
    before: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Page[Checkpoint]:
    """List checkpoints with their writes, newest first; of a thread, a namespace of it, or all.

    `before` is the id of a checkpoint: only earlier ones are listed.
    """
    if ns is not None and thread is None:
        raise Invalid("A namespace (`ns`) requires `thread`. Give both.")
    last = _check(before, "The checkpoint") if before else sql.LAST_CHECKPOINT_ID
    filters = {"before": last}
    if thread is not None:
        filters["thread"] = _check(thread, "The thread")
    if ns is None:
        listing = sql.HISTORY if thread is None else sql.HISTORY_OF_THREAD
    else:
        listing = sql.HISTORY_OF_NAMESPACE
        filters["ns"] = _check_namespace(ns)
    page = listing.page(tx, after=after, limit=limit, **filters)
    return Page(_load_writes(tx, page.items), page.next)


def list_checkpoints(
    tx: Tx, *, thread: str | None = None, after: str | None = None, limit: int = 50
) -> Page[CheckpointInfo]:
    """List checkpoints without their states, newest first; of a thread or of all."""
    if thread is None:
        return sql.LIST.page(tx, after=after, limit=limit)
    name = _check(thread, "The thread")
    return sql.LIST_OF_THREAD.page(tx, after=after, limit=limit, thread=name)


def list_heads(tx: Tx, thread: str) -> list[CheckpointHead]:
    """List the latest checkpoint of every namespace of a thread."""
    return tx.all(sql.HEADS, thread=_check(thread, "The thread"))


def copy(tx: Tx, source: str, target: str) -> None:
    """Copy all checkpoints of a thread to another; existing ones are kept."""
    threads = {"source": _check(source, "The thread"), "target": _check(target, "The thread")}
    tx.run(sql.COPY, now=tx.now, **threads)
    tx.run(sql.COPY_WRITES, now=tx.now, **threads)


def delete(tx: Tx, thread: str) -> int:
    """Delete a thread; returns the number of deleted checkpoints."""
    _check(thread, "The thread")
    deleted = len(tx.run(sql.DELETE, thread=thread))
    tx.run(sql.DELETE_WRITES, thread=thread)
    if deleted:
        tx.emit("checkpoint", "delete", thread, data={"checkpoints": deleted})
    return deleted


def delete_by_callers(tx: Tx, callers: Sequence[str]) -> int:
    """Delete the checkpoints of some framework calls; returns how many."""
    deleted = 0
    for caller in dict.fromkeys(callers):
        for thread, ns, id in tx.run(sql.OF_CALLER, caller=_check(caller, "The caller")):
            tx.run(sql.DELETE_ONE, thread=thread, ns=ns, id=id)
            tx.run(sql.DELETE_WRITES_OF_ONE, thread=thread, ns=ns, id=id)
            deleted += 1
    if deleted:
        tx.emit("checkpoint", "delete", "", data={"checkpoints": deleted})
    return deleted


def trim(tx: Tx, thread: str, ns: str, kept: Sequence[str]) -> int:
    """Delete the checkpoints of a namespace older than the newest in `kept`, except those.

    Checkpoints that are added concurrently are newer and stay. Returns how many were deleted.
    """
    if not kept:
        raise Invalid("Give at least one checkpoint to keep. `delete` removes a whole thread.")
    params = {
        "thread": _check(thread, "The thread"),
        "ns": _check_namespace(ns),
        "newest": max(_check(id, "The checkpoint") for id in kept),
        "keys_": msgspec.json.encode(list(kept)).decode(),
    }
    deleted = len(tx.run(sql.DELETE_OLDER, **params))
    tx.run(sql.DELETE_OLDER_WRITES, **params)
    if deleted:
        tx.emit("checkpoint", "trim", thread, data={"ns": ns, "checkpoints": deleted})
    return deleted


def _load_writes(tx: Tx, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Add the writes of checkpoints, read by one statement for each namespace of a thread."""
    ids_by_namespace: dict[tuple[str, str], list[str]] = {}
    for checkpoint in checkpoints:
        ids_by_namespace.setdefault((checkpoint.thread, checkpoint.ns), []).append(checkpoint.id)
    writes: dict[tuple[str, str, str], list[CheckpointWrite]] = {}
    for (thread, ns), ids in ids_by_namespace.items():
        keys = msgspec.json.encode(ids).decode()
        for write in tx.all(sql.WRITES, thread=thread, ns=ns, keys_=keys):
            writes.setdefault((thread, ns, write.checkpoint), []).append(write)
    return [
        _add_writes(checkpoint, writes.get((checkpoint.thread, checkpoint.ns, checkpoint.id), []))
        for checkpoint in checkpoints
    ]


def _add_writes(checkpoint: Checkpoint, writes: list[CheckpointWrite]) -> Checkpoint:
    if not writes:
        return checkpoint
    ordered = sorted(writes, key=lambda write: (write.path, write.task, write.position))
    return msgspec.structs.replace(checkpoint, writes=ordered)


def _check(text: str, what: str) -> str:
    return check_text(text, what, max_bytes=MAX_ID)


def _check_namespace(ns: str) -> str:
    return check_optional_text(ns, "The namespace", max_bytes=4 * MAX_NAME) or ""


def _check_bytes(value: bytes, what: str) -> bytes:
    if len(value) > MAX_BYTES:
        raise Invalid(
            f"{what} has {len(value):,} bytes; at most {MAX_BYTES:,} are allowed. Store large data "
            "in a file, and its path in the state.",
            size=len(value),
            limit=MAX_BYTES,
        )
    return value
