"""Facts: what the output of an agent states, in one vocabulary for all providers.

Parsers and transcript readers emit facts; the supervisor writes them to the store. A fact is never
a guess: a field that the output does not state is None.
"""

from typing import Any, Literal

import msgspec


class SessionFact(msgspec.Struct, frozen=True):
    """The provider's own id of the conversation. The CLI resumes the conversation by this id."""

    id: str
    model: str | None = None
    version: str | None = None


class TurnFact(msgspec.Struct, frozen=True):
    """One turn: a text, a tool call or a tool result."""

    role: Literal["user", "assistant", "system", "tool"]
    content: str
    tool_call_id: str | None = None
    tool_name: str | None = None
    arguments: Any = None
    result: Any = None
    is_error: bool = False


class UsageFact(msgspec.Struct, frozen=True):
    """Token usage as the provider counts it. `input` excludes tokens read from the cache.

    With `counter`, the figures are running totals since the counter started (for example of a
    thread, across resumes). Only the difference to the last report is charged.
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
    """Idempotency key: a report with a known key is not charged again."""


class LimitFact(msgspec.Struct, frozen=True):
    """The provider's quota is exhausted, until `reset_at` (milliseconds, UTC) if stated."""

    message: str
    reset_at: int | None = None


class PermissionFact(msgspec.Struct, frozen=True):
    """The agent requests a permission and waits for the answer."""

    id: str
    title: str
    tool: str | None = None
    arguments: Any = None
    options: list[str] = []


class DenialFact(msgspec.Struct, frozen=True):
    """A tool call was denied for lack of permission."""

    tool: str
    call: str | None = None
    """The id of the call. A call that is reported twice counts once."""


class PlanFact(msgspec.Struct, frozen=True):
    """The agent's current plan. It replaces the previous plan."""

    steps: list[dict[str, str]]
    """Each step has `content` and, where stated, `status` and `priority`."""


class LogFact(msgspec.Struct, frozen=True):
    """A line for the log of the run."""

    level: Literal["debug", "info", "warn", "error"]
    message: str
    metadata: dict[str, Any] | None = None


class ResultFact(msgspec.Struct, frozen=True):
    """The prompt is finished; `ok` is the provider's own verdict."""

    ok: bool
    message: str | None = None


ProviderFact = (
    SessionFact
    | TurnFact
    | UsageFact
    | LimitFact
    | PermissionFact
    | DenialFact
    | PlanFact
    | LogFact
    | ResultFact
)
