"""Requests of agents to the host, and their approval.

An agent may be hostile or manipulated, so a request alone has no effect. A tool grant of the agent
for the action allows it (`host:create_agent`, `host:create_agent(helper-*)`), and a denial forbids
it. Otherwise people decide, who see the complete effect. All conditions are checked again when the
action is carried out. A secret is never part of a request: the agent asks for it by name, a person
stores it elsewhere, and the agent is only notified that it exists.
"""

from typing import Any

import msgspec

from corral.adapters.redaction import redact_value
from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.agents.tools import is_allowed
from corral.domain.chat.channels import people
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.model import CHAT_MAILBOX
from corral.domain.host_requests import sql
from corral.domain.host_requests.actions import ACTIONS, Action, Requester
from corral.domain.host_requests.model import (
    ActionArguments,
    HostRequest,
    RequestState,
    describe_request,
)
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import is_person
from corral.domain.mail.payloads import HostRequestOutcome
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question, QuestionState
from corral.domain.sessions import ops as sessions
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.pagination import Page
from corral.kernel.validation import MAX_NAME, check_optional_text, check_text, convert, encode_json

RETENTION = sql.RETENTION
MAX_WAITING = 20
YES, NO = "yes", "no"
RULE = "rule"
"""Recorded as the decider when a grant or a denial decided."""
GRANT_PREFIX = "host:"
"""The prefix of host actions in tool grants."""


# -- requests -------------------------------------------------------------------------------------


def ask(
    tx: Tx,
    agent: str,
    action: str,
    arguments: dict[str, Any] | None = None,
    *,
    run: str | None = None,
    session: str | None = None,
    key: str | None = None,
) -> HostRequest:
    """Request an action of the host for an agent; see `actions.ACTIONS`.

    A grant of the agent carries it out at once, a denial raises Refused. Otherwise the owners and
    admins are asked, and the agent gets the result as a letter. Idempotent by `key`.
    """
    sender = agents.get_active(tx, agent)
    # Serialized: concurrent requests would all pass the limit.
    tx.serialize(f"requests:{sender.id}")
    if key is not None:
        check_text(key, "The key", max_bytes=MAX_NAME)
        existing = tx.first(sql.BY_KEY, agent_id=sender.id, key=key)
        if existing is not None:
            return existing
    requester = Requester(sender, _check_own_session(tx, sender, session))
    spec, args = _parse_arguments(action, arguments or {})
    effect = spec.describe(tx, requester, args)
    _check_no_secret(f"{effect}\n{getattr(args, 'reason', '')}")
    rule = _find_rule(tx, sender, action, args)
    if rule is False:
        raise Refused(
            f"A denied tool forbids {sender.name} to {spec.asks.format(**_to_dict(args))}.",
            reason="denied_by_rule",
        )
    _check_waiting_limit(tx, sender)
    request = create(
        tx,
        sql.REQUESTS,
        {
            "id": tx.new_id("req"),
            "agent_id": sender.id,
            "run_id": check_optional_text(run, "The run", max_bytes=MAX_NAME),
            "session_id": requester.session_id,
            "key": key,
            "action": action,
            "arguments": encode_json(args, "The arguments"),
            "effect": effect,
            "created_at": tx.now,
        },
        event_data={"agent": sender.name, "action": action},
    )
    if spec.run is None:
        return _end_if_stored(tx, request) or _ask_approvers(tx, request, sender, spec, args)
    if rule or spec.is_own:
        return _carry_out(tx, request, requester, RULE)
    return _ask_approvers(tx, request, sender, spec, args)


def _check_waiting_limit(tx: Tx, agent: Agent) -> None:
    if tx.value(sql.COUNT_WAITING, agent_id=agent.id) >= MAX_WAITING:
        raise Refused(
            f"{agent.name} has {MAX_WAITING} waiting requests. See `corral request list`.",
            limit=MAX_WAITING,
        )


