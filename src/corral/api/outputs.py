from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from corral.adapters import process
from corral.api.operation import Room, read, write
from corral.config import run_folder
from corral.db.tx import Tx
from corral.domain.outputs import ops
from corral.domain.outputs.model import CHUNK, STREAMS, Output, OutputState
from corral.domain.runs import ops as runs
from corral.kernel.errors import Invalid, NotFound, Refused

if TYPE_CHECKING:
    from corral.adapters.output.frames import Index
    from corral.adapters.output.read import Output as Files
    from corral.adapters.output.redact import Redactor
    from corral.adapters.output.sealed import Piece, Sealed

# A file that grows again and again while it is being sealed is sealed as it is then.
MOST_TRIES = 5


class Outputs(Room):
    """What runs wrote."""

    noun = "output"

    begin = write(ops.begin, repeatable=True)
    progress = write(ops.progress, mode="one", repeatable=True)
    add_chunk = write(ops.add_chunk, repeatable=True)
    seal = write(ops.seal, repeatable=True)
    lose = write(ops.lose)
    get = read(ops.get, mode="one")
    index = read(ops.index, mode="one")
    chunk = read(ops.chunk, mode="one")
    unsealed = read(ops.unsealed, mode="one")
    forget = write(ops.forget, repeatable=True)
    log = write(ops.log, mode="one")
    log_many = write(ops.log_many)
    log_lines = read(ops.log_lines, mode="one")

    _is_kept = read(ops.is_kept, mode="one")
    _delete = write(runs.delete_output, repeatable=True)
    _uncleared = read(ops.uncleared, mode="one")
    _clear = write(ops.clear, repeatable=True)

    def seal_folder(
        self,
        run_id: str,
        *,
        cap: int | None = None,
        redactor: "Callable[[], Redactor] | None" = None,
        probe: Callable[[str], None] | None = None,
    ) -> Output:
        """Seal the output of a run that is over: files, then the store, then the plain files go.

        It may be called again, by several processes at once, and after a death at any moment; it
        ends in the same state. An output whose files are gone is lost, with that reason. `probe` is
        for tests: it is told of every step.
        """
        from corral.adapters.output.seal import sealing

        row = self.get(run_id)
        if row.state is OutputState.DELETED or row.folder is None:
            return row
        folder = self._local(row)
        try:
            with sealing(folder):
                return self._seal_locked(run_id, folder, cap, redactor, probe or _unobserved)
        except FileNotFoundError:
            return self._missing(run_id, f"its folder {folder} is gone")

    def open(self, run_id: str, *, stream: str = "output") -> "Files | Sealed":
        """A reader of a run's output, while it grows or after it was sealed.

        From this machine's files, else from the store; NotFound or Refused says where it is.
        """
        from corral.adapters.output.read import Output as Files

        if stream not in STREAMS:  # it becomes the name of a file
            raise Invalid(f"{stream!r} is none of {', '.join(STREAMS)}.", stream=stream)
        row = self.get(run_id)
        if row.state is OutputState.DELETED:
            raise NotFound(
                f"The output of {run_id} was deleted ({row.reason}); `corral show {run_id}` has "
                "what else is known.",
                id=run_id,
                reason="deleted",
            )
        # A machine may have been renamed since; what is in this home's own folder is of that run.
        if row.folder is not None and (
            row.host == process.host() or Path(row.folder) == run_folder(run_id)
        ):
            from corral.adapters.output.seal import sealed_file
            from corral.adapters.output.sealed import open_sealed

            if row.state is OutputState.SEALED:
                sealed = open_sealed(sealed_file(Path(row.folder) / stream))
                if sealed is not None:
                    return sealed
            files = Files(Path(row.folder), stream)
            if files.exists():
                return files
        kept = row.sealed_bytes if stream == "output" else row.errors_bytes
        # Also a store that does not keep them may have some: of before it was moved.
        if (
            row.state is OutputState.SEALED
            and kept is not None
            and self._is_kept(run_id, kept, stream=stream)
        ):
            return self._from_store(run_id, stream, kept)
        raise self._not_here(row, stream)

    def follow(
        self,
        run_id: str,
        *,
        stream: str = "output",
        offset: int = 0,
        over: Callable[[], bool] | None = None,
    ) -> "Iterator[Piece]":
        """All text from an offset on, as it comes, until `over` says that nothing more will.

        Without `over`: what is there now.
        """
        return self.open(run_id, stream=stream).follow(offset, over=over or (lambda: True))

    def delete(self, run_id: str, reason: str = "somebody asked for it") -> Output:
        """Delete the output of a run that is over, its log and, on their own machine, its files."""
        row = self._delete(run_id, reason)
        self.clear_deleted()
        return row

    def clear_deleted(self, *, limit: int = 1_000) -> int:
        """Remove the files of deleted outputs from this machine; says how many outputs' these were.

        A folder that cannot be removed is left for the next time.
        """
        cleared = 0
        for row in self._uncleared(host=process.host(), limit=limit):
            assert row.folder is not None
            if _remove_folder(Path(row.folder), row.id):
                cleared += self._clear(row.id)
        return cleared

    # -- sealing --------------------------------------------------------------------------------

    def _seal_locked(
        self,
        run_id: str,
        folder: Path,
        cap: int | None,
        redactor: "Callable[[], Redactor] | None",
        probe: Callable[[str], None],
    ) -> Output:
        from corral.adapters.output.redact import Redactor
        from corral.adapters.output.seal import remove_plain, seal, sealed_file

        make = redactor or Redactor
        row = self.get(run_id)
        found: dict[str, Index] = {}
        for _ in range(MOST_TRIES):
            found = {
                name: seal(folder, name, redactor=make, cap=cap, probe=probe)
                for name in STREAMS
                if any((folder / file).exists() for file in (name, f"{name}.zst"))
            }
            if "output" not in found:
                return self._missing(run_id, f"there is no output in {folder}")
            if row.state is OutputState.SEALED or not any(
                _grew(folder / name, index) for name, index in found.items()
            ):
                break
        if row.state is not OutputState.SEALED:
            if self._database.keeps_output:
                for name in found:
                    self._upload(run_id, name, sealed_file(folder / name), probe)
            errors = found.get("errors")
            row = self.seal(
                run_id, found["output"], errors_bytes=errors.sealed_bytes if errors else None
            )
            probe("recorded")
        for name, index in found.items():
            remove_plain(folder, index, name)
            probe("removed")
        return row

    def _upload(self, run_id: str, stream: str, sealed: Path, probe: Callable[[str], None]) -> None:
        with sealed.open("rb") as file:
            number = 0
            while data := file.read(CHUNK):
                self.add_chunk(run_id, number, data, stream=stream)
                probe("chunk")
                number += 1

    def _missing(self, run_id: str, reason: str) -> Output:
        """Its files are gone: that is recorded, unless the store has what was in them."""
        row = self.get(run_id)
        if row.state is OutputState.OPEN or (
            row.state is OutputState.SEALED and not self._is_kept(run_id, row.sealed_bytes or 0)
        ):
            return self.lose(run_id, reason)
        return row

    def _local(self, row: Output) -> Path:
        if row.host != process.host():
            raise Refused(
                f"The output of {row.id} is on {row.host}; seal it there.", id=row.id, host=row.host
            )
        assert row.folder is not None
        return Path(row.folder)

    # -- reading --------------------------------------------------------------------------------

    def _from_store(self, run_id: str, stream: str, size: int) -> "Sealed":
        from corral.adapters.output.frames import read_index
        from corral.adapters.output.sealed import Sealed

        last: tuple[int, bytes] = (-1, b"")

        def chunk(number: int) -> bytes:
            nonlocal last
            known, data = last
            if known != number:
                data = self.chunk(run_id, number, stream=stream)
                last = (number, data)
            return data

        def read_at(offset: int, length: int) -> bytes:
            end = min(offset + length, size)
            if end <= offset:
                return b""
            first = offset // CHUNK
            parts = [chunk(number) for number in range(first, (end - 1) // CHUNK + 1)]
            return b"".join(parts)[offset - first * CHUNK : end - first * CHUNK]

        index = self.index(run_id) if stream == "output" else read_index(read_at, size)
        return Sealed(read_at, index)

    def _not_here(self, row: Output, stream: str) -> NotFound | Refused:
        what = "output" if stream == "output" else "standard error"
        if row.host != process.host() and row.state is not OutputState.LOST:
            return Refused(
                f"The {what} of {row.id} is on {row.host}; read it there.",
                id=row.id,
                host=row.host,
            )
        after = row.ends_kept if row.head else f"`corral show {row.id}` has what else is known."
        if row.state is OutputState.LOST:
            why = f"{row.reason}. {after}"
        elif stream != "output":
            why = (
                "nothing was written to it, or it is part of the output; see "
                f"`corral logs {row.id}`."
            )
        else:
            why = f"its files are gone; put them into {row.folder} from a copy of it. {after}"
        return NotFound(
            f"There is no {what} of {row.id}: {why}",
            id=row.id,
            host=row.host,
            reason="files_missing",
        )


# -- files that come into a store -----------------------------------------------------------------


def sealed(tx: Tx) -> Iterator[Output]:
    """All outputs that are sealed, by the ids of their runs."""
    after = ""
    while page := ops.walk(tx, after=after):
        yield from (row for row in page if row.state is OutputState.SEALED)
        after = page[-1].id


def is_whole(tx: Tx, row: Output) -> bool:
    """Whether the store itself has all of a sealed output."""
    return ops.kept_bytes(tx, row.id) == (row.sealed_bytes or 0) + (row.errors_bytes or 0)


def bring(tx: Tx, row: Output) -> bool:
    """Put the sealed files of this machine into the store; False when one is not here, or not the
    one that was sealed."""
    from corral.adapters.output.seal import sealed_file

    if row.folder is None or row.host != process.host():
        return False
    sizes = dict(zip(STREAMS, (row.sealed_bytes, row.errors_bytes), strict=True))
    files = {stream: sealed_file(Path(row.folder) / stream) for stream in STREAMS}
    try:
        for stream, size in sizes.items():
            if size is not None and files[stream].stat().st_size != size:
                return False
        for stream, size in sizes.items():
            if size is not None:
                ops.bring_chunks(tx, row.id, stream, _pieces(files[stream]))
    except OSError:
        return False
    return is_whole(tx, row)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            yield data


def _grew(plain: Path, index: "Index") -> bool:
    try:
        return plain.stat().st_size != index.bytes
    except FileNotFoundError:
        return False


def _remove_folder(folder: Path, run_id: str) -> bool:
    """Remove a run's folder, and never anything else. True when it is gone."""
    if folder.name != run_id or folder.parent.name != "runs" or folder.is_symlink():
        return not folder.exists()
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _unobserved(moment: str) -> None:
    """Nobody wants to know."""
