"""Operations of `store.decisions`."""

from corral.api.operation import Resource, read, write
from corral.api.wait import wait_until_ended
from corral.domain.decisions import ops
from corral.domain.decisions.model import Decision, DecisionState


class Decisions(Resource):
    """Decisions that were recorded; a proposed one waits to be confirmed."""

    noun = "decision"

    record = write(ops.record, repeatable_by="key")
    confirm = write(ops.confirm, durable=True, repeatable=True)
    reject = write(ops.reject, durable=True, repeatable=True)
    dismiss = write(ops.dismiss, repeatable=True)
    review_many = write(ops.review_many, durable=True, repeatable=True)
    acknowledge = write(ops.acknowledge, repeatable=True)
    expire_due = write(ops.expire_due, repeatable=True)
    next_due = read(ops.next_due, mode="one")
    get = read(ops.get, timely=True)
    list = read(ops.list_decisions, mode="one", timely=True)

    def wait(self, decision: str, *, timeout_ms: int | None = None) -> Decision:
        """Wait until a decision is confirmed, rejected or dismissed; raises Refused on timeout.

        A decision that needs no confirmation is returned at once.
        """
        current = self.get(decision)
        if current.state is DecisionState.RECORDED:
            return current
        return wait_until_ended(self._database, lambda: self.get(current.id), timeout_ms)
