"""An alert says what is to be told, and how: by webhook, command, desktop or mailbox.

What is told is a letter in the alert's own mailbox, so it is retried, kept and visible.
"""

from enum import StrEnum

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.states import Moves, move
from corral.kernel.text import clean_text, command_words


class AlertState(StrEnum):
    ACTIVE = "active"  # it tells what it was asked to
    REMOVED = "removed"  # nothing is told any more


S = AlertState
MOVES = Moves(
    "alert",
    AlertState,
    begin="add",
    initial=S.ACTIVE,
    verbs={"remove": move(S.ACTIVE, to=S.REMOVED)},
)


class Kind(StrEnum):
    CRASHED = "crashed"  # a run vanished, or was ended by a signal that nobody here sent
    FAILED = "failed"  # a run ended badly, or its time was over; so did a schedule's script
    STUCK = "stuck"  # a run says that it works, and nothing comes
    NEEDS_INPUT = "needs_input"  # a run asks, and nobody has answered
    BUDGET = "budget"  # a budget is spent
    FINISHED = "finished"  # a run ended well
    UNDELIVERED = "undelivered"  # a message of a channel was not answered, or did not arrive


class Target(StrEnum):
    WEBHOOK = "webhook"  # a POST to a URL
    COMMAND = "command"  # a program that gets it on its standard input
    DESKTOP = "desktop"  # a notification on this machine's screen
    MAILBOX = "mailbox"  # a letter to an agent, a person or a queue


class Alert(msgspec.Struct, frozen=True):
    id: str
    state: AlertState
    kinds: list[str]
    project_id: str | None
    agent_id: str | None
    target_kind: Target
    target: str
    secret: str | None
    """The name of the secret that a webhook is signed with."""
    created_at: int
    created_by: str
    ended_at: int | None

    @property
    def mailbox(self) -> str:
        """Where its letters go: its own, from which the courier takes them, or the target's."""
        return self.target if self.target_kind is Target.MAILBOX else f"hook:{self.id}"

    @property
    def test_mailbox(self) -> str:
        """Where a test goes: beside the line, so that nothing that waits is in its way."""
        return self.target if self.target_kind is Target.MAILBOX else f"hook:{self.id}:test"


MAX_TARGET = 4_096
SHELL_WORDS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "<<", "2>", "2>>", "2>&1"})


def check_target(kind: Target, target: str) -> str:
    if kind is Target.DESKTOP:
        if target:
            raise Invalid("The desktop needs no target; leave it out.", target=target)
        return target
    clean_text(target, f"The {kind}", most=MAX_TARGET)
    if kind is Target.WEBHOOK:
        _check_url(target)
    elif kind is Target.COMMAND:
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
            "A webhook is a URL that begins with http:// or https://, or secret:NAME when the URL "
            "itself is secret (`corral secret set NAME …`).",
        )
    if secret:
        # Not repeated: it holds a password.
        raise Invalid(
            "The URL holds a password, and none is stored; keep the URL as a secret "
            "(`corral secret set NAME …`) and give secret:NAME."
        )


def _check_command(target: str) -> None:
    for word in command_words(target):
        if word in SHELL_WORDS:
            raise Invalid(
                f"No shell reads the command, so {word} would be a word like any other; "
                "write sh -c '…' around it.",
                target=target,
                reason="shell_syntax",
            )
