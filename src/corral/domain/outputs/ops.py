"""Keeping the books of what runs wrote. The bytes themselves are moved outside of transactions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from corral.db.retention import EVERYBODY, Whose
from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.outputs import sql
from corral.domain.outputs.model import CHUNK, STREAMS, Level, LogLine, Output, OutputState
from corral.kernel.errors import Conflict, Invalid, NotFound
from corral.kernel.ids import number_of
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, MAX_TEXT, check_int, clean_text, encode_json

if TYPE_CHECKING:
    from corral.adapters.output.frames import Index

DELETED_KEPT = sql.DELETED_KEPT
MAX_PATH = 4_096
MAX_METADATA = 64 * 1024


def begin(tx: Tx, run_id: str, *, host: str, folder: str, mode: str = "pipe") -> Output:
    """Say where a run's output will be; the second time it finds what the first time said.

    A run that goes on elsewhere begins again once its earlier output was sealed or lost.
    """
    values = {
        "run_id": clean_text(run_id, "The run", most=MAX_NAME),
        "host": clean_text(host, "The host", most=MAX_NAME),
        "folder": clean_text(folder, "The folder", most=MAX_PATH),
        "mode": clean_text(mode, "The mode", most=MAX_NAME),
        "bytes": 0,
        "cut_bytes": 0,
        "created_at": tx.now,
    }
    place: dict[str, Any] = {"host": host, "folder": folder, "mode": mode}
    made = create(tx, sql.OUTPUTS, values, unless="(run_id)")
    if made is not None:
        return made
    found = get(tx, run_id)
    if found.state is OutputState.LOST:
        return move(tx, sql.OUTPUTS, "reopen", run_id, bytes=0, reason=None, **place)
    if (found.host, found.folder) != (host, folder):
        raise Conflict(
            f"The output of {run_id} is on {found.host} in {found.folder}; it has to be lost "
            "before the run can go on elsewhere.",
            id=run_id,
            host=found.host,
            folder=found.folder,
            reason="on_other_host",
        )
    return found


def progress(tx: Tx, run_id: str, bytes: int) -> bool:
    """Say how much was written so far. It is no event. False when the output is open no more."""
    if check_int(bytes, "The number of bytes") < 0:
        raise Invalid("Bytes are counted from 0.", bytes=bytes)
    return bool(tx.run(sql.PROGRESS, run_id=run_id, bytes=bytes))


def add_chunk(tx: Tx, run_id: str, number: int, data: bytes, *, stream: str = "output") -> None:
    """Keep a piece of the sealed file, before the output is sealed. It is no event."""
    _check_stream(stream)
    if check_int(number, "The number") < 0 or not 0 < len(data) <= CHUNK:
        raise Invalid(f"A chunk has a number from 0 on and 1 to {CHUNK:,} bytes.", number=number)
    if not tx.run(sql.ADD_CHUNK, run_id=run_id, stream=stream, number=number, data=data):
        found = get(tx, run_id)
        raise Conflict(f"The output of {run_id} is {found.state} already.", id=run_id)


def seal(tx: Tx, run_id: str, index: "Index", *, errors_bytes: int | None = None) -> Output:
    """Record that the output is sealed, and its index; chunks beyond its end are dropped.

    The second time, with the same text, it changes nothing.
    """
    found = _hold(tx, run_id)
    if found.state is OutputState.SEALED and found.sha256 == index.sha256:
        return found
    sizes = {"output": index.sealed_bytes, "errors": errors_bytes or 0}
    for stream, size in sizes.items():
        tx.run(sql.DROP_CHUNKS, run_id=run_id, stream=stream, number=-(-size // CHUNK))
    return move(
        tx,
        sql.OUTPUTS,
        "seal",
        run_id,
        note={"bytes": index.bytes, "cut_bytes": index.cut_bytes, "sha256": index.sha256},
        bytes=index.bytes,
        lines=index.lines,
        sha256=index.sha256,
        cut_bytes=index.cut_bytes,
        text_bytes=index.text_bytes,
        sealed_bytes=index.sealed_bytes,
        errors_bytes=errors_bytes,
        utf8=int(index.utf8),
        frames=index.payload(),
        head=index.head,
        tail=index.tail,
        reason=None,
        sealed_at=tx.now,
    )


def get(tx: Tx, run_id: str) -> Output:
    """What is known of a run's output."""
    return sql.OUTPUTS.get(tx, clean_text(run_id, "The run", most=MAX_NAME))


def _hold(tx: Tx, run_id: str) -> Output:
    """An output to which no piece is added beside this transaction."""
    return sql.OUTPUTS.hold(tx, clean_text(run_id, "The run", most=MAX_NAME))


