"""What an agent's own stream tells, in one vocabulary for all providers.

A parser turns lines of a provider's structured output into these; the keeper writes them into the
store. None of them is guessed: what the stream does not say is None.
"""

from typing import Any, Literal

import msgspec


class SessionNamed(msgspec.Struct, frozen=True):
    """The provider's own id of the conversation, with which it can be resumed."""

    id: str
    model: str | None = None
    version: str | None = None


class Said(msgspec.Struct, frozen=True):
    """One turn: words, a call of a tool, or what a tool answered."""

    role: Literal["user", "assistant", "system", "tool"]
    content: str
    tool_call_id: str | None = None
    tool_name: str | None = None
    arguments: Any = None
    result: Any = None
    is_error: bool = False


class Used(msgspec.Struct, frozen=True):
    """Tokens, as the provider counts them; input does not include what came from the cache.

    With `counter` the figures are totals since the counter began (a thread's, across resumes) and
    only what was added since the last report is new.
    """

    model: str | None
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost_micros: int | None = None
    counter: str | None = None
    key: str | None = None
    """The same key is the same report: a stream read twice charges once."""


class LimitReached(msgspec.Struct, frozen=True):
    """The provider's quota is used up, until `reset_at` where it says so (milliseconds, UTC)."""

    message: str
    reset_at: int | None = None


class Asked(msgspec.Struct, frozen=True):
    """It wants to do something and waits for leave."""

    id: str
    title: str
    tool: str | None = None
    arguments: Any = None
    options: list[str] = []


class Denied(msgspec.Struct, frozen=True):
    """A tool call was denied for lack of permission."""

    tool: str
    call: str | None = None
    """The id of the call; a call that is reported twice counts once."""


class Planned(msgspec.Struct, frozen=True):
    """The steps that the agent means to take, in place of those that it told before."""

    steps: list[dict[str, str]]
    """Each with content, status and priority, where told."""


class Logged(msgspec.Struct, frozen=True):
    level: Literal["debug", "info", "warn", "error"]
    message: str
    metadata: dict[str, Any] | None = None


class Finished(msgspec.Struct, frozen=True):
    """The prompt was dealt with; `ok` is the provider's own judgement."""

    ok: bool
    message: str | None = None


Fact = SessionNamed | Said | Used | LimitReached | Asked | Denied | Planned | Logged | Finished
