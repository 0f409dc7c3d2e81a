"""An alert subscribes a webhook, a command, the desktop or a mailbox to kinds of events.

Each notification is a letter in the alert's own mailbox, so it is durable, retried and visible.
"""

from enum import StrEnum

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.states import TransitionTable, allow
from corral.kernel.validation import check_text
from corral.kernel.words import split_command


class AlertState(StrEnum):
    ACTIVE = "active"  # notifies
    REMOVED = "removed"  # no longer notifies


TRANSITIONS = TransitionTable(
    "alert",
    AlertState,
    create_verb="add",
    initial=AlertState.ACTIVE,
    verbs={"remove": allow(AlertState.ACTIVE, to=AlertState.REMOVED)},
)


class AlertKind(StrEnum):
    """The events that can be subscribed to."""

    CRASHED = "crashed"  # a run vanished, or was killed by a signal from outside Corral
    FAILED = "failed"  # a run or a schedule's script failed or timed out
    STUCK = "stuck"  # a run reports work but shows no progress
    NEEDS_INPUT = "needs_input"  # a run waits for an answer
    BUDGET = "budget"  # a budget is exhausted
    FINISHED = "finished"  # a run succeeded
    UNDELIVERED = "undelivered"  # a chat message was not answered or not delivered


class TargetKind(StrEnum):
    WEBHOOK = "webhook"  # a POST to a URL
    COMMAND = "command"  # a program that reads the notification from stdin
    DESKTOP = "desktop"  # a desktop notification on this machine
    MAILBOX = "mailbox"  # a letter to an agent, a person or a queue


class Alert(msgspec.Struct, frozen=True):
    """A subscription of a target to kinds of events."""

    id: str
    state: AlertState
    kinds: list[str]
    """The subscribed events, as values of AlertKind."""
    project_id: str | None
    """Only events of this project; None: of all."""
    agent_id: str | None
    """Only events of this agent; None: of all."""
    target_kind: TargetKind
    target: str
    """The URL or secret:NAME, the command line, or the mailbox; empty for the desktop."""
    secret: str | None
    """The name of the secret that signs webhook requests."""
    created_at: int
    created_by: str
    """The actor that added it."""
    ended_at: int | None

    @property
    def mailbox(self) -> str:
        """Where its letters go: the target mailbox, or its own, which the alert sender reads."""
        return self.target if self.target_kind is TargetKind.MAILBOX else f"hook:{self.id}"

    @property
    def test_mailbox(self) -> str:
        """Where a test goes: a separate mailbox, so that it does not wait behind other letters."""
        return self.target if self.target_kind is TargetKind.MAILBOX else f"hook:{self.id}:test"


MAX_TARGET = 4_096
SHELL_OPERATORS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "<<", "2>", "2>>", "2>&1"})


def check_target(kind: TargetKind, target: str) -> str:
    """Return a valid target for its kind; raises Invalid."""
    if kind is TargetKind.DESKTOP:
        if target:
            raise Invalid("The desktop takes no target. Omit it.", target=target)
        return target
    check_text(target, f"The {kind}", max_bytes=MAX_TARGET)
    if kind is TargetKind.WEBHOOK:
        _check_url(target)
    elif kind is TargetKind.COMMAND:
        _check_command(target)
    return target


def _check_url(target: str) -> None:
    if target.startswith("secret:"):
        return
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(target)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        good, secret = False, False
    if not good or not target.isprintable() or " " in target:
        raise Invalid(
            "A webhook must be an http:// or https:// URL, or secret:NAME when the URL itself is "
            "secret (`corral secret set NAME …`).",
        )
    if secret:
        # The message does not repeat the URL, which contains a password.
        raise Invalid(
            "The URL contains a password. Store the URL as a secret (`corral secret set NAME …`) "
            "and give secret:NAME."
        )


def _check_command(target: str) -> None:
    for word in split_command(target):
        if word in SHELL_OPERATORS:
            raise Invalid(
                f"The command is not run by a shell, so {word} has no effect. Use sh -c '…'.",
                target=target,
                reason="shell_syntax",
            )
