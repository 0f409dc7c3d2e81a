"""Who hears a message, and why: a pure function of the message and the wirings."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from corral.domain.chat.inbound.regex import compiled
from corral.domain.chat.model import Mode, Route, Scope, Trigger, Wiring


class Said(NamedTuple):
    """What routing needs to know of a message."""

    text: str
    direct: bool
    """One person and the agents: nobody else could be meant."""
    mentioned: bool
    """The platform says that our account was addressed."""
    known: bool
    """Whether we know who says it."""


_NAMED = re.compile(r"(?:^|[^\w@])@([\w.-]{1,100})")


def route(
    said: Said,
    wirings: Sequence[Wiring],
    *,
    names: Mapping[str, str],
    followed: Collection[str] = (),
) -> list[Route]:
    """What each wiring makes of a message, highest priority first.

    `names` are the names of the agents that can be given work, by their ids; `followed` the agents
    that were addressed in this thread before. An agent that two wirings would wake hears it once,
    by the first of them.
    """
    called = (
        {name.lower().rstrip(".") for name in _NAMED.findall(said.text)}
        if "@" in said.text
        else set()
    )
    ours = {name.lower() for name in names.values()}
    someone = bool(called & ours)
    heard: set[str] = set()
    routes: list[Route] = []
    for wiring in sorted(wirings, key=lambda each: (-each.priority, each.id)):
        if wiring.agent_id not in names:
            routes.append(Route(wiring.id, wiring.agent_id, False, "it is retired"))
            continue
        name = names[wiring.agent_id].lower()
        # Where one is called by name, the others are not meant.
        meant = name in called if someone else said.mentioned or said.direct
        hears, why = _judge(said, wiring, meant, wiring.agent_id in followed)
        if hears and wiring.agent_id in heard:
            hears, why = False, "another wiring has told it already"
        if hears:
            heard.add(wiring.agent_id)
        routes.append(Route(wiring.id, wiring.agent_id, hears, why))
    return routes


def _judge(said: Said, wiring: Wiring, meant: bool, followed: bool) -> tuple[bool, str]:
    if wiring.scope is Scope.KNOWN and not said.known:
        return False, "it listens to people we know alone"
    pattern = wiring.pattern or ""
    match wiring.trigger:
        case Trigger.ALWAYS:
            return True, "it hears everything here"
        case Trigger.MENTION:
            return meant, "it was addressed" if meant else "it was not addressed"
        case Trigger.STICKY if meant:
            return True, "it was addressed"
        case Trigger.STICKY:
            return followed, "it was addressed here before" if followed else "it was not addressed"
        case Trigger.PATTERN:
            fits = compiled(pattern).found_in(said.text)
            return fits, f"the words {'fit' if fits else 'do not fit'} {pattern!r}"
    fits = command_of(said.text) == pattern.lower()
    return fits, f"the command {'is' if fits else 'is not'} /{pattern}"


_COMMAND = re.compile(r"\s*/([a-z][a-z0-9_-]{0,40})(?:@[\w.-]+)?(?=\s|$)", re.ASCII | re.IGNORECASE)


def command_of(text: str) -> str | None:
    """The command that a text begins with, without its slash; None: it is none."""
    found = _COMMAND.match(text)
    return found[1].lower() if found else None


def seat(wiring: Wiring, place_id: str, thread: str | None) -> tuple[str, str]:
    """The chat and thread by which a wiring's session is found; empty: all of them."""
    if wiring.mode is Mode.AGENT:
        return "", ""
    return place_id, (thread or "") if wiring.mode is Mode.THREAD else ""
