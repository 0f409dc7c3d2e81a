"""Bookkeeping of outputs and logs. The bytes are moved outside of transactions."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.outputs import sql
from corral.domain.outputs.model import CHUNK_BYTES, STREAMS, LogLevel, LogLine, Output, OutputState
from corral.kernel.errors import Conflict, Invalid, NotFound
from corral.kernel.ids import parse_number
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import (
    MAX_NAME,
    MAX_TEXT,
    check_choice,
    check_int,
    check_optional_text,
    check_text,
    encode_json,
)

if TYPE_CHECKING:
    from corral.adapters.output.sealed_format import SealIndex

PRUNABLE = sql.PRUNABLE
DELETED_RETENTION = sql.DELETED_RETENTION
MAX_PATH = 4_096
MAX_METADATA = 64 * 1024


def begin(tx: Tx, run_id: str, *, host: str, folder: str, mode: str = "pipe") -> Output:
    """Record where a run's output is written. Idempotent for the same host and folder.

    A lost output is reopened for the new place. Raises Conflict when the output is elsewhere and
    not lost.
    """
    values = {
        "run_id": check_text(run_id, "The run", max_bytes=MAX_NAME),
        "host": check_text(host, "The host", max_bytes=MAX_NAME),
        "folder": check_text(folder, "The folder", max_bytes=MAX_PATH),
        "mode": check_text(mode, "The mode", max_bytes=MAX_NAME),
        "bytes": 0,
        "dropped_bytes": 0,
        "created_at": tx.now,
    }
    place: dict[str, Any] = {"host": host, "folder": folder, "mode": mode}
    created = create_if_absent(tx, sql.OUTPUTS, values, on_conflict="(run_id)")
    if created is not None:
        return created
    current = get(tx, run_id)
    if current.state is OutputState.LOST:
        return transition(tx, sql.OUTPUTS, "reopen", run_id, bytes=0, reason=None, **place)
    if (current.host, current.folder) != (host, folder):
        raise Conflict(
            f"The output of {run_id} is on {current.host} in {current.folder}. It must be marked "
            "lost before the run can continue elsewhere.",
            id=run_id,
            host=current.host,
            folder=current.folder,
            reason="on_other_host",
        )
    return current


def record_progress(tx: Tx, run_id: str, bytes: int) -> bool:
    """Record how much was written so far, without an event; False when it is not open."""
    if check_int(bytes, "The number of bytes") < 0:
        raise Invalid(f"Invalid number of bytes {bytes}: it must not be negative.", bytes=bytes)
    return bool(tx.run(sql.PROGRESS, run_id=run_id, bytes=bytes))


def add_chunk(tx: Tx, run_id: str, number: int, data: bytes, *, stream: str = "output") -> None:
    """Store a chunk of the file before the output is sealed. It writes no event."""
    _check_stream(stream)
    if check_int(number, "The number") < 0 or not 0 < len(data) <= CHUNK_BYTES:
        raise Invalid(
            f"Invalid chunk {number}: expected a number from 0 and 1 to {CHUNK_BYTES:,} bytes.",
            number=number,
        )
    if not tx.run(sql.ADD_CHUNK, run_id=run_id, stream=stream, number=number, data=data):
        current = get(tx, run_id)
        raise Conflict(f"The output of {run_id} is already {current.state}.", id=run_id)


def seal(tx: Tx, run_id: str, index: "SealIndex", *, stderr_bytes: int | None = None) -> Output:
    """Record that the output is sealed, with its index; chunks beyond its end are deleted.

    Idempotent for the same content.
    """
    current = _get_for_update(tx, run_id)
    if current.state is OutputState.SEALED and current.sha256 == index.sha256:
        return current
    sizes = {"output": index.sealed_bytes, "stderr": stderr_bytes or 0}
    for stream, size in sizes.items():
        tx.run(sql.DELETE_CHUNKS, run_id=run_id, stream=stream, number=-(-size // CHUNK_BYTES))
    return transition(
        tx,
        sql.OUTPUTS,
        "seal",
        run_id,
        event_data={
            "bytes": index.bytes,
            "dropped_bytes": index.dropped_bytes,
            "sha256": index.sha256,
        },
        bytes=index.bytes,
        lines=index.lines,
        sha256=index.sha256,
        dropped_bytes=index.dropped_bytes,
        text_bytes=index.text_bytes,
        sealed_bytes=index.sealed_bytes,
        stderr_bytes=stderr_bytes,
        utf8=int(index.utf8),
        frames=index.payload(),
        head=index.head,
        tail=index.tail,
        reason=None,
        sealed_at=tx.now,
    )


def get(tx: Tx, run_id: str) -> Output:
    """Return the output of a run."""
    return sql.OUTPUTS.get(tx, check_text(run_id, "The run", max_bytes=MAX_NAME))


def _get_for_update(tx: Tx, run_id: str) -> Output:
    """Return an output and lock its row, so that no chunk is added concurrently."""
    return sql.OUTPUTS.get_for_update(tx, check_text(run_id, "The run", max_bytes=MAX_NAME))


def get_index(tx: Tx, run_id: str) -> "SealIndex":
    """Return the index of a sealed output."""
    rows = tx.run(sql.FRAMES, run_id=check_text(run_id, "The run", max_bytes=MAX_NAME))
    if not rows or rows[0][0] is None:
        raise NotFound(f"The output of {run_id} is not sealed.", id=run_id)
    from corral.adapters.output.sealed_format import decode_index

    return decode_index(*rows[0])


def get_chunk(tx: Tx, run_id: str, number: int, *, stream: str = "output") -> bytes:
    """Return a chunk of a sealed file that the store contains."""
    _check_stream(stream)
    data: bytes | None = tx.value(sql.CHUNK, run_id=run_id, stream=stream, number=number)
    if data is None:
        raise NotFound(f"Chunk {number} of the output of {run_id} is not in the store.", id=run_id)
    return data


def has_chunks(tx: Tx, run_id: str, size: int, *, stream: str = "output") -> bool:
    """Whether the store contains a sealed file of this size up to its last chunk."""
    _check_stream(stream)
    last = max(size - 1, 0) // CHUNK_BYTES
    return tx.value(sql.HAS_CHUNK, run_id=run_id, stream=stream, number=last) is not None


def mark_lost(tx: Tx, run_id: str, reason: str) -> Output:
    """Record that the files are missing, and why."""
    text = check_text(reason, "The reason")
    return transition(tx, sql.OUTPUTS, "lose", run_id, event_data={"reason": text}, reason=text)


def delete(tx: Tx, run_id: str, reason: str = "deleted on request") -> Output:
    """Delete an output and its log. Idempotent.

    The content is deleted from the store now. The host of the files removes them later, by
    `list_uncleared`.
    """
    current = _get_for_update(tx, run_id)
    if current.state is OutputState.DELETED:
        return current
    for stream in STREAMS:
        tx.run(sql.DELETE_CHUNKS, run_id=run_id, stream=stream, number=0)
    _delete_log(tx, run_id)
    return transition(
        tx,
        sql.OUTPUTS,
        "delete",
        run_id,
        event_data={"reason": reason},
        reason=check_text(reason, "The reason"),
        frames=None,
        head=None,
        tail=None,
        deleted_at=tx.now,
    )


def delete_of_run(tx: Tx, run_id: str, reason: str) -> Output | None:
    """Delete the output, if any, and the log of a run."""
    _delete_log(tx, check_text(run_id, "The run", max_bytes=MAX_NAME))
    exists = tx.first(sql.OUTPUTS.by_key, key_=run_id) is not None
    return delete(tx, run_id, reason) if exists else None


def _delete_log(tx: Tx, run_id: str) -> None:
    tx.run(sql.BLANK_HIGHEST_LOG_LINE, run_id=run_id)
    tx.run(sql.DELETE_LOG_LINES, run_id=run_id)


def list_unsealed(tx: Tx, *, host: str, after: str | None = None, limit: int = 50) -> Page[Output]:
    """List the open outputs on a host; their runs may have ended."""
    name = check_text(host, "The host", max_bytes=MAX_NAME)
    return sql.OPEN_ON_HOST.page(tx, after=after, limit=limit, host=name)


def list_on_host(tx: Tx, *, host: str, after: str = "", limit: int = 200) -> list[Output]:
    """List the outputs whose files should be on a host, by run id."""
    return tx.all(sql.FILES_ON_HOST, host=host, after=after, limit=check_limit(limit))


def list_outputs(tx: Tx, *, after: str = "", limit: int = 200) -> list[Output]:
    """List all outputs by run id."""
    return tx.all(sql.LIST, after=after, limit=check_limit(limit))


def count_stored_bytes(tx: Tx, run_id: str) -> int:
    """Return how many bytes of an output's sealed files the store contains."""
    return int(tx.value(sql.STORED_BYTES, run_id=run_id))


