from corral.kernel.page import Page
from corral.library.operation import Room, read, write
from corral.library.waiting import in_time, until_over
from corral.rooms.questions import ops
from corral.rooms.questions.model import Question


class Questions(Room):
    """What somebody must answer."""

    noun = "question"

    ask = write(ops.ask, repeatable_by="key")
    answer = write(ops.answer, durable=True, repeatable=True)
    withdraw = write(ops.withdraw)
    hear = write(ops.hear, repeatable=True)
    expire_due = write(ops.expire_due, repeatable=True)
    next_due = read(ops.next_due, mode="one")
    _get = read(ops.get)
    _list = read(ops.list_questions, mode="one")

    def get(self, question: str) -> Question:
        """A question by its id, which may be shortened; one that is late is ended first."""
        now = self._database.clock.now
        return in_time(
            lambda: self._get(question), lambda found: found.is_late(now()), self.expire_due
        )

    def list(
        self,
        *,
        asker: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Question]:
        """Questions that wait for an answer, or all of them, newest first; of one asker."""
        now = self._database.clock.now
        return in_time(
            lambda: self._list(asker=asker, all=all, after=after, limit=limit),
            lambda page: any(question.is_late(now()) for question in page.items),
            self.expire_due,
        )

    def wait(self, question: str, *, timeout_ms: int | None = None) -> Question:
        """Wait until a question is answered, expired or withdrawn; Refused when it is not within
        the time. Then say that it was heard (`hear`), or the letter tells it once more."""
        id = self._get(question).id
        return until_over(self._database, lambda: self.get(id), timeout_ms)
