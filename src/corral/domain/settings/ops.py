"""Get and set settings and secret references."""

import re
from typing import Any

import msgspec

from corral.db.tx import Tx
from corral.domain.settings import sql
from corral.domain.settings.model import DEFINITIONS, Secret, Setting, SettingDefinition
from corral.kernel.clock import format_duration
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.pagination import Page
from corral.kernel.validation import MAX_NAME, check_text, convert, encode_json

_SCOPE = re.compile(r"global|(?:project|agent):\S{1,200}")
_SECRET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
MAX_ITEMS = 100
"""Entries of a setting that is a list."""
REFERENCE_KINDS = ("env", "file", "cmd", "keyring")


def set_value(tx: Tx, name: str, value: Any, *, scope: str = "global") -> Setting:
    """Set a value globally, for a project (`project:prj_…`) or an agent (`agent:NAME`)."""
    _check_scope(scope)
    checked = _check_value(name, value)
    if scope.partition(":")[0] not in (scopes := _get_definition(name).scopes):
        raise Invalid(
            f"{name} cannot be set for {scope}: its scopes are {', '.join(scopes)}.",
            name=name,
            scope=scope,
            reason="global_only",
        )
    before = get_value_in_scope(tx, name, scope)
    tx.run(
        sql.SET,
        scope=scope,
        name=name,
        value=encode_json(checked, "The value"),
        now=tx.now,
        actor=tx.actor,
    )
    tx.emit(
        "setting",
        "set",
        f"{scope}/{name}",
        project_id=_project_in(scope),
        data={"value": checked, "before": before},
    )
    return Setting(name, checked, scope, tx.now, tx.actor, _get_definition(name).help)


def unset_value(tx: Tx, name: str, *, scope: str = "global") -> Setting:
    """Remove a value, so that the next wider scope applies; returns the setting that applies."""
    _check_scope(scope)
    _get_definition(name)
    if tx.run(sql.UNSET, scope=scope, name=name):
        tx.emit("setting", "unset", f"{scope}/{name}", project_id=_project_in(scope))
    return get_setting(tx, name, agent=_agent_in(scope), project=_project_in(scope))


def get_setting(
    tx: Tx, name: str, *, agent: str | None = None, project: str | None = None
) -> Setting:
    """Return the value that applies to an agent in a project, with its scope."""
    definition = _get_definition(name)
    scopes = [
        f"{kind}:{check_text(id, f'The {kind}', max_bytes=MAX_NAME)}"
        for kind, id in (("agent", agent), ("project", project))
        if id
    ] + ["global"]
    bounds = {"agent": scopes[0], "project": scopes[-2] if len(scopes) > 1 else "global"}
    by_scope = {setting.scope: setting for setting in tx.all(sql.GET, name=name, **bounds)}
    for scope in scopes:
        if scope in by_scope:
            return msgspec.structs.replace(by_scope[scope], help=definition.help)
    return Setting(name, definition.default, "default", None, None, definition.help)


def get_value(tx: Tx, name: str, *, agent: str | None = None, project: str | None = None) -> Any:
    """Return the value that applies to an agent in a project."""
    return get_setting(tx, name, agent=agent, project=project).value


def get_value_in_scope(tx: Tx, name: str, scope: str) -> Any:
    """Return the value that applies in a scope."""
    return get_value(tx, name, agent=_agent_in(scope), project=_project_in(scope))


def list_project_values(tx: Tx, name: str) -> dict[str, Any]:
    """Return the values that are set for projects, by project id."""
    return {
        setting.scope.removeprefix("project:"): setting.value
        for setting in tx.all(sql.OF_PROJECTS, name=name)
    }


def list_values(tx: Tx, name: str) -> list[Any]:
    """List every value in effect: the global one, and those of projects."""
    return [get_value(tx, name), *list_project_values(tx, name).values()]


def list_settings(tx: Tx, *, scope: str = "global") -> Page[Setting]:
    """List every setting by name, with the value that applies in a scope."""
    _check_scope(scope)
    in_scope = {setting.name: setting for setting in tx.all(sql.LIST, scope=scope)}
    in_global = (
        in_scope
        if scope == "global"
        else {setting.name: setting for setting in tx.all(sql.LIST, scope="global")}
    )
    return Page(
        [
            msgspec.structs.replace(setting, help=definition.help)
            if (setting := in_scope.get(name) or in_global.get(name))
            else Setting(name, definition.default, "default", None, None, definition.help)
            for name, definition in sorted(DEFINITIONS.items())
        ]
    )