def count_chunks(tx: Tx) -> int:
    """Count the chunks of sealed files in the store."""
    return int(tx.value(sql.COUNT_CHUNKS))


def import_chunks(tx: Tx, run_id: str, stream: str, pieces: Iterable[bytes]) -> None:
    """Copy a sealed file into a store that is being exported. It writes no event."""
    for number, data in enumerate(pieces):
        tx.run(sql.IMPORT_CHUNK, run_id=run_id, stream=stream, number=number, data=data)


def detach_folders(tx: Tx) -> None:
    """Detach all outputs from their files, in a copy of a store: only the original removes them."""
    tx.run(sql.DETACH_FOLDERS)


def list_uncleared(tx: Tx, *, host: str, limit: int = 50) -> list[Output]:
    """List the deleted outputs whose files may still be on a host."""
    check_text(host, "The host", max_bytes=MAX_NAME)
    return tx.all(sql.UNCLEARED, host=host, limit=check_limit(limit))


def mark_cleared(tx: Tx, run_id: str) -> bool:
    """Record that the files of a deleted output are removed; False when that was known."""
    cleared = bool(tx.run(sql.CLEAR, run_id=run_id))
    if cleared:
        tx.emit("output", "clear_files", run_id)
    return cleared


def delete_record(tx: Tx, run_id: str) -> bool:
    """Delete the row of a deleted output once its files are removed; False when it must stay."""
    deleted = bool(tx.run(sql.DELETE, run_id=run_id))
    if deleted:
        tx.emit("output", "delete_record", run_id)
    return deleted


