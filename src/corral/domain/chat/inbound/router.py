"""Route a message: decide which wirings wake their agents, and why.

Pure functions of the message and the wirings, without access to the store.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from corral.domain.chat.model import Route, Trigger, Wiring, WiringScope
from corral.domain.chat.patterns import compile_pattern


class RoutingInput(NamedTuple):
    """The properties of a message that routing depends on."""

    text: str
    direct: bool
    """The chat has one person and the agents, so every message addresses the agents."""
    mentioned: bool
    """The platform reports that our account was mentioned."""
    is_known: bool
    """Whether the sender is a known person."""


_MENTION = re.compile(r"(?:^|[^\w@])@([\w.-]{1,100})")


def route_message(
    message: RoutingInput,
    wirings: Sequence[Wiring],
    *,
    names: Mapping[str, str],
    followed: Collection[str] = (),
) -> list[Route]:
    """Return one route for each wiring, highest priority first.

    `names` has the names of the active agents by their ids; `followed` the agents that were
    addressed in this thread before. When several wirings would wake the same agent, only the first
    one does.
    """
    mentions = (
        {name.lower().rstrip(".") for name in _MENTION.findall(message.text)}
        if "@" in message.text
        else set()
    )
    mentions_an_agent = bool(mentions & {name.lower() for name in names.values()})
    routes: list[Route] = []
    woken: set[str] = set()
    for wiring in sorted(wirings, key=lambda candidate: (-candidate.priority, candidate.id)):
        name = names.get(wiring.agent_id)
        if name is None:
            routes.append(
                Route(wiring.id, wiring.agent_id, wakes=False, reason="the agent is retired")
            )
            continue
        # A mention of one agent by name is not meant for the others.
        addressed = (
            name.lower() in mentions if mentions_an_agent else message.mentioned or message.direct
        )
        wakes, reason = _match(
            message, wiring, addressed=addressed, followed=wiring.agent_id in followed
        )
        if wakes and wiring.agent_id in woken:
            wakes, reason = False, "another wiring of the agent matched first"
        if wakes:
            woken.add(wiring.agent_id)
        routes.append(Route(wiring.id, wiring.agent_id, wakes=wakes, reason=reason))
    return routes


def _match(
    message: RoutingInput, wiring: Wiring, *, addressed: bool, followed: bool
) -> tuple[bool, str]:
    """Return whether a wiring wakes its agent, and the reason."""
    if wiring.scope is WiringScope.KNOWN and not message.is_known:
        return False, "the wiring is for known people only"
    pattern = wiring.pattern or ""
    match wiring.trigger:
        case Trigger.ALWAYS:
            return True, "the wiring matches every message"
        case Trigger.MENTION:
            return addressed, _explain_addressed(addressed)
        case Trigger.STICKY if addressed:
            return True, _explain_addressed(True)
        case Trigger.STICKY:
            if followed:
                return True, "the agent was addressed here before"
            return False, _explain_addressed(False)
        case Trigger.PATTERN:
            matches = compile_pattern(pattern).found_in(message.text)
            return matches, f"the text {'matches' if matches else 'does not match'} {pattern!r}"
        case Trigger.COMMAND:
            matches = parse_command(message.text) == pattern.lower()
            return matches, f"the command {'is' if matches else 'is not'} /{pattern}"
    raise AssertionError(wiring.trigger)


def _explain_addressed(addressed: bool) -> str:
    return "the agent was addressed" if addressed else "the agent was not addressed"


_COMMAND = re.compile(r"\s*/([a-z][a-z0-9_-]{0,40})(?:@[\w.-]+)?(?=\s|$)", re.ASCII | re.IGNORECASE)


def parse_command(text: str) -> str | None:
    """Return the command that a text begins with, without its slash, or None."""
    match = _COMMAND.match(text)
    return match[1].lower() if match else None
