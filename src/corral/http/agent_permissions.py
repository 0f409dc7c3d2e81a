"""What an agent's token may do: an allowlist of operations, each with a rule.

An agent may be hostile, or controlled by text it read (prompt injection). So no argument is trusted
to say who the caller is: mailboxes, sessions and runs are looked up, and authors and senders are
overwritten with the agent's own name. Operations without a rule are refused.
"""

from collections.abc import Callable
from typing import Any

from corral.api import Corral
from corral.api.remote_table import RemoteCall, find_call
from corral.kernel.errors import Refused
from corral.services.tokens import TokenIdentity

CallArguments = dict[str, Any]
PermissionRule = Callable[[Corral, TokenIdentity, CallArguments], object]


def check_agent_call(
    store: Corral, who: TokenIdentity, call: RemoteCall, arguments: CallArguments
) -> None:
    """Raise Refused unless the agent may make this call with these arguments.

    Rules also replace arguments: authors, senders and projects become the agent's own.
    """
    rule = AGENT_RULES.get(call.name)
    if rule is None:
        raise Refused(
            f"An agent's token may not call {call.name}. See /api/docs for the operations it may.",
            call=call.name,
        )
    _limit_to_project(store, who, call, arguments)
    rule(store, who, arguments)
    if run := arguments.get("run"):
        _check_own_run(store, who, str(run))


# -- projects ----------------------------------------------------------------------------------


def _limit_to_project(
    store: Corral, who: TokenIdentity, call: RemoteCall, arguments: CallArguments
) -> None:
    """Refuse objects of other projects when the token is limited to one.

    A named project is replaced by its id; an omitted one becomes the project of the token.
    """
    for name in {field.name for field in call.fields} & {"project", "project_id"}:
        if arguments.get(name) is not None:
            arguments[name] = _resolve_project(store, str(arguments[name]))
            _check_project(who, arguments[name])
        elif who.project_id is not None and not _is_about_agent(call, arguments):
            arguments[name] = who.project_id
    if who.project_id is None:
        return
    for name, attribute in _find_object_arguments(call):
        value = arguments.get(name)
        for reference in value if isinstance(value, list | tuple) else [value]:
            if reference is not None:
                _check_project(who, _find_project(store, attribute, reference, who.project_id))
    if call.name in _OWN_ENTRIES_ONLY:
        arguments[_OWN_ENTRIES_ONLY[call.name]] = who.agent


# Operations that take an agent or a project, not both; the value says whether an agent is implied
# when neither is given.
_AGENT_OR_PROJECT = {"notes.add": False, "sessions.list": True}


def _is_about_agent(call: RemoteCall, arguments: CallArguments) -> bool:
    """Return whether the call names or implies an agent, so that it must not name a project."""
    if call.name not in _AGENT_OR_PROJECT:
        return False
    return bool(arguments.get("agent", _AGENT_OR_PROJECT[call.name]))


# Lists across projects: a token that is limited to one project sees only the agent's own entries.
_OWN_ENTRIES_ONLY = {"delegations.list": "to", "progress.list": "agent"}

# Arguments that name an object of a project, and the facade of that object. Letters are missing on
# purpose: an agent has the same mailbox in all projects.
OBJECT_ARGUMENTS = {
    "decision": "decisions",
    "delegation": "delegations",
    "group": "groups",
    "lock": "locks",
    "of": "plans",
    "on": "tasks",
    "parent": "delegations",
    "question": "questions",
    "race": "races",
    "request": "host_requests",
    "run": "runs",
    "session": "sessions",
    "task": "tasks",
    "task_id": "tasks",
}


def _find_object_arguments(call: RemoteCall) -> list[tuple[str, str]]:
    """Return the arguments of a call that name objects, with their facades."""
    pairs = [
        (field.name, OBJECT_ARGUMENTS[field.name])
        for field in call.fields
        if field.name in OBJECT_ARGUMENTS
    ]
    if call.subject == "id" and call.attribute != "mail":
        pairs.append(("id", call.attribute))
    return pairs


def _resolve_project(store: Corral, name: str) -> str:
    find = store.projects.by_dir if name.startswith(("/", "~", ".")) else store.projects.get
    return find(name).id


def _find_project(store: Corral, attribute: str, reference: Any, project: str) -> str | None:
    """Return the project of an object; None if it has none. Names are resolved in `project`."""
    record = reference
    if isinstance(reference, str):
        get = find_call(attribute, "get")
        assert get is not None
        has_names = any(field.name == "project" for field in get.fields)
        scope = {"project": project} if has_names else {}
        record = getattr(store, attribute).get(reference, **scope)
    if attribute == "host_requests" and record.session_id is not None:
        record = store.sessions.get(record.session_id)
    return getattr(record, "project_id", None)


