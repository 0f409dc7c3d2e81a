"""What agents ask of the host, and who says whether it is done.

An agent may be hostile, and so may be whatever talked it into something: nothing is done because it
asks. A grant of the agent for that very action allows it (`host:create_agent`,
`host:create_agent(helper-*)`), a denial forbids it, and else people are asked, who are shown all of
it. Whoever said yes: what holds then is looked at again when it is done. A secret is never part of
a request: it is asked for by its name, given elsewhere, and the agent learns only that it is there.
"""

from typing import Any

import msgspec

from corral.adapters.redaction import clean_of_secrets
from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.agents.tools import allows
from corral.domain.chat.channels import ops as gateway
from corral.domain.chat.conversations import turns
from corral.domain.chat.model import HOST
from corral.domain.host_requests import sql
from corral.domain.host_requests.actions import ACTIONS, Action, Asking
from corral.domain.host_requests.model import Arguments, Request, RequestState, words_of
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question, QuestionState, is_person
from corral.domain.sessions import ops as sessions
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, convert, encode_json

KEPT = sql.KEPT
MAX_OPEN = 20
YES, NO = "yes", "no"
RULE = "rule"
PREFIX = "host:"


# -- asking ---------------------------------------------------------------------------------------


def ask(
    tx: Tx,
    agent: str,
    action: str,
    arguments: dict[str, Any] | None = None,
    *,
    run: str | None = None,
    session: str | None = None,
    key: str | None = None,
) -> Request:
    """An agent asks the host for something: create_agent, schedule_task, change_task, destination
    or secret.

    It is done at once when a grant of the agent says so, refused when a denial does; else owners
    and admins are asked, and the agent is told how it ended. The same key is the same request.
    """
    whose = agents.get(tx, agent)
    if whose.state is not AgentState.ACTIVE:
        raise Refused(f"{whose.name} is retired, and may ask for nothing.", agent_id=whose.id)
    # Two that count at the same moment would both find room for one more.
    tx.serialize(f"requests:{whose.id}")
    if key is not None:
        clean_text(key, "The key", most=MAX_NAME)
        before = tx.one(sql.BY_KEY, agent_id=whose.id, key=key)
        if before is not None:
            return before
    who = Asking(whose, _own_session(tx, whose, session))
    what, given = _parsed(action, arguments or {})
    effect = what.about(tx, who, given)
    _check_open(f"{effect}\n{getattr(given, 'reason', '')}")
    standing = _standing(tx, whose, action, given)
    if standing is False:
        raise Refused(
            f"A rule forbids {whose.name} to {what.asks.format(**_named(given))}.",
            reason="denied_by_rule",
        )
    if tx.value(sql.COUNT_WAITING, agent_id=whose.id) >= MAX_OPEN:
        raise Refused(
            f"{whose.name} has {MAX_OPEN} requests waiting; wait for them (`corral request list`).",
            limit=MAX_OPEN,
        )
    made = create(
        tx,
        sql.REQUESTS,
        {
            "id": tx.new_id("req"),
            "agent_id": whose.id,
            "run_id": clean_text(run, "The run", most=MAX_NAME) if run else None,
            "session_id": who.session_id,
            "key": key,
            "action": action,
            "arguments": encode_json(given, "The arguments"),
            "effect": effect,
            "created_at": tx.now,
        },
        note={"agent": whose.name, "action": action},
    )
    assert made is not None
    if what.do is None:
        return _there(tx, made) or _ask_people(tx, made, whose, what, given)
    if standing or what.is_own:
        return _do(tx, made, who, RULE)
    return _ask_people(tx, made, whose, what, given)


