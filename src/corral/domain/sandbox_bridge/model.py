"""What a boxed agent says in its file becomes a message, a question or a refusal; until the file
tells what became of it, that is kept here."""

import msgspec


class BoxedOutcome(msgspec.Struct, frozen=True):
    """What became of something that a boxed agent said, which its file does not tell yet."""

    session_id: str
    out_id: str
    message_id: str | None
    question_id: str | None
    reason: str | None
    created_at: int
