"""Operations of `store.internal.outputs`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from corral.api.operation import Resource, operation, read, write
from corral.domain.outputs import ops
from corral.domain.outputs.model import Output
from corral.services.runs import outputs

if TYPE_CHECKING:
    from corral.adapters.output.redact import Redactor


class InternalOutputs(Resource):
    """The steps from the first byte of an output to its sealed files and their removal."""

    noun = "output"

    begin = write(ops.begin, repeatable=True)
    record_progress = write(ops.record_progress, mode="one", repeatable=True)
    add_chunk = write(ops.add_chunk, repeatable=True)
    seal = write(ops.seal, repeatable=True)
    lose = write(ops.mark_lost)
    index = read(ops.get_index, mode="one")
    chunk = read(ops.get_chunk, mode="one")
    list_unsealed = read(ops.list_unsealed, mode="one")
    delete_record = write(ops.delete_record, repeatable=True)
    log_many = write(ops.add_log_lines)

    @operation()
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

    @operation()
    def clear_deleted(self, *, limit: int = 1_000) -> int:
        """Remove the files of deleted outputs from this machine; returns the number of outputs.

        A folder that cannot be removed is tried again by the next call.
        """
        return outputs.remove_deleted_files(self._database, limit=limit)