def delete_scope(tx: Tx, scope: str) -> None:
    """Delete all values of a project or agent that is being deleted."""
    tx.run(sql.UNSET_ALL, scope=scope)


def _get_definition(name: str) -> SettingDefinition:
    if name in DEFINITIONS:
        return DEFINITIONS[name]
    from difflib import get_close_matches

    similar = get_close_matches(name, DEFINITIONS, 1)
    hint = f"Did you mean {similar[0]}?" if similar else "List them with `corral setting list`."
    raise Invalid(f"Unknown setting {name!r}. {hint}", name=name, reason="unknown_setting")


def _check_value(name: str, value: Any) -> Any:
    definition = _get_definition(name)
    try:
        checked = convert(value, definition.type)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"Invalid value {value!r} of {name}: {error}.",
            name=name,
            value=value,
            reason="bad_value",
        ) from None
    low, high = definition.low, definition.high
    items = checked if isinstance(checked, list) else [checked]
    if len(items) > MAX_ITEMS:
        raise Invalid(
            f"Invalid value of {name}: a list has at most {MAX_ITEMS} entries, not {len(items)}.",
            name=name,
            reason="too_many_entries",
        )
    are_texts = all(isinstance(item, str) for item in items) and (items or not definition.default)
    if are_texts:
        return checked
    if not items or any(not low <= number <= high for number in items):
        raise Invalid(
            f"Invalid value {_format(name, value)} of {name}: expected {_format(name, low)} to "
            f"{_format(name, high)}.",
            name=name,
            value=value,
            reason="out_of_range",
        )
    return checked


def _format(name: str, value: Any) -> str:
    """Format a value as users write it: durations as 1h30m."""
    is_duration = name.endswith("_ms") and isinstance(value, int) and value >= 0
    return format_duration(value) if is_duration else repr(value)


def _check_scope(scope: str) -> None:
    if not _SCOPE.fullmatch(check_text(scope, "The scope", max_bytes=MAX_NAME)):
        raise Invalid(
            f"Invalid scope {scope!r}: expected global, project:ID or agent:NAME.", scope=scope
        )


def _project_in(scope: str) -> str | None:
    return scope.removeprefix("project:") if scope.startswith("project:") else None


def _agent_in(scope: str) -> str | None:
    return scope.removeprefix("agent:") if scope.startswith("agent:") else None


def set_secret(tx: Tx, name: str, reference: str) -> Secret:
    """Store a reference: env:NAME, file:PATH, cmd:COMMAND or keyring:SERVICE/NAME."""
    check_secret_name(name)
    kind, colon, where = check_text(reference, "The reference", max_bytes=4_096).partition(":")
    if kind not in REFERENCE_KINDS or not colon or not where.strip():
        # The given text is not repeated: it may be the secret itself.
        raise Invalid(
            "Invalid reference: Corral stores references, never secret values. Use env:NAME, "
            "file:PATH, cmd:COMMAND or keyring:SERVICE/NAME.",
            name=name,
        )
    if kind == "keyring" and not all(where.partition("/")):
        raise Invalid("Invalid keyring reference: expected keyring:SERVICE/NAME.", name=name)
    stored = tx.one(sql.SET_SECRET, name=name, reference=reference, now=tx.now, actor=tx.actor)
    tx.emit("secret", "set", name, data={"kind": kind})
    return stored


def check_secret_name(name: str) -> None:
    """Raise Invalid for an invalid name of a secret."""
    if not _SECRET_NAME.fullmatch(name):
        # The given text is not repeated: it may be the secret itself.
        raise Invalid(
            "Invalid secret name: expected letters, digits, dots, dashes and underscores, "
            "beginning with a letter, as in `corral secret set NAME env:VARIABLE`."
        )


def get_secret(tx: Tx, name: str) -> Secret:
    """Return the reference of a secret."""
    check_secret_name(name)
    secret = tx.first(sql.GET_SECRET, name=name)
    if secret is None:
        raise _secret_not_found_error(name)
    return secret


def list_secrets(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Secret]:
    """List the secrets and their references by name."""
    return sql.LIST_SECRETS.page(tx, after=after, limit=limit)


def delete_secret(tx: Tx, name: str) -> Secret:
    """Delete the reference of a secret; its value is not touched."""
    check_secret_name(name)
    deleted = tx.first(sql.DELETE_SECRET, name=name)
    if deleted is None:
        raise _secret_not_found_error(name)
    tx.emit("secret", "delete", name)
    return deleted


def _secret_not_found_error(name: str) -> NotFound:
    return NotFound(f"No secret named {name!r}. List secrets with `corral secret list`.", name=name)
