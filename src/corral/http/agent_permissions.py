"""What an agent's own token may do: its mail, its timers, its conversations, and to know itself.

An agent may be hostile, and so may be whatever talked it into something. Nothing that it sends is
taken for who it is: its mailboxes and sessions are looked up, and what it signs is signed with its
own name. Whatever is not in the table is refused.
"""

from collections.abc import Callable
from typing import Any

from corral.api import Corral
from corral.api.remote_table import Call, call_of
from corral.api.tokens import Who
from corral.kernel.errors import Refused

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
    _within_project(store, who, call, arguments)
    rule(store, who, arguments)
    if run := arguments.get("run"):
        _own_run(store, who, str(run))


def _within_project(store: Corral, who: Who, call: Call, arguments: Arguments) -> None:
    """A project that is named is one, by its whole id. A token for one reaches nothing of another,
    by whatever name; where none is named, its own is meant."""
    for name in {field.name for field in call.fields} & {"project", "project_id"}:
        if arguments.get(name) is not None:
            arguments[name] = _project_named(store, str(arguments[name]))
            _check_project(who, arguments[name])
        elif who.project_id is None:
            continue
        elif call.name not in _EITHER or not arguments.get("agent", _EITHER[call.name]):
            arguments[name] = who.project_id
    if who.project_id is None:
        return
    for name, attribute in _named_things(call):
        given = arguments.get(name)
        for each in given if isinstance(given, list | tuple) else [given]:
            if each is not None:
                _check_project(who, _project_of(store, attribute, each, who.project_id))
    if call.name in _OF_ONESELF:
        arguments[_OF_ONESELF[call.name]] = who.agent


# Of an agent or of a project, not of both; and whether an agent is meant where none is named.
_EITHER = {"notes.add": False, "sessions.list": True}
# Lists across projects: whoever has a token for one sees its own in them.
_OF_ONESELF = {"delegations.list": "to", "progress.list": "agent"}

# Arguments that name an object of a project, and the room of that object. Letters are not listed:
# an agent's mailbox is its own in all projects.
THINGS = {
    "decision": "decisions",
    "delegation": "delegations",
    "group": "groups",
    "lock": "locks",
    "of": "plans",
    "on": "tasks",
    "parent": "delegations",
    "question": "questions",
    "race": "races",
    "request": "requests",
    "run": "runs",
    "session": "sessions",
    "task": "tasks",
    "task_id": "tasks",
}


def _named_things(call: Call) -> list[tuple[str, str]]:
    """List the arguments of a call that name objects, with their rooms."""
    found = [(field.name, THINGS[field.name]) for field in call.fields if field.name in THINGS]
    if call.subject == "id" and call.attribute != "mail":
        found.append(("id", call.attribute))
    return found


def _project_named(store: Corral, named: str) -> str:
    find = store.projects.by_dir if named.startswith(("/", "~", ".")) else store.projects.get
    return find(named).id


def _project_of(store: Corral, attribute: str, named: Any, project: str) -> str | None:
    """Return the project of a named object, if it has one."""
    if isinstance(named, str):
        get = call_of(attribute, "get")
        assert get is not None
        by_name = any(field.name == "project" for field in get.fields)
        where = {"project": project} if by_name else {}
        named = getattr(store, attribute).get(named, **where)
    if attribute == "requests" and named.session_id is not None:
        named = store.sessions.get(named.session_id)
    return getattr(named, "project_id", None)


def _check_project(who: Who, project: str | None) -> None:
    if who.project_id is not None and project not in (None, who.project_id):
        raise Refused(
            f"The token {who.name} is for another project.", project=project, reason="other_project"
        )


def _own_run(store: Corral, who: Who, run: str) -> None:
    """Another's run would keep what it is named with, or end it."""
    if store.runs.get(run).agent_id != who.scope.removeprefix("agent:"):
        raise Refused(f"{run} is not a run of {who.agent}.", run=run)


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
    kind, _, name = mailbox.partition(":")
    if kind not in ("agent", "session", "user", "queue"):
        raise Refused(f"An agent may not put letters into {mailbox}.", mailbox=mailbox)
    if kind == "session" and who.project_id is not None:
        _check_project(who, store.sessions.get(name).project_id)
    arguments["sender"] = who.actor
    if arguments.get("key") and kind == "queue":
        # A key that was seen gives back that first letter, which may be another's. `AgentMail` does
        # the same for all other mailboxes.
        arguments["key"] = f"{who.actor}:{arguments['key']}"


def _timing(store: Corral, who: Who, arguments: Arguments) -> None:
    _own_mailbox(store, who, arguments)
    arguments["sender"] = who.actor


def _sending(store: Corral, who: Who, arguments: Arguments) -> None:
    """In its own name, and answered where its own session is."""
    arguments["agent"] = who.agent
    if arguments.get("session"):
        _own_session(store, who, arguments)
    arguments.pop("run", None)  # another's run would take its words for an answer


def _requesting(store: Corral, who: Who, arguments: Arguments) -> None:
    """In its own name, and from its own session; whoever decides is asked by the host."""
    arguments["agent"] = who.agent
    if arguments.get("session"):
        _own_session(store, who, arguments)


def _own_request(store: Corral, who: Who, arguments: Arguments) -> None:
    if store.requests.get(arguments["request"]).agent_id != who.scope.removeprefix("agent:"):
        raise Refused(f"{arguments['request']} is no request of {who.agent}.")


def _reading(store: Corral, who: Who, arguments: Arguments) -> None:
    for letter in arguments["letters"]:
        _check_mailbox(store, who, store.mail.get(letter).mailbox)