def _parsed(action: str, arguments: dict[str, Any]) -> tuple[Action, Any]:
    what = ACTIONS.get(action)
    if what is None:
        raise Invalid(f"{action!r} is none of {', '.join(ACTIONS)}.", action=action)
    try:
        return what, convert(arguments, what.takes, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(what.takes.__struct_fields__)
        raise Invalid(
            f"{action} cannot be asked for like that: {error}; it takes {names}.",
            reason="bad_arguments",
        ) from None


def _check_open(words: str) -> None:
    """Whoever decides must see all of it, and what looks like a secret is shown to nobody."""
    if clean_of_secrets(words) != words:
        raise Invalid(
            "There is something in it that looks like a secret, which nobody could be shown; ask "
            "for the secret by its name (the action secret) and leave it out."
        )


def _named(given: Arguments) -> dict[str, Any]:
    named: dict[str, Any] = msgspec.to_builtins(given)
    return named


def _own_session(tx: Tx, agent: Agent, session: str | None) -> str | None:
    if session is None:
        return None
    found = sessions.get(tx, session)
    if found.agent_id != agent.id:
        raise Refused(f"{found.id} is not a session of {agent.name}.", session=found.id)
    return found.id


def _standing(tx: Tx, agent: Agent, action: str, given: Arguments) -> bool | None:
    """Whether the agent's rules allow an action (True), or forbid it (False), or say nothing."""
    call = f"{PREFIX}{action}({getattr(given, ACTIONS[action].subject) or ''})"
    rules = agents.grants(tx, agent.id).items
    if not allows(call, [], [rule.tool for rule in rules if not rule.allowed]):
        return False
    own = [rule.tool for rule in rules if rule.allowed and rule.tool.startswith(PREFIX)]
    return True if own and allows(call, own, []) else None


def _ask_people(tx: Tx, made: Request, agent: Agent, what: Action, given: Arguments) -> Request:
    deciders = gateway.owners(tx)
    project = sessions.get(tx, made.session_id).project_id if made.session_id else None
    wanted = int(settings.value(tx, "gateway.approvals", agent=agent.name, project=project))
    is_secret = what.do is None
    why = f" It says why: {getattr(given, 'reason', '')}" if is_secret else ""
    question = questions.ask(
        tx,
        f"May {agent.name} {what.asks.format(**_named(given))}?{why}",
        options=[NO] if is_secret else [YES, NO],
        asker=HOST,
        answerers=deciders,
        fallback=NO,
        effect=made.effect,
        needed=1 if is_secret else min(wanted, len(deciders) or wanted),
        run=made.run_id,
        key=f"request:{made.id}:{made.action}",
    )
    told = tx.one(sql.SET_QUESTION, id=made.id, question_id=question.id)
    assert told is not None
    return told


# -- deciding -------------------------------------------------------------------------------------


def hear(tx: Tx, question: Question, id: str) -> None:
    """Do what people decided about a request. What else holds is looked at again, now: the agent
    and its rules may have changed since it asked."""
    found = sql.REQUESTS.get(tx, id)
    if found.state is not RequestState.WAITING:
        return
    if question.answer != YES or question.state is not QuestionState.ANSWERED:
        if question.state is QuestionState.ANSWERED:
            end(tx, found, "refuse", question.answered_by, reason="it was not allowed")
        else:
            end(tx, found, "expire", None, reason="nobody allowed it in time")
        return
    agent = agents.get(tx, found.agent_id)
    what, given = _parsed(found.action, found.arguments)
    if agent.state is not AgentState.ACTIVE:
        end(tx, found, "refuse", RULE, reason=f"{agent.name} is retired")
    elif what.do is None or _standing(tx, agent, found.action, given) is False:
        end(tx, found, "refuse", RULE, reason="a rule forbids it")
    else:
        done = _do(tx, found, Asking(agent, found.session_id), question.answered_by)
        tell(tx, done)


def _do(tx: Tx, found: Request, who: Asking, by: str | None) -> Request:
    what, given = _parsed(found.action, found.arguments)
    assert what.do is not None
    # The same as was shown, or not at all: what it is about may have changed meanwhile.
    if what.about(tx, who, given) != found.effect:
        raise Conflict(
            "what it would do is not any more what was shown; ask anew",
            reason="changed_since_shown",
        )
    result = what.do(tx, who, given)
    return _end(tx, found, "do", by, result=encode_json(result, "The result"))


def fail(tx: Tx, id: str, reason: str) -> None:
    """Say of a request that was allowed that it could not be done."""
    found = sql.REQUESTS.get(tx, id)
    if found.state is RequestState.WAITING:
        end(tx, found, "fail", None, reason=reason)


def end(tx: Tx, found: Request, verb: str, by: str | None, **columns: Any) -> Request:
    """End a request, and tell the agent."""
    return tell(tx, _end(tx, found, verb, by, **columns))


def _end(tx: Tx, found: Request, verb: str, by: str | None, **columns: Any) -> Request:
    reason = columns.get("reason")
    return move(
        tx,
        sql.REQUESTS,
        verb,
        found.id,
        note={"action": found.action, "by": by, "reason": reason},
        decided_by=by,
        ended_at=tx.now,
        **columns,
    )


def tell(tx: Tx, ended: Request) -> Request:
    """The agent learns how it ended: in the conversation in which it asked, where that is woken by
    letters, else in its mailbox."""
    name = agents.get(tx, ended.agent_id).name
    woken = ended.session_id and turns.talk_of(tx, ended.session_id)
    mailbox = f"session:{ended.session_id}" if woken else f"agent:{name}"
    body = {
        "kind": "request",
        "request": ended.id,
        "action": ended.action,
        "state": ended.state,
        "result": ended.result,
        "text": words_of(ended),
    }
    by_person = ended.decided_by is not None and is_person(ended.decided_by)
    cause = chains.of_run(tx, ended.run_id) if ended.run_id and not by_person else None
    mail.put_after(tx, cause, mailbox, body, key=f"{ended.id}:ended")
    return ended


# -- secrets --------------------------------------------------------------------------------------


def _there(tx: Tx, found: Request) -> Request | None:
    """The request for a secret, ended when the secret is there; None: it is not."""
    try:
        settings.get_secret(tx, found.arguments["name"])
    except NotFound:
        return None
    return _end(tx, found, "do", None, result=None)


def wanted_secrets(tx: Tx) -> list[Request]:
    """Requests for secrets that wait."""
    return tx.all(sql.WAITING, action="secret", after="", limit=200)


def secrets_given(tx: Tx) -> list[Request]:
    """End the requests for secrets that are there by now, and tell the agents so."""
    given = []
    for found in wanted_secrets(tx):
        done = _there(tx, found)
        if done is not None:
            given.append(tell(tx, done))
            if done.question_id is not None:
                _close_question(tx, done.question_id)
    return given


def _close_question(tx: Tx, id: str) -> None:
    if questions.get(tx, id).state is QuestionState.OPEN:
        questions.withdraw(tx, id, reason="it was given", by=HOST)


# -- looking --------------------------------------------------------------------------------------


def withdraw(tx: Tx, request: str) -> Request:
    """Take a request back that nobody has decided; its agent is told."""
    found = get(tx, request)
    if found.question_id is not None and found.state is RequestState.WAITING:
        _close_question(tx, found.question_id)
    return end(tx, found, "refuse", tx.actor, reason="it was taken back")


def get(tx: Tx, request: str) -> Request:
    """A request by its id, which may be shortened."""
    return sql.REQUESTS.get(tx, sql.IDS.resolve(tx, request))


def list_requests(
    tx: Tx, *, agent: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Request]:
    """What agents asked of the host, newest first; of one agent."""
    (before,) = decode_cursor(after, LAST_ID)
    given: dict[str, Any] = {"before": before, "limit": check_limit(limit) + 1}
    if agent is None:
        rows = tx.all(sql.ALL, **given)
    else:
        rows = tx.all(sql.OF_AGENT, agent_id=agents.get(tx, agent).id, **given)
    return page_of(rows, limit, lambda each: (each.id,))
