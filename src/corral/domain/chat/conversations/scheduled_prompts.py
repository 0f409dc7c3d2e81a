"""Tasks: what an agent is given to do by the clock, in a session that is woken for it."""

from typing import Any

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.chat.channels import ops, wirings
from corral.domain.chat.conversations import turns
from corral.domain.chat.model import Place, Talk
from corral.domain.projects import ops as projects
from corral.domain.schedules import ops as schedules
from corral.domain.schedules.model import Schedule
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import SessionState
from corral.kernel.errors import Invalid, Refused
from corral.kernel.text import MAX_TEXT, abridged, check_int, clean_text

MAX_TITLE = 60


def add_task(
    tx: Tx,
    agent: str,
    text: str,
    *,
    every_ms: int | None = None,
    cron: str | None = None,
    at: int | None = None,
    delay_ms: int | None = None,
    time_zone: str = "UTC",
    place: str | None = None,
    session: str | None = None,
    script: str | None = None,
    script_ms: int | None = None,
    misfire: str = "latest",
    overlap: str = "skip",
    priority: int = 0,
    name: str | None = None,
    project: str | None = None,
) -> Schedule:
    """Give an agent something to do by the clock: a run is started, or its conversation resumed,
    with this text. Once, at the moment `at` or after `delay_ms`; or again and again.

    It is answered in `place`, which the agent must hold as a destination and where it has its
    session, or goes on in `session`; without either the task has a session of its own, whose turns
    keep the answers. A `script` is run first: it says whether the agent is woken, and what it
    prints is told with the text. The other options are those of a schedule.
    """
    if sum(given is not None for given in (every_ms, cron, at, delay_ms)) != 1:
        raise Invalid("Say when it runs, in one way: --in, --at, --every or --cron.")
    if delay_ms is not None:
        at = tx.now + check_int(delay_ms, "The delay")
    whose = agents.get(tx, agent)
    if whose.state is not AgentState.ACTIVE:
        raise Refused(f"{whose.name} is retired; restore it, or take another.", agent_id=whose.id)
    if place is not None and session is not None:
        raise Invalid(
            "A task is answered in a place, or goes on in a session; give one of them.",
            reason="place_or_session",
        )
    where = _place(tx, whose, place) if place is not None else None
    words = clean_text(text, "The text", most=MAX_TEXT)
    called = name or abridged(tx.without_secrets(words), MAX_TITLE)
    project_id = projects.get(tx, project).id if project else None
    talk = _talk(tx, whose, where, session, called, project_id)
    body: dict[str, Any] = {"text": text}
    if where is not None:
        body["place"] = where.id
    return schedules.create_schedule(
        tx,
        talk.mailbox,
        body,
        every_ms=every_ms,
        cron=cron,
        at=at,
        time_zone=time_zone,
        misfire=misfire,
        overlap=overlap,
        priority=priority,
        name=name,
        project=project_id,
        script=script,
        script_ms=script_ms,
        sender=where.mailbox if where is not None else None,
    )


def _place(tx: Tx, agent: Agent, named: str) -> Place:
    where = ops.get_place(tx, named)
    if wirings.destination_of(tx, agent.id, where.id) is None:
        raise Refused(
            f"{agent.name} may not send to {where.called}; let it with `corral destination grant "
            f"{agent.name} {where.id}`.",
            agent_id=agent.id,
            place=where.id,
            reason="destination_not_granted",
        )
    return where


def _talk(
    tx: Tx, agent: Agent, where: Place | None, session: str | None, title: str, project: str | None
) -> Talk:
    """The session that is woken: the one that the agent has in the place, the one that was named,
    or a new one."""
    if where is not None:
        found = [each for each in wirings.wirings_of(tx, where) if each.agent_id == agent.id]
        if found:
            return turns.sit_down(tx, found[0], where, None)
        return turns.take_seat(tx, agent.id, where, where.id, "", project=project)
    if session is None:
        made = sessions.open_session(tx, agent.id, project=project, title=title)
        return turns.begin_talk(tx, made, "", made.id)
    named = sessions.get(tx, session)
    if named.agent_id != agent.id or named.state is not SessionState.OPEN:
        raise Refused(
            f"{named.id} is no open session of {agent.name}; `corral session list` shows them.",
            session=named.id,
            reason="unknown_session",
        )
    return turns.talk_of(tx, named.id) or turns.begin_talk(tx, named, "", named.id)
