"""Operations of `store.decisions`."""

from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read, write
from corral.domain.decisions import ops
from corral.domain.decisions.model import Decision, DecisionState
from corral.services.wait import wait_until_ended


class Decisions(Resource):
    """Decisions that were recorded; a proposed one waits to be confirmed."""

    noun = "decision"
    subjects = ("decision",)

    record = write(
        ops.record,
        repeatable_by="key",
        actor=("author",),
        agent=rules.as_author,
        objects={"run": "runs"},
    )
    confirm = write(
        ops.confirm,
        durable=True,
        repeatable=True,
        actor=("by",),
        decision=True,
        agent=rules.as_answerer,
    )
    reject = write(
        ops.reject,
        durable=True,
        repeatable=True,
        actor=("by",),
        decision=True,
        agent=rules.as_answerer,
    )
    dismiss = write(ops.dismiss, repeatable=True, actor=("by",), decision=True)
    review_many = write(
        ops.review_many, durable=True, repeatable=True, actor=("by",), decision=True
    )
    acknowledge = write(ops.acknowledge, repeatable=True, agent=rules.only_authored_decision)
    next_due = read(ops.next_due, mode="one")
    get = read(ops.get, expire=ops.expire_due, agent=rules.only_own_decision)
    list = read(ops.list_decisions, mode="one", expire=ops.expire_due)

    @operation(reads=True, waits="timeout_ms", agent=rules.only_own_decision)
    def wait(self, decision: str, *, timeout_ms: int | None = None) -> Decision:
        """Wait until a decision is confirmed, rejected or dismissed.

        Raises NotYet after `timeout_ms`. A decision that needs no confirmation is returned at once.
        """
        current = self.get(decision)
        if current.state is DecisionState.RECORDED:
            return current
        return wait_until_ended(self._database, lambda: self.get(current.id), timeout_ms)
