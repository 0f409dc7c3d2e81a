"""Outcomes of messages from a sandbox, kept until the sandbox's file shows them."""

import msgspec


class SandboxOutcome(msgspec.Struct, frozen=True):
    """What a message from a sandbox became: a chat message, a question or a rejection."""

    session_id: str
    out_id: str
    """The message's id in the file."""
    message_id: str | None
    question_id: str | None
    reason: str | None
    """Why it was rejected."""
    created_at: int
