"""What the host can do for agents: each action says in words what it would do, and does it.

The words are all that is shown to those who decide, so they leave nothing out that is done.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent
from corral.domain.chat.channels import ops as gateway
from corral.domain.chat.channels import wirings
from corral.domain.chat.conversations import scheduled_prompts, turns
from corral.domain.chat.model import check_word
from corral.domain.host_requests.model import (
    Arguments,
    ChangeTask,
    CreateAgent,
    GiveSecret,
    GrantDestination,
    ScheduleTask,
)
from corral.domain.schedules import ops as schedules
from corral.domain.schedules.occurrences import check_script
from corral.domain.schedules.recurrence import check_cron, check_every, zone
from corral.domain.sessions import ops as sessions
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.text import MAX_TEXT, clean_text

MAX_REASON = 2_000


class Asking(NamedTuple):
    """Who asks, and where."""

    agent: Agent
    session_id: str | None


# -- the actions: what each would do, in words, and doing it --------------------------------------


def _about_agent(tx: Tx, who: Asking, given: CreateAgent) -> str:
    agents.check_name(given.name)
    try:
        found = agents.get(tx, given.name)
    except NotFound:
        pass
    else:
        raise Conflict(
            f"There is an agent {given.name} already ({found.id}).",
            id=found.id,
            reason="name_taken",
        )
    clean_text(given.instructions, "The instructions", most=MAX_TEXT)
    like = who.agent
    return (
        f"An agent {given.name} is created, which runs as {like.name} does "
        f"({like.command or like.provider or 'the default command'}, model "
        f"{given.model or like.model or 'as it comes'}, role {given.role or 'none'}"
        f"{_boxed_too(tx, who)}), with these instructions:\n{given.instructions}"
    )


def _box_of(tx: Tx, who: Asking) -> str:
    """What keeps the agent in a box where it asks; off: nothing does."""
    session = sessions.get(tx, who.session_id) if who.session_id else None
    project = session.project_id if session is not None else None
    return str(settings.value(tx, "gateway.sandbox", agent=who.agent.name, project=project))


def _boxed_too(tx: Tx, who: Asking) -> str:
    by = _box_of(tx, who)
    return "" if by == "off" else f", boxed as that is: {by}"


def _create_agent(tx: Tx, who: Asking, given: CreateAgent) -> dict[str, Any]:
    like = who.agent
    made = agents.create(
        tx,
        given.name,
        provider=like.provider,
        command=like.command,
        role=given.role,
        model=given.model or like.model,
        instructions=given.instructions,
        limits=like.limits,
    )
    if (by := _box_of(tx, who)) != "off":  # else it would be a way out of the box
        settings.set_value(tx, "gateway.sandbox", by, scope=f"agent:{made.name}")
    return {"agent": made.name, "agent_id": made.id}


def _about_task(tx: Tx, who: Asking, given: ScheduleTask) -> str:
    clean_text(given.text, "The text", most=MAX_TEXT)
    zone(given.time_zone)
    check_script(given.script, None)
    if given.script and _box_of(tx, who) != "off":
        raise Refused(
            f"{who.agent.name} is boxed, and a script would run outside of its box; leave it out.",
            reason="sandboxed",
        )
    if (given.cron is None) == (given.every_seconds is None):
        raise Invalid("Say when: cron, or every_seconds.")
    if given.cron is not None:
        when = f"by the rule {check_cron(given.cron, given.time_zone, tx.now)} ({given.time_zone})"
    else:
        check_every((given.every_seconds or 0) * 1_000)
        when = f"every {given.every_seconds} s"
    first = f"\nBefore that, this is run on the host:\n{given.script}" if given.script else ""
    return f"{who.agent.name} is woken {when}, with this text:\n{given.text}{first}"


def _schedule_task(tx: Tx, who: Asking, given: ScheduleTask) -> dict[str, Any]:
    where = turns.address(tx, who.session_id) if who.session_id else None
    seat = {"place": where.place.id} if where else {"session": who.session_id}
    every = given.every_seconds * 1_000 if given.every_seconds is not None else None
    made = scheduled_prompts.add_task(
        tx,
        who.agent.id,
        given.text,
        cron=given.cron,
        every_ms=every,
        time_zone=given.time_zone,
        script=given.script,
        name=given.name,
        **seat,
    )
    return {"task": made.id, "next_at": made.next_at}


def _about_change(tx: Tx, who: Asking, given: ChangeTask) -> str:
    found = schedules.get(tx, given.task)
    session = found.mailbox.removeprefix("session:")
    if session == found.mailbox or sessions.get(tx, session).agent_id != who.agent.id:
        raise Refused(f"{found.id} is no task of {who.agent.name}.", id=found.id)
    return f"The task {found.id} of {who.agent.name} is changed: {given.verb}."


def _change_task(tx: Tx, who: Asking, given: ChangeTask) -> dict[str, Any]:
    id = schedules.get(tx, given.task).id
    if given.verb == "run":
        return {"task": id, "letter": schedules.run(tx, id).id}
    verbs = {"pause": schedules.pause, "resume": schedules.resume, "cancel": schedules.cancel}
    changed = verbs[given.verb](tx, id)
    return {"task": id, "state": changed.state, "next_at": changed.next_at}


def _about_destination(tx: Tx, who: Asking, given: GrantDestination) -> str:
    where = gateway.get_place(tx, given.place)
    if given.name:
        check_word(given.name, "The name")
    channel = gateway.get_channel(tx, where.channel_id)
    return (
        f"{who.agent.name} may send to {where.called} ({where.id}) on the channel {channel.name}, "
        "at any time."
    )


def _grant_destination(tx: Tx, who: Asking, given: GrantDestination) -> dict[str, Any]:
    made = wirings.grant(tx, who.agent.id, given.place, name=given.name)
    return {"destination": made.name, "place": made.place_id}


def _about_secret(tx: Tx, who: Asking, given: GiveSecret) -> str:
    settings.check_secret_name(given.name)
    clean_text(given.reason, "The reason", most=MAX_REASON)
    return (
        "Never type it into a chat. Give it in the form that the dashboard has for it, or where "
        f"the store is: `corral secret set {given.name} --keep file` asks for it, `corral secret "
        f"set {given.name} REFERENCE` says where it is. "
        f"{who.agent.name} learns that it is there, and not what it is."
    )


class Action(NamedTuple):
    takes: type[Arguments]
    subject: str
    """The argument that a grant may name: `host:create_agent(helper-*)`."""
    asks: str
    about: Callable[[Tx, Asking, Any], str]
    do: Callable[[Tx, Asking, Any], dict[str, Any]] | None
    is_own: bool = False
    """Whether it concerns the agent's own things alone, so that nobody has to allow it."""


ACTIONS = {
    "create_agent": Action(
        CreateAgent, "name", "create the agent {name}", _about_agent, _create_agent
    ),
    "schedule_task": Action(
        ScheduleTask, "name", "be woken by the clock", _about_task, _schedule_task
    ),
    "change_task": Action(
        ChangeTask, "task", "{verb} its task {task}", _about_change, _change_task, is_own=True
    ),
    "destination": Action(
        GrantDestination, "place", "send to {place}", _about_destination, _grant_destination
    ),
    "secret": Action(GiveSecret, "name", "have the secret {name}", _about_secret, None),
}