def _parse_arguments(action: str, arguments: dict[str, Any]) -> tuple[Action, Any]:
    spec = ACTIONS.get(action)
    if spec is None:
        raise Invalid(f"Unknown action {action!r}: choose {', '.join(ACTIONS)}.", action=action)
    try:
        return spec, convert(arguments, spec.arguments, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(spec.arguments.__struct_fields__)
        raise Invalid(
            f"Invalid arguments of {action}: {error}. It takes {names}.", reason="bad_arguments"
        ) from None


def _check_no_secret(text: str) -> None:
    """Reject text that looks like a secret: it would be redacted, but approvers must see it all."""
    if redact_value(text) != text:
        raise Invalid(
            "The request contains text that looks like a secret, which cannot be shown to people. "
            "Omit it and request the secret by name (action secret)."
        )


def _to_dict(args: ActionArguments) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(args)
    return values


def _check_own_session(tx: Tx, agent: Agent, session: str | None) -> str | None:
    if session is None:
        return None
    requesting = sessions.get(tx, session)
    if requesting.agent_id != agent.id:
        raise Refused(f"{requesting.id} is not a session of {agent.name}.", session=requesting.id)
    return requesting.id


def _find_rule(tx: Tx, agent: Agent, action: str, args: ActionArguments) -> bool | None:
    """Return True if a grant allows the action, False if a denial forbids it, else None."""
    call = f"{GRANT_PREFIX}{action}({getattr(args, ACTIONS[action].subject) or ''})"
    rules = agents.list_grants(tx, agent.id).items
    if not is_allowed(call, [], [rule.tool for rule in rules if not rule.allowed]):
        return False
    grants = [rule.tool for rule in rules if rule.allowed and rule.tool.startswith(GRANT_PREFIX)]
    return True if grants and is_allowed(call, grants, []) else None


def _ask_approvers(
    tx: Tx, request: HostRequest, agent: Agent, spec: Action, args: ActionArguments
) -> HostRequest:
    approvers = people.list_approvers(tx)
    project = sessions.get(tx, request.session_id).project_id if request.session_id else None
    required_votes = int(
        settings.get_value(tx, "chat.approvals", agent=agent.name, project=project)
    )
    is_secret = spec.run is None
    reason = f" Its reason: {getattr(args, 'reason', '')}" if is_secret else ""
    question = questions.ask(
        tx,
        f"May {agent.name} {spec.asks.format(**_to_dict(args))}?{reason}",
        options=[NO] if is_secret else [YES, NO],
        asker=CHAT_MAILBOX,
        answerers=approvers,
        fallback=NO,
        effect=request.effect,
        required_votes=1 if is_secret else min(required_votes, len(approvers) or required_votes),
        run=request.run_id,
        key=f"request:{request.id}:{request.action}",
    )
    return tx.one(sql.SET_QUESTION, id=request.id, question_id=question.id)


# -- decisions ------------------------------------------------------------------------------------


def apply_answer(tx: Tx, question: Question, id: str) -> None:
    """Apply the answer of people to a request.

    The agent's state and grants are checked again, because they may have changed since.
    """
    request = sql.REQUESTS.get(tx, id)
    if request.state is not RequestState.WAITING:
        return
    if question.answer != YES or question.state is not QuestionState.ANSWERED:
        if question.state is QuestionState.ANSWERED:
            end_request(tx, request, "refuse", question.answered_by, reason="it was not approved")
        else:
            end_request(tx, request, "expire", None, reason="it was not approved in time")
        return
    agent = agents.get(tx, request.agent_id)
    spec, args = _parse_arguments(request.action, request.arguments)
    if agent.state is not AgentState.ACTIVE:
        end_request(tx, request, "refuse", RULE, reason=f"{agent.name} is retired")
    elif spec.run is None or _find_rule(tx, agent, request.action, args) is False:
        end_request(tx, request, "refuse", RULE, reason="a denied tool forbids it")
    else:
        ended = _carry_out(tx, request, Requester(agent, request.session_id), question.answered_by)
        notify_agent(tx, ended)


def _carry_out(tx: Tx, request: HostRequest, requester: Requester, by: str | None) -> HostRequest:
    spec, args = _parse_arguments(request.action, request.arguments)
    assert spec.run is not None
    # Only the effect that was approved: the objects may have changed since.
    if spec.describe(tx, requester, args) != request.effect:
        raise Conflict(
            "The effect differs from the approved one. Request the action again.",
            reason="changed_since_shown",
        )
    result = spec.run(tx, requester, args)
    return _end(tx, request, "do", by, result=encode_json(result, "The result"))


def mark_failed(tx: Tx, id: str, reason: str) -> None:
    """Record that an approved request could not be carried out. Idempotent."""
    request = sql.REQUESTS.get(tx, id)
    if request.state is RequestState.WAITING:
        end_request(tx, request, "fail", None, reason=reason)


def end_request(
    tx: Tx, request: HostRequest, verb: str, by: str | None, **columns: Any
) -> HostRequest:
    """End a request and notify the agent."""
    return notify_agent(tx, _end(tx, request, verb, by, **columns))


def _end(tx: Tx, request: HostRequest, verb: str, by: str | None, **columns: Any) -> HostRequest:
    reason = columns.get("reason")
    return transition(
        tx,
        sql.REQUESTS,
        verb,
        request.id,
        event_data={"action": request.action, "by": by, "reason": reason},
        decided_by=by,
        ended_at=tx.now,
        **columns,
    )


def notify_agent(tx: Tx, ended: HostRequest) -> HostRequest:
    """Notify the requesting agent of the result of a request.

    The letter goes to the requesting session if letters wake it, else to the agent's mailbox.
    """
    name = agents.get(tx, ended.agent_id).name
    woken = ended.session_id and conversations.find_conversation(tx, ended.session_id)
    mailbox = f"session:{ended.session_id}" if woken else f"agent:{name}"
    body = HostRequestOutcome(
        request=ended.id,
        action=ended.action,
        state=ended.state,
        result=ended.result,
        text=describe_request(ended),
    )
    by_person = ended.decided_by is not None and is_person(ended.decided_by)
    cause = chains.get_for_run(tx, ended.run_id) if ended.run_id and not by_person else None
    mail.put_caused_by(tx, cause, mailbox, body, key=f"{ended.id}:ended")
    return ended


# -- secrets --------------------------------------------------------------------------------------


def _end_if_stored(tx: Tx, request: HostRequest) -> HostRequest | None:
    """End the request for a secret that exists; None when it does not."""
    try:
        settings.get_secret(tx, request.arguments["name"])
    except NotFound:
        return None
    return _end(tx, request, "do", None, result=None)


def list_waiting_secrets(tx: Tx) -> list[HostRequest]:
    """Return the waiting requests for secrets."""
    return tx.all(sql.WAITING, action="secret", after="", limit=200)


def complete_secret_requests(tx: Tx) -> list[HostRequest]:
    """End the requests for secrets that exist by now, and notify the agents. Idempotent."""
    completed = []
    for request in list_waiting_secrets(tx):
        ended = _end_if_stored(tx, request)
        if ended is not None:
            completed.append(notify_agent(tx, ended))
            if ended.question_id is not None:
                _close_question(tx, ended.question_id, "the secret was stored")
    return completed


def _close_question(tx: Tx, id: str, reason: str) -> None:
    if questions.get(tx, id).state is QuestionState.OPEN:
        questions.withdraw(tx, id, reason=reason, by=CHAT_MAILBOX)


# -- withdrawal and lists -------------------------------------------------------------------------


def withdraw(tx: Tx, request: str) -> HostRequest:
    """Withdraw a waiting request; its agent is notified."""
    current = get(tx, request)
    if current.question_id is not None and current.state is RequestState.WAITING:
        _close_question(tx, current.question_id, "the request was withdrawn")
    return end_request(tx, current, "refuse", tx.actor, reason="it was withdrawn")


def get(tx: Tx, request: str) -> HostRequest:
    """Return a request by its id or a unique prefix of it."""
    return sql.REQUESTS.get(tx, sql.IDS.resolve(tx, request))


def list_requests(
    tx: Tx, *, agent: str | None = None, after: str | None = None, limit: int = 50
) -> Page[HostRequest]:
    """List requests, newest first: all, or those of one agent."""
    if agent is None:
        return sql.ALL.page(tx, after=after, limit=limit)
    agent_id = agents.get(tx, agent).id
    return sql.OF_AGENT.page(tx, after=after, limit=limit, agent_id=agent_id)
