"""What people tell Corral itself in a place, and who may: /clear, /status, /stop, /cost, /help."""

from collections.abc import Callable

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.charges import ops as charges
from corral.domain.chat.conversations import turns
from corral.domain.chat.model import Person, Place, Role, Talk
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run
from corral.domain.sessions import context as sessions
from corral.kernel.errors import NotFound
from corral.kernel.money import format_usd

# Who may: None is everybody who is heard at all. In a direct place it is one's own talk, so that
# everybody we know may do everything there.
KNOWN: dict[str, tuple[Role | None, str]] = {
    "help": (None, "what can be said here"),
    "status": (Role.MEMBER, "which agents listen here, and what they do"),
    "cost": (Role.MEMBER, "what this talk has cost"),
    "clear": (Role.ADMIN, "let the agents here start afresh"),
    "stop": (Role.ADMIN, "stop what the agents here are doing"),
}
_RANK = {Role.MEMBER: 1, Role.ADMIN: 2, Role.OWNER: 3}


def run(
    tx: Tx, name: str, place: Place, thread: str | None, who: Person | None
) -> tuple[bool, str]:
    """Do what a command says, if whoever says it may; whether that was so, and what to answer."""
    needed, _ = KNOWN[name]
    if not _may(needed, place, who):
        return False, f"/{name} is for those who are at least {needed} here."
    talks = [
        talk
        for talk in turns.talks_of_place(tx, place.id)
        if not thread or talk.thread in ("", thread)
    ]
    return True, _DO[name](tx, talks)


def _may(needed: Role | None, place: Place, who: Person | None) -> bool:
    if needed is None:
        return True
    return who is not None and (place.direct or _RANK[who.role] >= _RANK[needed])


def _help(tx: Tx, talks: list[Talk]) -> str:
    return "\n".join(f"/{name}: {what}" for name, (_, what) in KNOWN.items())


def _status(tx: Tx, talks: list[Talk]) -> str:
    if not talks:
        return "No agent has been spoken to here yet."
    return "\n".join(_one(tx, talk) for talk in talks)


def _one(tx: Tx, talk: Talk) -> str:
    name = agents.get(tx, talk.agent_id).name
    run = _run_of(tx, talk)
    what = f"{run.state} ({run.id})" if run is not None else "waits for you"
    return f"{name}: {what}, {talk.session_id}"


def _cost(tx: Tx, talks: list[Talk]) -> str:
    totals = [charges.total(tx, f"session:{talk.session_id}") for talk in talks]
    known = [total.cost_micros for total in totals if total.cost_micros is not None]
    tokens = sum(total.tokens for total in totals)
    money = format_usd(sum(known)) if known else "an unknown amount"
    return f"{tokens:,} tokens, {money}." if tokens or known else "Nothing was used yet."


def _clear(tx: Tx, talks: list[Talk]) -> str:
    for talk in talks:
        sessions.clear(tx, talk.session_id)
    return "What was said before is forgotten; go ahead." if talks else "There is nothing to clear."


def _stop(tx: Tx, talks: list[Talk]) -> str:
    stopped = []
    for talk in talks:
        going = _run_of(tx, talk)
        if going is not None:
            runs.stop(tx, going.id, reason=f"/stop by {tx.actor}")
            stopped.append(agents.get(tx, talk.agent_id).name)
    return f"{', '.join(stopped)} is told to stop." if stopped else "Nobody is doing anything here."


def _run_of(tx: Tx, talk: Talk) -> Run | None:
    if talk.run_id is None:
        return None
    try:
        found = runs.get(tx, talk.run_id)
    except NotFound:
        return None
    return found if found.is_live else None


_DO: dict[str, Callable[[Tx, list[Talk]], str]] = {
    "help": _help,
    "status": _status,
    "cost": _cost,
    "clear": _clear,
    "stop": _stop,
}
