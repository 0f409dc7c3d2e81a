"""Output of runs: seal the files of a finished run, read them, delete them.

A run writes plain files into its folder. Sealing compresses and redacts them, records the result in
the store, and then removes the plain files. A store that is shared by several machines also keeps
the sealed bytes as chunks, so every machine can read them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corral.adapters.processes import process
from corral.config import run_folder
from corral.db.tx import Tx
from corral.domain.outputs import ops
from corral.domain.outputs.model import CHUNK_BYTES, STREAMS, Output, OutputState
from corral.domain.runs import ops as runs
from corral.kernel.errors import Invalid, NotFound, Refused

if TYPE_CHECKING:
    from corral.adapters.output.reader import OutputFiles
    from corral.adapters.output.redact import Redactor
    from corral.adapters.output.sealed_file import OutputChunk, SealedOutput
    from corral.adapters.output.sealed_format import SealIndex
    from corral.db.database import Database

# A file that keeps growing while it is sealed is sealed as it is after so many attempts.
MAX_SEAL_ATTEMPTS = 5

Probe = Callable[[str], None]


def get_output(database: "Database", run_id: str) -> Output:
    """Return the output row of a run; raises NotFound."""
    return database.read(lambda tx: ops.get(tx, run_id), mode="one")


# -- sealing --------------------------------------------------------------------------------------


def seal_output(
    database: "Database",
    run_id: str,
    *,
    cap: int | None = None,
    redactor: "Callable[[], Redactor] | None" = None,
    probe: Probe | None = None,
) -> Output:
    """Seal the output of a finished run: write sealed files, record them, remove the plain files.

    Idempotent, also when several processes seal at once and after a crash at any step. An output
    whose files are missing becomes `lost`, with the reason. Raises Refused when the files are on
    another machine. `probe` is called at every step; tests use it.
    """
    from corral.adapters.output.seal import seal_lock

    row = get_output(database, run_id)
    if row.state is OutputState.DELETED or row.folder is None:
        return row
    folder = _get_local_folder(row)
    try:
        with seal_lock(folder):
            return _seal_locked(database, run_id, folder, cap, redactor, probe or _ignore_step)
    except FileNotFoundError:
        return _mark_missing(database, run_id, f"its directory {folder} is gone")


def _seal_locked(
    database: "Database",
    run_id: str,
    folder: Path,
    cap: int | None,
    redactor: "Callable[[], Redactor] | None",
    probe: Probe,
) -> Output:
    from corral.adapters.output.redact import Redactor
    from corral.adapters.output.seal import remove_plain, seal, sealed_path

    new_redactor = redactor or Redactor
    row = get_output(database, run_id)
    indexes: dict[str, SealIndex] = {}
    for _ in range(MAX_SEAL_ATTEMPTS):
        indexes = {
            name: seal(folder, name, redactor=new_redactor, cap=cap, probe=probe)
            for name in STREAMS
            if any((folder / file).exists() for file in (name, f"{name}.zst"))
        }
        if "output" not in indexes:
            return _mark_missing(database, run_id, f"there is no output in {folder}")
        if row.state is OutputState.SEALED or not any(
            _has_grown(folder / name, index) for name, index in indexes.items()
        ):
            break
    if row.state is not OutputState.SEALED:
        if database.stores_output:
            for name in indexes:
                _upload(database, run_id, name, sealed_path(folder / name), probe)
        stderr = indexes.get("stderr")
        stderr_bytes = stderr.sealed_bytes if stderr else None
        row = database.write(
            lambda tx: ops.seal(tx, run_id, indexes["output"], stderr_bytes=stderr_bytes),
            repeatable=True,
        )
        probe("recorded")
    for name, index in indexes.items():
        remove_plain(folder, index, name)
        probe("removed")
    return row


def _upload(database: "Database", run_id: str, stream: str, sealed: Path, probe: Probe) -> None:
    for number, data in enumerate(_iter_chunks(sealed)):
        add = partial(ops.add_chunk, run_id=run_id, number=number, data=data, stream=stream)
        database.write(add, repeatable=True)
        probe("chunk")


def _mark_missing(database: "Database", run_id: str, reason: str) -> Output:
    """Record that the files are missing, unless the store itself has their content."""
    row = get_output(database, run_id)
    if row.state is OutputState.OPEN or (
        row.state is OutputState.SEALED
        and not _is_stored(database, run_id, row.sealed_bytes or 0, "output")
    ):
        return database.write(lambda tx: ops.mark_lost(tx, run_id, reason))
    return row


def _is_stored(database: "Database", run_id: str, size: int, stream: str) -> bool:
    return database.read(lambda tx: ops.has_chunks(tx, run_id, size, stream=stream), mode="one")


def _get_local_folder(row: Output) -> Path:
    if row.host != process.host():
        raise Refused(
            f"The output of {row.id} is on {row.host}. Seal it there.", id=row.id, host=row.host
        )
    assert row.folder is not None
    return Path(row.folder)


def _has_grown(plain: Path, index: "SealIndex") -> bool:
    try:
        return plain.stat().st_size != index.bytes
    except FileNotFoundError:
        return False


def _ignore_step(step: str) -> None:
    pass


# -- reading --------------------------------------------------------------------------------------


def open_output(
    database: "Database", run_id: str, *, stream: str = "output"
) -> "OutputFiles | SealedOutput":
    """Return a reader of a run's output, while the run writes it or after it was sealed.

    Reads the files of this machine, otherwise the chunks in the store. Raises NotFound when the
    output was deleted or lost, and Refused when it is on another machine.
    """
    from corral.adapters.output.reader import OutputFiles

    if stream not in STREAMS:  # the stream becomes a file name
        raise Invalid(f"Unknown stream {stream!r}. Use {' or '.join(STREAMS)}.", stream=stream)
    row = get_output(database, run_id)
    if row.state is OutputState.DELETED:
        raise NotFound(
            f"The output of {run_id} was deleted ({row.reason}). See `corral show {run_id}` for "
            "the rest of the record.",
            id=run_id,
            reason="deleted",
        )
    # The machine may have been renamed since, but this home's own folder belongs to the run.
    if row.folder is not None and (
        row.host == process.host() or Path(row.folder) == run_folder(run_id)
    ):
        from corral.adapters.output.seal import sealed_path
        from corral.adapters.output.sealed_file import open_sealed

        if row.state is OutputState.SEALED:
            sealed = open_sealed(sealed_path(Path(row.folder) / stream))
            if sealed is not None:
                return sealed
        files = OutputFiles(Path(row.folder), stream)
        if files.exists():
            return files
    size = row.sealed_bytes if stream == "output" else row.stderr_bytes
    # A store that does not keep output may have some from before it was moved.
    if (
        row.state is OutputState.SEALED
        and size is not None
        and _is_stored(database, run_id, size, stream)
    ):
        return _open_stored(database, run_id, stream, size)
    raise _unavailable_error(row, stream)


def follow_output(
    database: "Database",
    run_id: str,
    *,
    stream: str = "output",
    offset: int = 0,
    is_finished: Callable[[], bool] | None = None,
) -> "Iterator[OutputChunk]":
    """Yield text from `offset` on, as it is written, until `is_finished()` is true.

    Without `is_finished`, yields only the text that is there now.
    """
    reader = open_output(database, run_id, stream=stream)
    return reader.follow(offset, is_finished=is_finished or (lambda: True))


def read_output_tail(database: "Database", run_id: str, max_bytes: int) -> bytes:
    """Return the end of a run's output, without reading the rest; errors as in `open_output`."""
    output = open_output(database, run_id)
    return output.bytes(max(0, output.size - max_bytes), max_bytes)