def index(tx: Tx, run_id: str) -> "Index":
    """The index of a sealed output."""
    rows = tx.run(sql.FRAMES, run_id=clean_text(run_id, "The run", most=MAX_NAME))
    if not rows or rows[0][0] is None:
        raise NotFound(f"The output of {run_id} is not sealed.", id=run_id)
    from corral.adapters.output.frames import decode_index

    return decode_index(*rows[0])


def chunk(tx: Tx, run_id: str, number: int, *, stream: str = "output") -> bytes:
    """A piece of the sealed file, where the store keeps it."""
    _check_stream(stream)
    data: bytes | None = tx.value(sql.CHUNK, run_id=run_id, stream=stream, number=number)
    if data is None:
        raise NotFound(f"The store has no chunk {number} of the output of {run_id}.", id=run_id)
    return data


def is_kept(tx: Tx, run_id: str, size: int, *, stream: str = "output") -> bool:
    """Whether the store has the sealed file, of so many bytes, to its end."""
    _check_stream(stream)
    last = max(size - 1, 0) // CHUNK
    return tx.value(sql.HAS_CHUNK, run_id=run_id, stream=stream, number=last) is not None


def lose(tx: Tx, run_id: str, reason: str) -> Output:
    """Record that the files are gone, and why."""
    text = clean_text(reason, "The reason")
    return move(tx, sql.OUTPUTS, "lose", run_id, note={"reason": text}, reason=text)


def delete(tx: Tx, run_id: str, reason: str = "somebody asked for it") -> Output:
    """Delete an output and its log. The second time it changes nothing.

    The store forgets its content now; files go when their host is asked for `uncleared` ones.
    """
    found = _hold(tx, run_id)
    if found.state is OutputState.DELETED:
        return found
    for stream in STREAMS:
        tx.run(sql.DROP_CHUNKS, run_id=run_id, stream=stream, number=0)
    _drop_lines(tx, run_id)
    return move(
        tx,
        sql.OUTPUTS,
        "delete",
        run_id,
        note={"reason": reason},
        reason=clean_text(reason, "The reason"),
        frames=None,
        head=None,
        tail=None,
        deleted_at=tx.now,
    )


def erase(tx: Tx, run_id: str, reason: str) -> Output | None:
    """Delete all that a run wrote and that was logged of it, whether there is an output or not."""
    _drop_lines(tx, clean_text(run_id, "The run", most=MAX_NAME))
    there = tx.one(sql.OUTPUTS.by_key, key_=run_id)
    return delete(tx, run_id, reason) if there is not None else None


def _drop_lines(tx: Tx, run_id: str) -> None:
    tx.run(sql.KEEP_LINE, run_id=run_id)
    tx.run(sql.DROP_LINES, run_id=run_id)


def unsealed(tx: Tx, *, host: str, after: str | None = None, limit: int = 50) -> Page[Output]:
    """Outputs on a host that are open still; whether their runs go on is not known here."""
    (last,) = decode_cursor(after, "")
    rows = tx.all(
        sql.OPEN_ON,
        host=clean_text(host, "The host", most=MAX_NAME),
        after=last,
        limit=check_limit(limit) + 1,
    )
    return page_of(rows, limit, lambda output: (output.id,))


def held_on(tx: Tx, *, host: str, after: str = "", limit: int = 200) -> list[Output]:
    """Outputs whose files a host should have, by the ids of their runs."""
    return tx.all(sql.HELD_ON, host=host, after=after, limit=check_limit(limit))


def walk(tx: Tx, *, after: str = "", limit: int = 200) -> list[Output]:
    """All outputs, by the ids of their runs."""
    return tx.all(sql.WALK, after=after, limit=check_limit(limit))


def kept_bytes(tx: Tx, run_id: str) -> int:
    """How much of an output's sealed files the store itself has."""
    return int(tx.value(sql.KEPT_BYTES, run_id=run_id))


def count_chunks(tx: Tx) -> int:
    """How many pieces of sealed files the store has."""
    return int(tx.value(sql.COUNT_CHUNKS))


def bring_chunks(tx: Tx, run_id: str, stream: str, pieces: Iterable[bytes]) -> None:
    """Bring a sealed file into a store that is made to be taken elsewhere. It is no event."""
    for number, data in enumerate(pieces):
        tx.run(sql.BRING_CHUNK, run_id=run_id, stream=stream, number=number, data=data)


def leave_folders(tx: Tx) -> None:
    """Let go of all files: they are another store's, which alone may remove them."""
    tx.run(sql.LEAVE_FOLDERS)


