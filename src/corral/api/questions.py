from corral.api.operation import Room, read, write
from corral.api.wait import until_over
from corral.domain.questions import ops
from corral.domain.questions.model import Question


class Questions(Room):
    """What somebody must answer."""

    noun = "question"

    ask = write(ops.ask, repeatable_by="key")
    answer = write(ops.answer, durable=True, repeatable=True)
    withdraw = write(ops.withdraw)
    hear = write(ops.hear, repeatable=True)
    expire_due = write(ops.expire_due, repeatable=True)
    next_due = read(ops.next_due, mode="one")
    get = read(ops.get, timely=True)
    list = read(ops.list_questions, mode="one", timely=True)

    def wait(self, question: str, *, timeout_ms: int | None = None) -> Question:
        """Wait until a question is answered, expired or withdrawn; Refused when it is not within
        the time. Then say that it was heard (`hear`), or the letter tells it once more."""
        id = self.get(question).id
        return until_over(self._database, lambda: self.get(id), timeout_ms)
