"""Scheduled prompts: texts that a schedule sends to an agent as letters."""

from typing import Any

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent
from corral.domain.chat.channels import destinations, places, wirings
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.model import Conversation, ConversationKey, Place
from corral.domain.projects import ops as projects
from corral.domain.schedules import ops as schedules
from corral.domain.schedules.model import Schedule
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import SessionState
from corral.kernel.display_text import shorten
from corral.kernel.errors import Invalid, Refused
from corral.kernel.validation import MAX_TEXT, check_int, check_text

MAX_TITLE = 60


def add_scheduled_prompt(
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
    script_timeout_ms: int | None = None,
    misfire: str = "latest",
    overlap: str = "skip",
    priority: int = 0,
    name: str | None = None,
    project: str | None = None,
) -> Schedule:
    """Schedule a prompt for an agent: once (`at`, `delay_ms`) or repeatedly (`every_ms`, `cron`).

    Each occurrence starts a run, or resumes the agent's conversation, with this text. The answer
    goes to `place`, which the agent must have as a destination, or to `session`. Without both, the
    schedule has its own session, whose turns keep the answers. A `script` is run first: it decides
    whether the agent is woken, and its output is added to the prompt. The other options are those
    of a schedule.
    """
    if sum(option is not None for option in (every_ms, cron, at, delay_ms)) != 1:
        raise Invalid("Give exactly one of --in, --at, --every and --cron.")
    if delay_ms is not None:
        at = tx.now + check_int(delay_ms, "The delay")
    holder = agents.get_active(tx, agent)
    if place is not None and session is not None:
        raise Invalid(
            "Give a place or a session for the answers, not both.", reason="place_or_session"
        )
    target = _get_destination_place(tx, holder, place) if place is not None else None
    prompt = check_text(text, "The text", max_bytes=MAX_TEXT)
    title = name or shorten(tx.without_secrets(prompt), MAX_TITLE)
    project_id = projects.get(tx, project).id if project else None
    conversation = _open_conversation(tx, holder, target, session, title, project_id)
    body: dict[str, Any] = {"text": text}
    if target is not None:
        body["place"] = target.id
    return schedules.create_schedule(
        tx,
        conversation.mailbox,
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
        script_timeout_ms=script_timeout_ms,
        sender=target.mailbox if target is not None else None,
    )


def _get_destination_place(tx: Tx, agent: Agent, ref: str) -> Place:
    place = places.get_place(tx, ref)
    if destinations.find_granted(tx, agent.id, place.id) is None:
        raise Refused(
            f"{agent.name} may not send to {place.display_name}. Allow it with "
            f"`corral destination grant {agent.name} {place.id}`.",
            agent_id=agent.id,
            place=place.id,
            reason="destination_not_granted",
        )
    return place


def _open_conversation(
    tx: Tx,
    agent: Agent,
    place: Place | None,
    session: str | None,
    title: str,
    project: str | None,
) -> Conversation:
    """Return the conversation to wake: the one in the place, the named one, or a new one."""
    if place is not None:
        wirings_here = [
            wiring for wiring in wirings.list_covering(tx, place) if wiring.agent_id == agent.id
        ]
        if wirings_here:
            return conversations.open_for_wiring(tx, wirings_here[0], place, None)
        return conversations.open_for_place(
            tx, agent.id, place, ConversationKey(place.id, ""), project=project
        )
    if session is None:
        opened = sessions.open_session(tx, agent.id, project=project, title=title)
        return conversations.create_conversation(tx, opened, ConversationKey("", opened.id))
    named = sessions.get(tx, session)
    if named.agent_id != agent.id or named.state is not SessionState.OPEN:
        raise Refused(
            f"{named.id} is not an open session of {agent.name}. List sessions with "
            "`corral session list`.",
            session=named.id,
            reason="unknown_session",
        )
    existing = conversations.find_conversation(tx, named.id)
    return existing or conversations.create_conversation(tx, named, ConversationKey("", named.id))