def delete_expired(tx: Tx, run_ids: Sequence[str]) -> int:
    """Delete outputs by retention; returns how many."""
    for run_id in run_ids:
        delete(tx, run_id, f"deleted by retention ({PRUNABLE.setting})")
    return len(run_ids)


def add_log_line(
    tx: Tx,
    run_id: str,
    level: str,
    message: str,
    *,
    metadata: Any = None,
    source: str | None = None,
) -> LogLine:
    """Add a line to a run's log. It writes no event, but wakes up followers.

    The text is untrusted: secrets are redacted, characters that cannot be stored are replaced, and
    a long message is truncated with a note.
    """
    line = tx.one(
        sql.ADD_LOG_LINE,
        run_id=check_text(run_id, "The run", max_bytes=MAX_NAME),
        at=tx.now,
        level=check_level(level),
        message=_sanitize(message),
        metadata=None if metadata is None else _redact_json(metadata),
        source=check_optional_text(source, "The source", max_bytes=MAX_NAME),
    )
    tx.has_events = True
    return line


def add_log_lines(tx: Tx, run_id: str, lines: Iterable[tuple[str, str, Any]]) -> int:
    """Add several lines, given as (level, message, metadata); returns how many."""
    return len(
        [add_log_line(tx, run_id, level, text, metadata=data) for level, text, data in lines]
    )


def list_log_lines(
    tx: Tx, run_id: str, *, after: str | None = None, limit: int = 100, level: str = "debug"
) -> Page[LogLine]:
    """List a run's log after a line, oldest first, of this level or higher.

    `next` is the id of the last line, or the given one when there is nothing new, so the log can be
    followed.
    """
    query = {
        LogLevel.DEBUG: sql.LOG_LINES,
        LogLevel.INFO: sql.LOG_LINES_INFO,
        LogLevel.WARN: sql.LOG_LINES_WARN,
        LogLevel.ERROR: sql.LOG_LINES_ERROR,
    }[check_level(level)]
    items = tx.all(
        query,
        run_id=check_text(run_id, "The run", max_bytes=MAX_NAME),
        after=parse_number("log", after) if after else 0,
        limit=check_limit(limit),
    )
    return Page(items, items[-1].id if items else after)


def check_level(level: str) -> LogLevel:
    """Return a log level by its name; raises Invalid for any other text."""
    return check_choice(level, LogLevel, "The log level")


def _check_stream(stream: str) -> None:
    if stream not in STREAMS:
        raise Invalid(
            f"Invalid stream {stream!r}: expected one of {', '.join(STREAMS)}.", stream=stream
        )


def _redact(data: bytes) -> bytes:
    from corral.adapters.output.redact import redact

    return redact(data)


def _redact_json(value: Any) -> str:
    text = encode_json(value, "The metadata", max_bytes=MAX_METADATA)
    clean = _redact(text.encode()).decode()
    if clean != text and not _is_json(clean):
        # The redacted text spanned several JSON strings, so the result is not valid JSON.
        return encode_json({"redacted": True}, "The metadata")
    return clean


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return False
    return True


def _sanitize(message: str) -> str:
    data = message.encode("utf-8", "replace").replace(b"\0", b"\xef\xbf\xbd")
    data = _redact(data)
    if len(data) <= MAX_TEXT:
        return data.decode()
    kept = MAX_TEXT - 100
    note = f" [corral left out {len(data) - kept:,} bytes here]"
    return data[:kept].decode("utf-8", "ignore") + note
