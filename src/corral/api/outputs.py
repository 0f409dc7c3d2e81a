"""Operations of `store.outputs`."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from corral.api.operation import Resource, operation, read, write
from corral.domain.outputs import ops
from corral.domain.outputs.model import Output
from corral.services.runs import outputs as run_outputs

if TYPE_CHECKING:
    from corral.adapters.output.reader import OutputFiles
    from corral.adapters.output.sealed_file import OutputChunk, SealedOutput
    from corral.api.remote_output import RemoteOutput


def _open_remotely(outputs: "Outputs", run_id: str, *, stream: str = "output") -> "RemoteOutput":
    """`Outputs.open` over HTTP."""
    from corral.api.remote import get_client
    from corral.api.remote_output import RemoteOutput

    output = RemoteOutput(get_client(outputs), run_id, stream)
    _ = output.size  # raises NotFound or Refused now
    return output


def _follow_remotely(
    outputs: "Outputs",
    run_id: str,
    *,
    stream: str = "output",
    offset: int = 0,
    is_finished: Callable[[], bool] | None = None,
) -> "Iterator[OutputChunk]":
    """`Outputs.follow` over HTTP."""
    output = _open_remotely(outputs, run_id, stream=stream)
    return output.follow(offset, is_finished=is_finished or (lambda: True))


class Outputs(Resource):
    """The output of runs: what a run printed, and its log lines.

    An output is `open` while its run writes it, then `sealed` (compressed, redacted and
    immutable), and at last `deleted` or `lost`.
    """

    noun = "output"
    subjects = ("run_id",)

    get = read(ops.get, mode="one")
    log = write(ops.add_log_line, mode="one")
    log_lines = read(ops.list_log_lines, mode="one")

    @operation(streamed="GET /api/runs/ID/output", remote=_open_remotely)
    def open(self, run_id: str, *, stream: str = "output") -> "OutputFiles | SealedOutput":
        """Return a reader of a run's output, while the run writes it or after it was sealed.

        Reads the files of this machine, otherwise the store. Raises NotFound when the output was
        deleted or lost, and Refused when it is on another machine.
        """
        return run_outputs.open_output(self._database, run_id, stream=stream)

    @operation(streamed="GET /api/runs/ID/output", remote=_follow_remotely)
    def follow(
        self,
        run_id: str,
        *,
        stream: str = "output",
        offset: int = 0,
        is_finished: Callable[[], bool] | None = None,
    ) -> "Iterator[OutputChunk]":
        """Yield text from `offset` on, as it is written, until `is_finished()` is true.

        Without `is_finished`, yields only the text that is there now. Raises the errors of `open`.
        """
        return run_outputs.follow_output(
            self._database, run_id, stream=stream, offset=offset, is_finished=is_finished
        )

    @operation(people_only=True)
    def delete(self, run_id: str, reason: str = "deleted on request") -> Output:
        """Delete the output of a finished run, its log and its files. Idempotent.

        Files on another machine are removed there later. Raises Conflict while the run is live.
        """
        return run_outputs.delete_output(self._database, run_id, reason)
