"""Choosing values, and pointing to secrets."""

import re
from typing import Any

import msgspec

from corral.db.tx import Tx
from corral.domain.settings import sql
from corral.domain.settings.model import KNOWN, Known, Secret, Setting
from corral.kernel.clock import format_duration
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, convert, encode_json

_SCOPE = re.compile(r"global|(?:project|agent):\S{1,200}")
_SECRET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
REFERENCE_KINDS = ("env", "file", "cmd", "keyring")


def set_value(tx: Tx, name: str, value: Any, *, scope: str = "global") -> Setting:
    """Choose a value for everything, one project (`project:prj_…`) or one agent (`agent:NAME`)."""
    _check_scope(scope)
    checked = _check_value(name, value)
    if scope.partition(":")[0] not in (where := _known(name).scopes):
        raise Invalid(
            f"{name} is chosen for {' or '.join(where)} only; leave the scope out.",
            name=name,
            scope=scope,
            reason="global_only",
        )
    before = value_in(tx, name, scope)
    tx.run(
        sql.SET,
        scope=scope,
        name=name,
        value=encode_json(checked, "The value"),
        now=tx.now,
        actor=tx.actor,
    )
    tx.note(
        "setting",
        "set",
        f"{scope}/{name}",
        project_id=_project_of(scope),
        data={"value": checked, "before": before},
    )
    return Setting(name, checked, scope, tx.now, tx.actor, _known(name).help)


def unset_value(tx: Tx, name: str, *, scope: str = "global") -> Setting:
    """Take a choice back, so that the next wider one counts again; says what counts now."""
    _check_scope(scope)
    _known(name)
    if tx.run(sql.UNSET, scope=scope, name=name):
        tx.note("setting", "unset", f"{scope}/{name}", project_id=_project_of(scope))
    return get_setting(tx, name, agent=_agent_of(scope), project=_project_of(scope))


def get_setting(
    tx: Tx, name: str, *, agent: str | None = None, project: str | None = None
) -> Setting:
    """The value that counts for an agent in a project, and where it comes from."""
    known = _known(name)
    scopes = [
        f"{kind}:{clean_text(id, f'The {kind}', most=MAX_NAME)}"
        for kind, id in (("agent", agent), ("project", project))
        if id
    ] + ["global"]
    nearest = {"agent": scopes[0], "project": scopes[-2] if len(scopes) > 1 else "global"}
    chosen = {found.scope: found for found in tx.all(sql.GET, name=name, **nearest)}
    for scope in scopes:
        if scope in chosen:
            return msgspec.structs.replace(chosen[scope], help=known.help)
    return Setting(name, known.default, "default", None, None, known.help)


def value(tx: Tx, name: str, *, agent: str | None = None, project: str | None = None) -> Any:
    """The value alone, for the operations that obey it."""
    return get_setting(tx, name, agent=agent, project=project).value


def value_in(tx: Tx, name: str, scope: str) -> Any:
    return value(tx, name, agent=_agent_of(scope), project=_project_of(scope))


def of_projects(tx: Tx, name: str) -> dict[str, Any]:
    """The values that projects have chosen for themselves, by their ids."""
    return {
        found.scope.removeprefix("project:"): found.value
        for found in tx.all(sql.OF_PROJECTS, name=name)
    }


def values(tx: Tx, name: str) -> list[Any]:
    """Every value that counts for some project, or for whatever belongs to none."""
    return [value(tx, name), *of_projects(tx, name).values()]


def list_settings(tx: Tx, *, scope: str = "global") -> Page[Setting]:
    """Every known setting with the value that a scope gives it, in the order of their names."""
    _check_scope(scope)
    own = {found.name: found for found in tx.all(sql.LIST, scope=scope)}
    wide = (
        own
        if scope == "global"
        else {found.name: found for found in tx.all(sql.LIST, scope="global")}
    )
    return Page(
        [
            msgspec.structs.replace(found, help=known.help)
            if (found := own.get(name) or wide.get(name))
            else Setting(name, known.default, "default", None, None, known.help)
            for name, known in sorted(KNOWN.items())
        ]
    )


def forget_scope(tx: Tx, scope: str) -> None:
    """Drop every choice made for a project or agent that is being deleted."""
    tx.run(sql.UNSET_ALL, scope=scope)