def _open_stored(database: "Database", run_id: str, stream: str, size: int) -> "SealedOutput":
    from corral.adapters.output.sealed_file import SealedOutput
    from corral.adapters.output.sealed_format import read_index

    cached: tuple[int, bytes] = (-1, b"")

    def read_chunk(number: int) -> bytes:
        nonlocal cached
        cached_number, data = cached
        if cached_number != number:
            data = database.read(
                lambda tx: ops.get_chunk(tx, run_id, number, stream=stream), mode="one"
            )
            cached = (number, data)
        return data

    def read_at(offset: int, length: int) -> bytes:
        end = min(offset + length, size)
        if end <= offset:
            return b""
        first = offset // CHUNK_BYTES
        chunks = [read_chunk(number) for number in range(first, (end - 1) // CHUNK_BYTES + 1)]
        return b"".join(chunks)[offset - first * CHUNK_BYTES : end - first * CHUNK_BYTES]

    if stream == "output":
        index = database.read(lambda tx: ops.get_index(tx, run_id), mode="one")
    else:
        index = read_index(read_at, size)
    return SealedOutput(read_at, index)


def _unavailable_error(row: Output, stream: str) -> NotFound | Refused:
    name = "output" if stream == "output" else "standard error"
    if row.host != process.host() and row.state is not OutputState.LOST:
        return Refused(
            f"The {name} of {row.id} is on {row.host}. Read it there.", id=row.id, host=row.host
        )
    hint = row.ends_kept if row.head else f"See `corral show {row.id}` for the rest of the record."
    if row.state is OutputState.LOST:
        reason = f"{row.reason}. {hint}"
    elif stream != "output":
        reason = f"the run wrote none, or it is part of the output (`corral logs {row.id}`)."
    else:
        reason = f"its files are missing. Restore them into {row.folder} from a copy. {hint}"
    return NotFound(
        f"No {name} of {row.id}: {reason}",
        id=row.id,
        host=row.host,
        reason="files_missing",
    )


# -- deleting -------------------------------------------------------------------------------------


def delete_output(database: "Database", run_id: str, reason: str) -> Output:
    """Delete the output of a finished run, its log and its files.

    Files on another machine are removed by the next `remove_deleted_files` there.
    """
    row = database.write(lambda tx: runs.delete_output(tx, run_id, reason), repeatable=True)
    remove_deleted_files(database)
    return row


def remove_deleted_files(database: "Database", *, limit: int = 1_000) -> int:
    """Remove the files of deleted outputs from this machine; returns the number of outputs.

    A folder that cannot be removed is tried again by the next call.
    """
    removed = 0
    rows = database.read(
        lambda tx: ops.list_uncleared(tx, host=process.host(), limit=limit), mode="one"
    )
    for row in rows:
        assert row.folder is not None
        if _remove_folder(Path(row.folder), row.id):
            removed += database.write(partial(ops.mark_cleared, run_id=row.id), repeatable=True)
    return removed


def _remove_folder(folder: Path, run_id: str) -> bool:
    """Remove a run's folder; returns whether it is gone.

    The path comes from the store: anything that does not look like the folder of this run is left
    alone.
    """
    if folder.name != run_id or folder.parent.name != "runs" or folder.is_symlink():
        return not folder.exists()
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


# -- moving files into the store ------------------------------------------------------------------


def iterate_sealed(tx: Tx) -> Iterator[Output]:
    """Yield all sealed outputs, ordered by run id."""
    after = ""
    while page := ops.list_outputs(tx, after=after):
        yield from (row for row in page if row.state is OutputState.SEALED)
        after = page[-1].id


def is_stored_completely(tx: Tx, row: Output) -> bool:
    """Return whether the store itself has every byte of a sealed output."""
    return ops.count_stored_bytes(tx, row.id) == (row.sealed_bytes or 0) + (row.stderr_bytes or 0)


def store_sealed_files(tx: Tx, row: Output) -> bool:
    """Copy the sealed files of this machine into the store.

    Returns False when a file is not on this machine, or its size is not the recorded one.
    """
    from corral.adapters.output.seal import sealed_path

    if row.folder is None or row.host != process.host():
        return False
    sizes = dict(zip(STREAMS, (row.sealed_bytes, row.stderr_bytes), strict=True))
    files = {stream: sealed_path(Path(row.folder) / stream) for stream in STREAMS}
    try:
        for stream, size in sizes.items():
            if size is not None and files[stream].stat().st_size != size:
                return False
        for stream, size in sizes.items():
            if size is not None:
                ops.import_chunks(tx, row.id, stream, _iter_chunks(files[stream]))
    except OSError:
        return False
    return is_stored_completely(tx, row)


def _iter_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data
