"""The actions of the host that agents can request.

Each action has a function that validates the arguments and describes the effect, and one that
carries it out. Approvers see only the description, so it must be complete.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent
from corral.domain.chat.channels import destinations, places
from corral.domain.chat.channels import ops as channels
from corral.domain.chat.conversations import replies, scheduled_prompts
from corral.domain.chat.model import check_name
from corral.domain.host_requests.model import (
    ActionArguments,
    ChangeScheduledPrompt,
    CreateAgent,
    GiveSecret,
    GrantDestination,
    SchedulePrompt,
)
from corral.domain.schedules import ops as schedules
from corral.domain.schedules.occurrences import check_script
from corral.domain.schedules.recurrence import check_cron, check_every, load_zone
from corral.domain.sessions import ops as sessions
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.validation import MAX_TEXT, check_text

MAX_REASON = 2_000


class Requester(NamedTuple):
    """The agent that makes a request, and its session."""

    agent: Agent
    session_id: str | None


# -- the actions ----------------------------------------------------------------------------------


def _describe_agent(tx: Tx, requester: Requester, args: CreateAgent) -> str:
    agents.check_name(args.name)
    try:
        existing = agents.get(tx, args.name)
    except NotFound:
        pass
    else:
        raise Conflict(
            f"An agent named {args.name} already exists ({existing.id}). Choose another name.",
            id=existing.id,
            reason="name_taken",
        )
    check_text(args.instructions, "The instructions", max_bytes=MAX_TEXT)
    template = requester.agent
    return (
        f"Create the agent {args.name}, which runs like {template.name} "
        f"({template.command or template.provider or 'the default command'}, model "
        f"{args.model or template.model or 'default'}, role {args.role or 'none'}"
        f"{_describe_sandbox(tx, requester)}), with these instructions:\n{args.instructions}"
    )


def _find_sandbox(tx: Tx, requester: Requester) -> str:
    """Return the sandbox setting of the requester; off: no sandbox."""
    session = sessions.get(tx, requester.session_id) if requester.session_id else None
    project = session.project_id if session is not None else None
    return str(settings.get_value(tx, "chat.sandbox", agent=requester.agent.name, project=project))


def _describe_sandbox(tx: Tx, requester: Requester) -> str:
    tool = _find_sandbox(tx, requester)
    return "" if tool == "off" else f", in the same sandbox: {tool}"


def _create_agent(tx: Tx, requester: Requester, args: CreateAgent) -> dict[str, Any]:
    template = requester.agent
    created = agents.create(
        tx,
        args.name,
        provider=template.provider,
        command=template.command,
        role=args.role,
        model=args.model or template.model,
        instructions=args.instructions,
        limits=template.limits,
    )
    if (tool := _find_sandbox(tx, requester)) != "off":  # a new agent must not escape the sandbox
        settings.set_value(tx, "chat.sandbox", tool, scope=f"agent:{created.name}")
    return {"agent": created.name, "agent_id": created.id}


def _describe_scheduled_prompt(tx: Tx, requester: Requester, args: SchedulePrompt) -> str:
    check_text(args.text, "The text", max_bytes=MAX_TEXT)
    load_zone(args.time_zone)
    check_script(args.script, None)
    if args.script and _find_sandbox(tx, requester) != "off":
        raise Refused(
            f"{requester.agent.name} is sandboxed, and a script would run outside. Omit it.",
            reason="sandboxed",
        )
    if (args.cron is None) == (args.every_seconds is None):
        raise Invalid("Give either cron or every_seconds.")
    if args.cron is not None:
        when = (
            f"by the cron rule {check_cron(args.cron, args.time_zone, tx.now)} ({args.time_zone})"
        )
    else:
        check_every((args.every_seconds or 0) * 1_000)
        when = f"every {args.every_seconds} s"
    first = f"\nEach time, run this script on the host first:\n{args.script}" if args.script else ""
    return f"Wake {requester.agent.name} {when} with this text:\n{args.text}{first}"


def _add_scheduled_prompt(tx: Tx, requester: Requester, args: SchedulePrompt) -> dict[str, Any]:
    address = replies.find_reply_address(tx, requester.session_id) if requester.session_id else None
    target = {"place": address.place.id} if address else {"session": requester.session_id}
    every = args.every_seconds * 1_000 if args.every_seconds is not None else None
    created = scheduled_prompts.add_scheduled_prompt(
        tx,
        requester.agent.id,
        args.text,
        cron=args.cron,
        every_ms=every,
        time_zone=args.time_zone,
        script=args.script,
        name=args.name,
        **target,
    )
    return {"schedule": created.id, "next_at": created.next_at}


def _describe_change(tx: Tx, requester: Requester, args: ChangeScheduledPrompt) -> str:
    schedule = schedules.get(tx, args.schedule)
    session = schedule.mailbox.removeprefix("session:")
    if session == schedule.mailbox or sessions.get(tx, session).agent_id != requester.agent.id:
        raise Refused(
            f"{schedule.id} is not a scheduled prompt of {requester.agent.name}.", id=schedule.id
        )
    return f"Change the scheduled prompt {schedule.id} of {requester.agent.name}: {args.verb}."


def _change_scheduled_prompt(
    tx: Tx, requester: Requester, args: ChangeScheduledPrompt
) -> dict[str, Any]:
    id = schedules.get(tx, args.schedule).id
    if args.verb == "run":
        return {"schedule": id, "letter": schedules.fire_now(tx, id).id}
    verbs = {"pause": schedules.pause, "resume": schedules.resume, "cancel": schedules.cancel}
    changed = verbs[args.verb](tx, id)
    return {"schedule": id, "state": changed.state, "next_at": changed.next_at}


def _describe_destination(tx: Tx, requester: Requester, args: GrantDestination) -> str:
    place = places.get_place(tx, args.place)
    if args.name:
        check_name(args.name, "The name")
    channel = channels.get_channel(tx, place.channel_id)
    return (
        f"Allow {requester.agent.name} to send to {place.display_name} ({place.id}) on "
        f"the channel {channel.name} at any time."
    )


def _grant_destination(tx: Tx, requester: Requester, args: GrantDestination) -> dict[str, Any]:
    created = destinations.grant(tx, requester.agent.id, args.place, name=args.name)
    return {"destination": created.name, "place": created.place_id}


def _describe_secret(tx: Tx, requester: Requester, args: GiveSecret) -> str:
    settings.check_secret_name(args.name)
    check_text(args.reason, "The reason", max_bytes=MAX_REASON)
    return (
        "Never type a secret into a chat. Enter it in the dashboard, or on the machine of the "
        f"store: `corral secret set {args.name} --keep file` prompts for it, `corral secret set "
        f"{args.name} REFERENCE` stores a reference. "
        f"{requester.agent.name} is notified that the secret exists, and does not get its value."
    )


class Action(NamedTuple):
    """An action that agents can request."""

    arguments: type[ActionArguments]
    subject: str
    """The argument that a grant may name: `host:create_agent(helper-*)`."""
    asks: str
    """The question to the approvers, after "May AGENT"."""
    describe: Callable[[Tx, Requester, Any], str]
    run: Callable[[Tx, Requester, Any], dict[str, Any]] | None
    """None for a secret, which only a person can provide."""
    is_own: bool = False
    """Whether it only affects the agent's own objects and needs no approval."""


ACTIONS = {
    "create_agent": Action(
        CreateAgent, "name", "create the agent {name}", _describe_agent, _create_agent
    ),
    "schedule_prompt": Action(
        SchedulePrompt,
        "name",
        "schedule a prompt",
        _describe_scheduled_prompt,
        _add_scheduled_prompt,
    ),
    "change_prompt": Action(
        ChangeScheduledPrompt,
        "schedule",
        "{verb} its scheduled prompt {schedule}",
        _describe_change,
        _change_scheduled_prompt,
        is_own=True,
    ),
    "destination": Action(
        GrantDestination, "place", "send to {place}", _describe_destination, _grant_destination
    ),
    "secret": Action(GiveSecret, "name", "have the secret {name}", _describe_secret, None),
}
