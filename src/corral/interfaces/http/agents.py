"""What an agent's own token may do: its mail, timers, conversations and locks, and know itself.

An agent may be hostile, and so may be whatever talked it into something. Nothing that it sends is
taken for who it is: its mailboxes and sessions are looked up, and what it signs is signed with its
own name. Whatever is not in the table is refused.
"""

from collections.abc import Callable
from typing import Any

from corral.kernel.errors import Refused
from corral.library import Corral
from corral.library.calls import Call
from corral.library.tokens import Who

Arguments = dict[str, Any]
Rule = Callable[[Corral, Who, Arguments], object]


def check(store: Corral, who: Who, call: Call, arguments: Arguments) -> None:
    """Refused unless the agent may make this call with these arguments, some of which are put in
    its name."""
    rule = RULES.get(call.name)
    if rule is None:
        raise Refused(
            f"An agent's token may not call {call.name}; see /api/docs for what it may.",
            call=call.name,
        )
    rule(store, who, arguments)


def _own_mailbox(store: Corral, who: Who, arguments: Arguments) -> None:
    _check_mailbox(store, who, str(arguments["mailbox"]))


def _check_mailbox(store: Corral, who: Who, mailbox: str) -> None:
    kind, _, name = mailbox.partition(":")
    if mailbox == f"agent:{who.agent}":
        return
    if kind == "session" and _owns(store, who, name):
        return
    raise Refused(f"{mailbox} is not a mailbox of {who.agent}.", mailbox=mailbox)


def _own_letter(store: Corral, who: Who, arguments: Arguments) -> None:
    letter = store.mail.get(arguments.get("letter") or arguments["id"])
    _check_mailbox(store, who, letter.mailbox)


def _claiming(store: Corral, who: Who, arguments: Arguments) -> None:
    if "mailbox" in arguments:
        _own_mailbox(store, who, arguments)
    else:
        _own_letter(store, who, arguments)
    arguments["owner"] = f"{who.actor}:{arguments['owner']}"


def _writing(store: Corral, who: Who, arguments: Arguments) -> None:
    mailbox = str(arguments["mailbox"])
    if mailbox.partition(":")[0] not in ("agent", "session", "user", "queue"):
        raise Refused(f"An agent may not put letters into {mailbox}.", mailbox=mailbox)
    arguments["sender"] = who.actor
    if arguments.get("key"):
        # A key that was seen gives back that first letter, which may be another's.
        arguments["key"] = f"{who.actor}:{arguments['key']}"


def _own_session(store: Corral, who: Who, arguments: Arguments) -> None:
    if not _owns(store, who, arguments["session"]):
        raise Refused(f"{arguments['session']} is not a session of {who.agent}.")


def _owns(store: Corral, who: Who, session: str) -> bool:
    return store.sessions.get(session).agent_id == who.scope.removeprefix("agent:")


def _appending(store: Corral, who: Who, arguments: Arguments) -> None:
    _own_session(store, who, arguments)
    arguments["agent"] = who.agent


def _itself(store: Corral, who: Who, arguments: Arguments) -> None:
    if store.agents.get(arguments["agent"]).id != who.scope.removeprefix("agent:"):
        raise Refused(f"{who.agent} may ask about itself alone.")


def _own_sessions(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["agent"] = who.agent


def _in_its_name(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["agent"] = who.agent
    arguments.pop("run", None)  # another's run would renew it, or end it


def _looking(store: Corral, who: Who, arguments: Arguments) -> None:
    """Who holds what is for everybody to see: that is what locks are for."""


RULES: dict[str, Rule] = {
    "agents.allows": _itself,
    "agents.get": _itself,
    "agents.grants": _itself,
    "guard.in_the_way": _in_its_name,
    "locks.acquire": _in_its_name,
    "locks.get": _looking,
    "locks.holders": _looking,
    "locks.list": _looking,
    "locks.release": _in_its_name,
    "locks.renew": _in_its_name,
    "locks.request": _in_its_name,
    "locks.touch": _in_its_name,
    "locks.touches": _looking,
    "locks.wait": _looking,
    "mail.ack": _own_letter,
    "mail.ack_and_claim": _claiming,
    "mail.claim": _claiming,
    "mail.doubt": _own_letter,
    "mail.fail": _own_letter,
    "mail.get": _own_letter,
    "mail.next_due": _own_mailbox,
    "mail.put": _writing,
    "mail.refuse": _own_letter,
    "mail.renew": _own_letter,
    "sessions.append": _appending,
    "sessions.context": _own_session,
    "sessions.get": _own_session,
    "sessions.list": _own_sessions,
    "sessions.set_state": _own_session,
    "sessions.state": _own_session,
    "sessions.turns": _own_session,
    "timers.set": _own_mailbox,
}