def _check_project(who: TokenIdentity, project: str | None) -> None:
    if who.project_id is not None and project not in (None, who.project_id):
        raise Refused(
            f"Token {who.name} is limited to another project.",
            project=project,
            reason="other_project",
        )


# -- ownership ---------------------------------------------------------------------------------


def _get_agent_id(who: TokenIdentity) -> str:
    return who.scope.removeprefix("agent:")


def _check_own_run(store: Corral, who: TokenIdentity, run: str) -> None:
    """Raise Refused unless the run belongs to the agent.

    Locks and tasks that name a run are released when that run ends.
    """
    if store.runs.get(run).agent_id != _get_agent_id(who):
        raise Refused(f"{run} is not a run of {who.agent}.", run=run)


def _check_mailbox(store: Corral, who: TokenIdentity, mailbox: str) -> None:
    kind, _, name = mailbox.partition(":")
    if mailbox == f"agent:{who.agent}":
        return
    if kind == "session" and _owns_session(store, who, name):
        return
    raise Refused(f"{mailbox} is not a mailbox of {who.agent}.", mailbox=mailbox)


def _owns_session(store: Corral, who: TokenIdentity, session: str) -> bool:
    return store.sessions.get(session).agent_id == _get_agent_id(who)


# -- rules -------------------------------------------------------------------------------------


