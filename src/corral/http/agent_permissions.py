"""What an agent's token may do: call the operations that are declared with a rule.

The rules are in `api/agent_rules.py`. A token may also be limited to one project; that is checked
here, for all calls alike.
"""

from typing import Any

from corral.api import Corral
from corral.api.agent_rules import AgentRule, CallArguments, check_own_run, check_project
from corral.api.remote_table import RemoteCall, find_call
from corral.kernel.errors import Refused
from corral.services.tokens import TokenIdentity


def check_agent_call(
    store: Corral, who: TokenIdentity, call: RemoteCall, arguments: CallArguments
) -> None:
    """Raise Refused unless the agent may make this call with these arguments.

    Rules also replace arguments: authors, senders and projects become the agent's own.
    """
    rule = require_rule(call)
    _limit_to_project(store, who, call, arguments)
    rule(store, who, arguments)
    if run := arguments.get("run"):
        check_own_run(store, who, str(run))


def require_rule(call: RemoteCall) -> AgentRule:
    """Return the rule of an operation for agents; raises Refused for operations without one."""
    rule = call.policy.agent
    if rule is None:
        raise Refused(
            f"An agent's token may not call {call.name}. See /api/docs for the operations it may.",
            call=call.name,
        )
    return rule


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
            check_project(who, arguments[name])
        elif who.project_id is not None and not _is_about_agent(call, arguments):
            arguments[name] = who.project_id
    if who.project_id is None:
        return
    for name, resource_name in call.objects:
        value = arguments.get(name)
        for reference in value if isinstance(value, list | tuple) else [value]:
            if reference is not None:
                check_project(who, _find_project(store, resource_name, reference, who.project_id))


def _is_about_agent(call: RemoteCall, arguments: CallArguments) -> bool:
    """Return whether the call names or implies an agent, so that it must not name a project."""
    implied = call.policy.agent_or_project
    return implied is not None and bool(arguments.get("agent", implied == "agent"))


def _resolve_project(store: Corral, name: str) -> str:
    find = store.projects.by_dir if name.startswith(("/", "~", ".")) else store.projects.get
    return find(name).id


def _find_project(store: Corral, resource_name: str, reference: Any, project: str) -> str | None:
    """Return the project of an object; None if it has none. Names are resolved in `project`."""
    record = reference
    if isinstance(reference, str):
        get = find_call(resource_name, "get")
        assert get is not None
        has_names = any(field.name == "project" for field in get.fields)
        scope = {"project": project} if has_names else {}
        record = getattr(store, resource_name).get(reference, **scope)
    if resource_name == "host_requests" and record.session_id is not None:
        record = store.sessions.get(record.session_id)
    return getattr(record, "project_id", None)