def _known(name: str) -> Known:
    if name in KNOWN:
        return KNOWN[name]
    from difflib import get_close_matches

    near = get_close_matches(name, KNOWN, 1)
    hint = f"did you mean {near[0]}?" if near else "`corral setting list` shows all there are."
    raise Invalid(f"There is no setting {name!r}; {hint}", name=name, reason="unknown_setting")


def _check_value(name: str, value: Any) -> Any:
    known = _known(name)
    try:
        checked = convert(value, known.type)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"{name} cannot be {value!r}: {error}.", name=name, value=value, reason="bad_value"
        ) from None
    low, high = known.low, known.high
    numbers = checked if isinstance(checked, list) else [checked]
    words = all(isinstance(each, str) for each in numbers) and (numbers or not known.default)
    if words and len(numbers) <= 100:
        return checked
    if not numbers or len(numbers) > 100 or any(not low <= number <= high for number in numbers):
        raise Invalid(
            f"{name} cannot be {_shown(name, value)}: it goes from {_shown(name, low)} to "
            f"{_shown(name, high)}.",
            name=name,
            value=value,
            reason="out_of_range",
        )
    return checked


def _shown(name: str, value: Any) -> str:
    """A value as people write it: durations as 1h30m."""
    is_time = name.endswith("_ms") and isinstance(value, int) and value >= 0
    return format_duration(value) if is_time else repr(value)


def _check_scope(scope: str) -> None:
    if not _SCOPE.fullmatch(clean_text(scope, "The scope", most=MAX_NAME)):
        raise Invalid(
            f"{scope!r} is no scope; write global, project:ID or agent:NAME.", scope=scope
        )


def _project_of(scope: str) -> str | None:
    return scope.removeprefix("project:") if scope.startswith("project:") else None


def _agent_of(scope: str) -> str | None:
    return scope.removeprefix("agent:") if scope.startswith("agent:") else None


def set_secret(tx: Tx, name: str, reference: str) -> Secret:
    """Say where a secret is: env:NAME, file:PATH, cmd:COMMAND or keyring:SERVICE/NAME."""
    check_secret_name(name)
    kind, colon, where = clean_text(reference, "The reference", most=4_096).partition(":")
    if kind not in REFERENCE_KINDS or not colon or not where.strip():
        # The text is not repeated: it may be the secret itself.
        raise Invalid(
            "Corral keeps references to secrets, never the secrets; write env:NAME, "
            "file:PATH, cmd:COMMAND or keyring:SERVICE/NAME.",
            name=name,
        )
    if kind == "keyring" and not all(where.partition("/")):
        raise Invalid("A keyring reference has two parts: keyring:SERVICE/NAME.", name=name)
    stored = tx.one(sql.SET_SECRET, name=name, reference=reference, now=tx.now, actor=tx.actor)
    assert stored is not None
    tx.note("secret", "set", name, data={"kind": kind})
    return stored


def check_secret_name(name: str) -> None:
    if not _SECRET_NAME.fullmatch(name):
        # The text is not repeated: it may be the secret itself.
        raise Invalid(
            "That is no name for a secret; use letters, digits, dots, dashes and underscores, and "
            "begin with a letter. `corral secret set NAME env:VARIABLE` gives one its name."
        )


def get_secret(tx: Tx, name: str) -> Secret:
    """Where a secret is to be found."""
    check_secret_name(name)
    found = tx.one(sql.GET_SECRET, name=name)
    if found is None:
        raise _no_secret(name)
    return found


def list_secrets(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Secret]:
    """The names of secrets and where each is to be found."""
    (name,) = decode_cursor(after, "")
    rows = tx.all(sql.LIST_SECRETS, after=name, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda secret: (secret.name,))


def delete_secret(tx: Tx, name: str) -> Secret:
    """Forget where a secret is; the secret itself stays where it was."""
    check_secret_name(name)
    gone = tx.one(sql.DELETE_SECRET, name=name)
    if gone is None:
        raise _no_secret(name)
    tx.note("secret", "delete", name)
    return gone


def _no_secret(name: str) -> NotFound:
    return NotFound(
        f"There is no secret {name!r}; `corral secret list` shows all there are.", name=name
    )
