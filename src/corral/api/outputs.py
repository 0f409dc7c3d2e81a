"""Operations of `store.outputs`."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from corral.api.operation import Resource, operation, read, write
from corral.api.policy import FOR_SUPERVISORS, IS_PART, USES_FILES
from corral.domain.outputs import ops
from corral.domain.outputs.model import Output
from corral.services.runs import outputs

if TYPE_CHECKING:
    from corral.adapters.output.reader import OutputReader
    from corral.adapters.output.redact import Redactor
    from corral.adapters.output.sealed_file import OutputChunk, SealedOutput


class Outputs(Resource):
    """The output of runs: what a run printed, and its log lines.

    An output is `open` while its run writes it, then `sealed` (compressed, redacted and
    immutable), and at last `deleted` or `lost`.
    """

    noun = "output"

    begin = write(ops.begin, repeatable=True, local=FOR_SUPERVISORS)
    record_progress = write(ops.record_progress, mode="one", repeatable=True, local=FOR_SUPERVISORS)
    add_chunk = write(ops.add_chunk, repeatable=True, local=FOR_SUPERVISORS)
    seal = write(ops.seal, repeatable=True, local=FOR_SUPERVISORS)
    lose = write(ops.mark_lost, local=IS_PART)
    get = read(ops.get, mode="one")
    index = read(ops.get_index, mode="one", local=IS_PART)
    chunk = read(ops.get_chunk, mode="one", local=IS_PART)
    list_unsealed = read(ops.list_unsealed, mode="one", local=IS_PART)
    delete_record = write(ops.delete_record, repeatable=True, local=IS_PART)
    log = write(ops.add_log_line, mode="one")
    log_many = write(ops.add_log_lines, local=FOR_SUPERVISORS)
    log_lines = read(ops.list_log_lines, mode="one")

    @operation(local=USES_FILES)
    def seal_folder(
        self,
        run_id: str,
        *,
        cap: int | None = None,
        redactor: "Callable[[], Redactor] | None" = None,
        probe: Callable[[str], None] | None = None,
    ) -> Output:
        """Seal the output of a finished run: write sealed files, record them, remove plain files.

        Idempotent, also when several processes seal at once and after a crash at any step. An
        output whose files are missing becomes `lost`, with the reason. Raises Refused when the
        files are on another machine. `probe` is called at every step; tests use it.
        """
        return outputs.seal_output(self._database, run_id, cap=cap, redactor=redactor, probe=probe)

    @operation(streamed="GET /api/runs/ID/output")
    def open(self, run_id: str, *, stream: str = "output") -> "OutputReader | SealedOutput":
        """Return a reader of a run's output, while the run writes it or after it was sealed.

        Reads the files of this machine, otherwise the store. Raises NotFound when the output was
        deleted or lost, and Refused when it is on another machine.
        """
        return outputs.open_output(self._database, run_id, stream=stream)

    @operation(streamed="GET /api/runs/ID/output")
    def follow(
        self,
        run_id: str,
        *,
        stream: str = "output",
        offset: int = 0,
        over: Callable[[], bool] | None = None,
    ) -> "Iterator[OutputChunk]":
        """Yield text from `offset` on, as it is written, until `over()` is true.

        Without `over`, yields only the text that is there now. Raises the errors of `open`.
        """
        return outputs.follow_output(
            self._database, run_id, stream=stream, offset=offset, over=over
        )

    @operation(people_only=True)
    def delete(self, run_id: str, reason: str = "deleted on request") -> Output:
        """Delete the output of a finished run, its log and its files. Idempotent.

        Files on another machine are removed there later. Raises Conflict while the run is live.
        """
        return outputs.delete_output(self._database, run_id, reason)

    @operation(local=USES_FILES)
    def clear_deleted(self, *, limit: int = 1_000) -> int:
        """Remove the files of deleted outputs from this machine; returns the number of outputs.

        A folder that cannot be removed is tried again by the next call.
        """
        return outputs.remove_deleted_files(self._database, limit=limit)
