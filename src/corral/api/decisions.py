from corral.api.operation import Room, read, write
from corral.api.wait import until_over
from corral.domain.decisions import ops
from corral.domain.decisions.model import Decision, DecisionState


class Decisions(Room):
    """Choices that were recorded, and that somebody may have to confirm."""

    noun = "decision"

    record = write(ops.record, repeatable_by="key")
    confirm = write(ops.confirm, durable=True, repeatable=True)
    reject = write(ops.reject, durable=True, repeatable=True)
    dismiss = write(ops.dismiss, repeatable=True)
    judge = write(ops.judge, durable=True, repeatable=True)
    hear = write(ops.hear, repeatable=True)
    expire_due = write(ops.expire_due, repeatable=True)
    next_due = read(ops.next_due, mode="one")
    get = read(ops.get, timely=True)
    list = read(ops.list_decisions, mode="one", timely=True)

    def wait(self, decision: str, *, timeout_ms: int | None = None) -> Decision:
        """Wait until a proposed decision is confirmed, rejected or dismissed; Refused when it is
        not within the time. One that needs no confirmation is given back at once."""
        found = self.get(decision)
        if found.state is DecisionState.RECORDED:
            return found
        return until_over(self._database, lambda: self.get(found.id), timeout_ms)
