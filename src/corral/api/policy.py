"""The policy of an operation: how it is called over HTTP, and which agents may call it.

A policy is a part of the operation's declaration (`read`, `write` and `operation` in
`api/operation.py`). The HTTP server, its client, the docs and the permission checks derive
everything that they know about an operation from it.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

if TYPE_CHECKING:
    from corral.api.agent_rules import AgentRule

# Usual reasons why an operation is not available over HTTP.
FOR_DAEMON = "it is for the loops of the daemon"
USES_FILES = "it uses files of the machine that calls it"
USES_SECRETS = "values of secrets do not leave their machine"

RunRule = Literal[
    "send_input",
    "edit_schedule",
    "change_session",
    "change_mailbox",
    "charge_own_run",
    "own_run",
    "as_own_run",
]
"""A restriction of processes inside a run; `api/permissions.py` has one function for each."""


class Location(msgspec.Struct, frozen=True):
    """The argument with the project of a call, by id or absolute path."""

    argument: str
    required: bool = True
    """False if the project may come from the session or the agent instead."""


class OperationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of an operation that do not concern its transaction."""

    # -- requests --------------------------------------------------------------------------------
    local: str | None = None
    """Why the operation is not available over HTTP."""
    streamed: str | None = None
    """The route with a streaming response that replaces the generated route."""
    remote: Callable[..., Any] | None = None
    """With `streamed`: the function that a remote store calls instead, as a method."""
    subject: str | None = None
    """The first argument, if it is a part of the path and is not in `Resource.subjects`."""
    reads: bool = False
    """The method changes nothing, so its request is a GET. Implied by `read`."""
    waits: str | None = None
    """The argument with the time that a call may wait. One request waits MAX_WAIT_MS at most."""
    local_arguments: Mapping[str, str] = {}
    """Arguments that are not available over HTTP, each with the reason or what to use instead."""
    server_arguments: Mapping[str, Any] = {}
    """Arguments that the server adds to every request."""
    paths: tuple[str, ...] = ()
    """Arguments that are paths: a remote store sends them as absolute paths."""
    location: Location | None = None
    """Over HTTP the caller must name the project: the server's working directory is never used as a
    default."""
    slow: bool = False
    """A call may take seconds: it uses other threads of the server than quick calls."""
    returns_secret: bool = False
    """The response is never stored for an idempotent retry."""
    needs_full_scope: bool = False
    """A read-only token may not call it, although it only reads."""
    time_limit: str | None = None
    """The argument that limits the duration; the server caps it at MAX_WAIT_MS."""

    # -- processes inside a run ------------------------------------------------------------------
    people_only: bool = False
    """It changes permissions, decides in a person's place, or replaces or deletes shared data."""
    actor: tuple[str, ...] = ()
    """The arguments that name the actor. `agent` is a name or a mailbox, all others are mailboxes.
    """
    decision: bool = False
    """Without a named agent it means a decision by a person; a run without an agent is refused."""
    in_run: RunRule | None = None
    """The restriction of a call from inside a run; without one, any object may be named."""

    # -- tokens of agents ------------------------------------------------------------------------
    agent: "AgentRule | None" = None
    """The rule for an agent's token. Without a rule the call is refused."""
    objects: Mapping[str, str] = {}
    """The arguments that name records of other resources, each with the attribute of the resource.
    A token that is limited to a project may name only records of that project."""
    agent_or_project: Literal["agent", "project"] | None = None
    """It takes an agent or a project, not both; the value is implied when neither is given."""


class PolicyFields(TypedDict, total=False):
    """The fields of `OperationPolicy`, as keyword arguments of a declaration."""

    local: str
    streamed: str
    remote: Callable[..., Any]
    subject: str
    reads: bool
    waits: str
    local_arguments: Mapping[str, str]
    server_arguments: Mapping[str, Any]
    paths: tuple[str, ...]
    location: Location
    slow: bool
    returns_secret: bool
    needs_full_scope: bool
    time_limit: str
    people_only: bool
    actor: tuple[str, ...]
    decision: bool
    in_run: RunRule
    agent: "AgentRule"
    objects: Mapping[str, str]
    agent_or_project: Literal["agent", "project"]