def _asking(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["asker"] = who.actor


def _answering(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["by"] = who.actor


def _own_question(store: Corral, who: Who, arguments: Arguments) -> None:
    asked = store.questions.get(arguments["question"])
    if who.actor not in (asked.asker, *asked.answerers):
        raise Refused(f"{asked.id} is no question of {who.agent}.", id=asked.id)


def _speaking(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["author"] = who.actor


def _as_member(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["member"] = who.actor


def _in_group(store: Corral, who: Who, arguments: Arguments) -> None:
    group = store.groups.get(arguments["group"], project=arguments.get("project"))
    store.groups.read(group.id, member=who.actor, limit=1)  # refused to whoever is not in it


def _own_decision(store: Corral, who: Who, arguments: Arguments) -> None:
    found = store.decisions.get(arguments["decision"])
    if who.actor not in (found.author, *found.answerers):
        raise Refused(f"{found.id} is no decision of {who.agent}.", id=found.id)


def _own_decided(store: Corral, who: Who, arguments: Arguments) -> None:
    if store.decisions.get(arguments["decision"]).author != who.actor:
        raise Refused(f"{arguments['decision']} was not recorded by {who.agent}.")


def _noting(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["source"] = who.actor


def _recalling(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["agent"] = who.agent


def _own_asked(store: Corral, who: Who, arguments: Arguments) -> None:
    if store.questions.get(arguments["question"]).asker != who.actor:
        raise Refused(f"{arguments['question']} was not asked by {who.agent}.")


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


def _as_itself(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["agent"] = who.agent


def _leading(store: Corral, who: Who, arguments: Arguments) -> None:
    """It leads what it declares, and is told; nobody else's mailbox is filled by it."""
    arguments["agent"], arguments["lead"] = who.agent, who.actor


def _delegating(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["agent"], arguments["sender"] = who.agent, who.actor


def _anything(store: Corral, who: Who, arguments: Arguments) -> None:
    """What everybody on a team may see."""


def _locking(store: Corral, who: Who, arguments: Arguments) -> None:
    arguments["agent"] = who.agent
    arguments.pop("run", None)  # another's run would renew it, or end it


RULES: dict[str, Rule] = {
    "agents.allows": _itself,
    "agents.get": _itself,
    "agents.grants": _itself,
    "delegations.cancel": _as_itself,
    "delegations.delegate": _delegating,
    "delegations.fail": _as_itself,
    "delegations.finish": _as_itself,
    "delegations.get": _anything,
    "delegations.list": _anything,
    "decisions.confirm": _answering,
    "decisions.get": _own_decision,
    "decisions.hear": _own_decided,
    "decisions.record": _speaking,
    "decisions.reject": _answering,
    "decisions.wait": _own_decision,
    "groups.broadcast": _speaking,
    "groups.get": _in_group,
    "groups.leave": _as_member,
    "groups.mark": _as_member,
    "groups.members": _in_group,
    "groups.post": _speaking,
    "groups.react": _as_member,
    "groups.read": _as_member,
    "groups.send": _speaking,
    "groups.unread": _as_member,
    "guard.in_the_way": _locking,
    "locks.acquire": _locking,
    "locks.get": _anything,
    "locks.holders": _anything,
    "locks.list": _anything,
    "locks.release": _locking,
    "locks.renew": _locking,
    "locks.request": _locking,
    "locks.touch": _locking,
    "locks.touches": _anything,
    "locks.wait": _anything,
    "mail.ack": _own_letter,
    "mail.ack_and_claim": _claiming,
    "mail.claim": _claiming,
    "mail.doubt": _own_letter,
    "mail.fail": _own_letter,
    "mail.get": _own_letter,
    "mail.next_due": _own_mailbox,
    "mail.put": _writing,
    "mail.read_by": _reading,
    "mail.write": _requesting,
    "mail.refuse": _own_letter,
    "mail.renew": _own_letter,
    "plans.get": _anything,
    "plans.set": _as_itself,
    "progress.list": _anything,
    "progress.report": _as_itself,
    "destinations.list": _as_itself,
    "messages.send": _sending,
    "messages.send_files": _sending,
    "notes.add": _noting,
    "notes.search": _recalling,
    "notes.section": _recalling,
    "races.get": _anything,
    "races.list": _anything,
    "requests.ask": _requesting,
    "requests.get": _own_request,
    "requests.list": _as_itself,
    "requests.withdraw": _own_request,
    "questions.answer": _answering,
    "questions.ask": _asking,
    "questions.get": _own_question,
    "questions.hear": _own_asked,
    "questions.list": _asking,
    "questions.wait": _own_question,
    "questions.withdraw": _answering,
    "sessions.append": _appending,
    "sessions.context": _own_session,
    "sessions.get": _own_session,
    "sessions.list": _as_itself,
    "sessions.set_state": _own_session,
    "sessions.state": _own_session,
    "sessions.turns": _own_session,
    "tasks.accept": _as_itself,
    "tasks.add": _leading,
    "tasks.apply": _leading,
    "tasks.cancel": _as_itself,
    "tasks.claim": _as_itself,
    "tasks.counts": _anything,
    "tasks.declare": _leading,
    "tasks.delegate": _as_itself,
    "tasks.depend": _as_itself,
    "tasks.edit": _as_itself,
    "tasks.fail": _as_itself,
    "tasks.get": _anything,
    "tasks.graph": _anything,
    "tasks.list": _anything,
    "tasks.pause": _as_itself,
    "tasks.reassign": _as_itself,
    "tasks.reject": _as_itself,
    "tasks.release": _as_itself,
    "tasks.renew": _as_itself,
    "tasks.reopen": _as_itself,
    "tasks.resume": _as_itself,
    "tasks.retry": _as_itself,
    "tasks.skip": _as_itself,
    "tasks.submit": _as_itself,
    "tasks.undepend": _as_itself,
    "timers.set": _timing,
}
