from corral.kernel.page import Page
from corral.library.operation import Room, read, write
from corral.library.waiting import in_time, until_over
from corral.rooms.decisions import ops
from corral.rooms.decisions.model import Decision, DecisionState


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
    _get = read(ops.get)
    _list = read(ops.list_decisions, mode="one")

    def get(self, decision: str) -> Decision:
        """A decision by its id, which may be shortened; one that is late is ended first."""
        now = self._database.clock.now
        return in_time(
            lambda: self._get(decision), lambda found: found.is_late(now()), self.expire_due
        )

    def list(
        self,
        *,
        proposed: bool = False,
        project: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Decision]:
        """Decisions, newest first: all, those of a project, or those that wait to be confirmed."""
        now = self._database.clock.now
        return in_time(
            lambda: self._list(proposed=proposed, project=project, after=after, limit=limit),
            lambda page: any(decision.is_late(now()) for decision in page.items),
            self.expire_due,
        )

    def wait(self, decision: str, *, timeout_ms: int | None = None) -> Decision:
        """Wait until a proposed decision is confirmed, rejected or dismissed; Refused when it is
        not within the time. One that needs no confirmation is given back at once."""
        found = self._get(decision)
        if found.state is DecisionState.RECORDED:
            return found
        return until_over(self._database, lambda: self.get(found.id), timeout_ms)