def uncleared(tx: Tx, *, host: str, limit: int = 50) -> list[Output]:
    """Deleted outputs whose files may still be on a host."""
    clean_text(host, "The host", most=MAX_NAME)
    return tx.all(sql.UNCLEARED, host=host, limit=check_limit(limit))


def clear(tx: Tx, run_id: str) -> bool:
    """Record that the files of a deleted output are gone. False when that was known."""
    cleared = bool(tx.run(sql.CLEAR, run_id=run_id))
    if cleared:
        tx.note("output", "clear", run_id)
    return cleared


def forget(tx: Tx, run_id: str) -> bool:
    """Forget a deleted output altogether, once its files are gone. False when it must stay."""
    forgotten = bool(tx.run(sql.FORGET, run_id=run_id))
    if forgotten:
        tx.note("output", "forget", run_id)
    return forgotten


def prune(tx: Tx, *, before: int, limit: int = 100, whose: Whose = EVERYBODY) -> int:
    """Delete outputs that were sealed before a moment; says how many, 0 at the end."""
    rows = sql.PRUNABLE.run(tx, whose, before=before, limit=limit)
    for (run_id,) in rows:
        delete(tx, run_id, "it was kept for as long as outputs.keep_ms says")
    return len(rows)


def count_prunable(tx: Tx, *, before: int, whose: Whose = EVERYBODY) -> int:
    """How many outputs `prune` would delete."""
    count: int = sql.COUNT_PRUNABLE.value(tx, whose, before=before)
    return count


def log(
    tx: Tx,
    run_id: str,
    level: str,
    message: str,
    *,
    metadata: Any = None,
    source: str | None = None,
) -> LogLine:
    """Add a line to a run's log. It is no event, but wakes those who wait.

    It may come from anywhere: what looks like a key is taken out, what cannot be stored of the
    message is replaced, and what is too long is cut, with a word on how much.
    """
    line = tx.one(
        sql.LOG,
        run_id=clean_text(run_id, "The run", most=MAX_NAME),
        at=tx.now,
        level=check_level(level),
        message=_storable(message),
        metadata=None if metadata is None else _redacted_json(metadata),
        source=clean_text(source, "The source", most=MAX_NAME) if source else None,
    )
    assert line is not None
    tx.noted = True
    return line


def log_many(tx: Tx, run_id: str, lines: Iterable[tuple[str, str, Any]]) -> int:
    """Add several lines at once: level, message and metadata of each; says how many."""
    return len([log(tx, run_id, level, text, metadata=data) for level, text, data in lines])


def log_lines(
    tx: Tx, run_id: str, *, after: str | None = None, limit: int = 100, level: str = "debug"
) -> Page[LogLine]:
    """A run's log behind a line, oldest first, from a level on upwards.

    `next` is the last line's id, or the given one when nothing is new, so it can be followed.
    """
    query = {
        Level.DEBUG: sql.LINES,
        Level.INFO: sql.INFORMING,
        Level.WARN: sql.ALARMING,
        Level.ERROR: sql.ERRORS,
    }[check_level(level)]
    items = tx.all(
        query,
        run_id=clean_text(run_id, "The run", most=MAX_NAME),
        after=number_of("log", after) if after else 0,
        limit=check_limit(limit),
    )
    return Page(items, items[-1].id if items else after)


def check_level(level: str) -> Level:
    try:
        return Level(level)
    except ValueError:
        raise Invalid(
            f"{level!r} is no level; take one of {', '.join(Level)}.", level=level
        ) from None


def _check_stream(stream: str) -> None:
    if stream not in STREAMS:
        raise Invalid(f"{stream!r} is neither {' nor '.join(STREAMS)}.", stream=stream)


def _redacted(data: bytes) -> bytes:
    from corral.adapters.output.redact import redact

    return redact(data)


def _redacted_json(value: Any) -> str:
    text = encode_json(value, "The metadata", most=MAX_METADATA)
    clean = _redacted(text.encode()).decode()
    if clean != text and not _is_json(clean):
        # Something that began in one text and ended in another.
        return encode_json({"redacted": True}, "The metadata")
    return clean


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return False
    return True


def _storable(message: str) -> str:
    data = message.encode("utf-8", "replace").replace(b"\0", b"\xef\xbf\xbd")
    data = _redacted(data)
    if len(data) <= MAX_TEXT:
        return data.decode()
    kept = MAX_TEXT - 100
    note = f" [corral left out {len(data) - kept:,} bytes here]"
    return data[:kept].decode("utf-8", "ignore") + note