def _allow(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    """Allow every agent; no argument is checked or replaced."""


def _require_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    if store.agents.get(arguments["agent"]).id != _get_agent_id(who):
        raise Refused(f"{who.agent} may only query itself.")


def _set_agent(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    arguments["agent"] = who.agent


def _set_member(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    arguments["member"] = who.actor


def _write_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    arguments["author"] = who.actor


def _note_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    arguments["source"] = who.actor


def _ask_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    arguments["asker"] = who.actor


def _answer_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    arguments["by"] = who.actor


def _delegate_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    arguments["agent"], arguments["sender"] = who.agent, who.actor


def _lead_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    """The agent leads the tasks it declares: notifications go to its own mailbox."""
    arguments["agent"], arguments["lead"] = who.agent, who.actor


def _lock_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    arguments["agent"] = who.agent
    arguments.pop("run", None)  # another agent's run would renew or release the lock


def _require_own_mailbox(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    _check_mailbox(store, who, str(arguments["mailbox"]))


def _require_own_letter(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    letter = store.mail.get(arguments.get("letter") or arguments["id"])
    _check_mailbox(store, who, letter.mailbox)


def _read_own_letters(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    for letter in arguments["letters"]:
        _check_mailbox(store, who, store.mail.get(letter).mailbox)


def _claim_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    if "mailbox" in arguments:
        _require_own_mailbox(store, who, arguments)
    else:
        _require_own_letter(store, who, arguments)
    arguments["owner"] = f"{who.actor}:{arguments['owner']}"


def _send_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    mailbox = str(arguments["mailbox"])
    kind, _, name = mailbox.partition(":")
    if kind not in ("agent", "session", "user", "queue"):
        raise Refused(f"An agent may not send to {mailbox}.", mailbox=mailbox)
    if kind == "session" and who.project_id is not None:
        _check_project(who, store.sessions.get(name).project_id)
    arguments["sender"] = who.actor
    if arguments.get("key") and kind == "queue":
        # A repeated key returns the first letter, which may belong to another agent: keys of an
        # agent have a prefix. `AgentMail` does the same for all other mailboxes.
        arguments["key"] = f"{who.actor}:{arguments['key']}"


def _set_own_timer(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    _require_own_mailbox(store, who, arguments)
    arguments["sender"] = who.actor


def _send_message_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    """The agent sends as itself; replies go to its own session."""
    arguments["agent"] = who.agent
    if arguments.get("session"):
        _require_own_session(store, who, arguments)
    arguments.pop("run", None)  # another agent's run would count the message as its own reply


def _request_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    """The agent asks as itself, from its own session."""
    arguments["agent"] = who.agent
    if arguments.get("session"):
        _require_own_session(store, who, arguments)


def _require_own_request(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    if store.host_requests.get(arguments["request"]).agent_id != _get_agent_id(who):
        raise Refused(f"{arguments['request']} is not a request of {who.agent}.")


def _require_own_question(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    question = store.questions.get(arguments["question"])
    if who.actor not in (question.asker, *question.answerers):
        raise Refused(f"{question.id} is not a question of {who.agent}.", id=question.id)


def _require_asked_question(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    if store.questions.get(arguments["question"]).asker != who.actor:
        raise Refused(f"{arguments['question']} was not asked by {who.agent}.")


def _require_own_decision(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    decision = store.decisions.get(arguments["decision"])
    if who.actor not in (decision.author, *decision.answerers):
        raise Refused(f"{decision.id} is not a decision of {who.agent}.", id=decision.id)


def _require_authored_decision(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    if store.decisions.get(arguments["decision"]).author != who.actor:
        raise Refused(f"{arguments['decision']} was not recorded by {who.agent}.")


def _is_in_group(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    group = store.groups.get(arguments["group"], project=arguments.get("project"))
    store.groups.read(group.id, member=who.actor, limit=1)  # raises Refused for non-members


def _require_own_session(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    if not _owns_session(store, who, arguments["session"]):
        raise Refused(f"{arguments['session']} is not a session of {who.agent}.")


def _append_as_self(store: Corral, who: TokenIdentity, arguments: CallArguments) -> None:
    _require_own_session(store, who, arguments)
    arguments["agent"] = who.agent


AGENT_RULES: dict[str, PermissionRule] = {
    "agents.allows": _require_self,
    "agents.get": _require_self,
    "agents.grants": _require_self,
    "delegations.cancel": _set_agent,
    "delegations.delegate": _delegate_as_self,
    "delegations.fail": _set_agent,
    "delegations.finish": _set_agent,
    "delegations.get": _allow,
    "delegations.list": _allow,
    "decisions.confirm": _answer_as_self,
    "decisions.get": _require_own_decision,
    "decisions.acknowledge": _require_authored_decision,
    "decisions.record": _write_as_self,
    "decisions.reject": _answer_as_self,
    "decisions.wait": _require_own_decision,
    "groups.broadcast": _write_as_self,
    "groups.get": _is_in_group,
    "groups.leave": _set_member,
    "groups.mark": _set_member,
    "groups.members": _is_in_group,
    "groups.post": _write_as_self,
    "groups.react": _set_member,
    "groups.read": _set_member,
    "groups.send": _write_as_self,
    "groups.unread": _set_member,
    "guard.check": _lock_as_self,
    "locks.acquire": _lock_as_self,
    "locks.get": _allow,
    "locks.holders": _allow,
    "locks.list": _allow,
    "locks.release": _lock_as_self,
    "locks.renew": _lock_as_self,
    "locks.request": _lock_as_self,
    "locks.touch": _lock_as_self,
    "locks.touches": _allow,
    "locks.wait": _allow,
    "mail.ack": _require_own_letter,
    "mail.ack_and_claim": _claim_as_self,
    "mail.claim": _claim_as_self,
    "mail.begin_delivery": _require_own_letter,
    "mail.fail": _require_own_letter,
    "mail.get": _require_own_letter,
    "mail.next_due": _require_own_mailbox,
    "mail.put": _send_as_self,
    "mail.read_by": _read_own_letters,
    "mail.write": _request_as_self,
    "mail.refuse": _require_own_letter,
    "mail.renew": _require_own_letter,
    "plans.get": _allow,
    "plans.set": _set_agent,
    "progress.list": _allow,
    "progress.report": _set_agent,
    "destinations.list": _set_agent,
    "messages.send": _send_message_as_self,
    "messages.send_files": _send_message_as_self,
    "notes.add": _note_as_self,
    "notes.search": _set_agent,
    "notes.prompt_section": _set_agent,
    "races.get": _allow,
    "races.list": _allow,
    "host_requests.ask": _request_as_self,
    "host_requests.get": _require_own_request,
    "host_requests.list": _set_agent,
    "host_requests.withdraw": _require_own_request,
    "questions.answer": _answer_as_self,
    "questions.ask": _ask_as_self,
    "questions.get": _require_own_question,
    "questions.acknowledge": _require_asked_question,
    "questions.list": _ask_as_self,
    "questions.wait": _require_own_question,
    "questions.withdraw": _answer_as_self,
    "sessions.append": _append_as_self,
    "sessions.context": _require_own_session,
    "sessions.get": _require_own_session,
    "sessions.list": _set_agent,
    "sessions.set_state": _require_own_session,
    "sessions.state": _require_own_session,
    "sessions.turns": _require_own_session,
    "tasks.accept": _set_agent,
    "tasks.add": _lead_as_self,
    "tasks.apply": _lead_as_self,
    "tasks.cancel": _set_agent,
    "tasks.claim": _set_agent,
    "tasks.counts": _allow,
    "tasks.declare": _lead_as_self,
    "tasks.delegate": _set_agent,
    "tasks.depend": _set_agent,
    "tasks.edit": _set_agent,
    "tasks.fail": _set_agent,
    "tasks.get": _allow,
    "tasks.graph": _allow,
    "tasks.list": _allow,
    "tasks.pause": _set_agent,
    "tasks.reassign": _set_agent,
    "tasks.reject": _set_agent,
    "tasks.release": _set_agent,
    "tasks.renew": _set_agent,
    "tasks.reopen": _set_agent,
    "tasks.resume": _set_agent,
    "tasks.retry": _set_agent,
    "tasks.skip": _set_agent,
    "tasks.submit": _set_agent,
    "tasks.undepend": _set_agent,
    "timers.set": _set_own_timer,
}
