"""The table of remote calls: how each operation is called over HTTP.

The HTTP API generates its routes and its OpenAPI description from it, the client its methods:

    GET  /api/runs                runs.list
    GET  /api/runs/ID             runs.get
    GET  /api/runs/ID/samples     runs.samples
    GET  /api/insights/overview   insights.overview
    POST /api/mail/put            mail.put
    POST /api/runs/ID/stop        runs.stop

Reads take their arguments from the query string, writes from a JSON object. An argument that is a
record in the Python API is sent as its id; the daemon uses the stored record.
"""

import collections.abc
import inspect
import types
import typing
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from corral.api.catalog import (
    OperationInfo,
    describe_operation,
    list_operations,
    resource_class,
    resource_names,
)
from corral.api.operation import Operation
from corral.kernel.unset import UNSET

# attribute.verb -> why it is not available over HTTP.
_SUPERVISOR = "it is for the supervisor of a run, on the same machine"
_DAEMON = "it is for the loops of the daemon"
_INTERNAL = "it is a part of another operation"
_FILES = "it uses files of the machine that calls it"
_SECRETS = "values of secrets do not leave their machine"
LOCAL_ONLY = {
    "alerts.raise_alert": _SUPERVISOR,
    "alerts.start_delivery": _DAEMON,
    "charges.exceeded_budget": _SUPERVISOR,
    "charges.release": _SUPERVISOR,
    "charges.reserve": _SUPERVISOR,
    "charges.set_prices": _INTERNAL,
    "charges.unpriced": _INTERNAL,
    "channels.save_cursor": _DAEMON,
    "channels.save_health": _DAEMON,
    "channels.open": _SECRETS,
    "channels.test": _SECRETS,
    "db.backup": _FILES,
    "db.migrate": "a store is migrated before a daemon serves it",
    "db.move": "a store is moved while no daemon serves it",
    "db.restore": _FILES,
    "db.cancel_move": "no daemon serves a store that is being moved",
    "decisions.expire_due": _DAEMON,
    "imports.import_transcripts": _FILES,
    "imports.import_database": _FILES,
    "guard.check_commit": _FILES,
    "chat.receive_webhook": "platforms call POST /channels/NAME",
    "chat.reply_address": _DAEMON,
    "chat.deliver": _DAEMON,
    "chat.sync_sandbox": _SUPERVISOR,
    "chat.run_upkeep": _DAEMON,
    "chat.is_used": _DAEMON,
    "chat.next_due": _DAEMON,
    "chat.prepare_sandbox": _SUPERVISOR,
    "chat.finish_turns": _DAEMON,
    "chat.poll": _DAEMON,
    "chat.start_turns": _DAEMON,
    "guard.locate": _FILES,
    "guard.locate_all": _FILES,
    "guard.acquire_for_edit": _FILES,
    "locks.commit": _FILES,
    "locks.release_for_run": _SUPERVISOR,
    "locks.expire_due": _DAEMON,
    "locks.forecast": _FILES,
    "locks.forecast_live": _DAEMON,
    "locks.install": _FILES,
    "locks.uninstall": _FILES,
    "mail.expire_due": _DAEMON,
    "messages.file": _FILES,
    "messages.next": "it is for a run, on the same machine",
    "messages.receive": _FILES,
    "messages.receive_all": _FILES,
    "nodes.renew": _DAEMON,
    "nodes.heartbeat": _DAEMON,
    "nodes.join": _DAEMON,
    "nodes.leave": _DAEMON,
    "nodes.mark_lost": _DAEMON,
    "nodes.acquire_leadership": _DAEMON,
    "nodes.release_leadership": _DAEMON,
    "outputs.add_chunk": _SUPERVISOR,
    "outputs.begin": _SUPERVISOR,
    "outputs.chunk": _INTERNAL,
    "outputs.clear_deleted": _FILES,
    "outputs.delete_record": _INTERNAL,
    "outputs.index": _INTERNAL,
    "outputs.log_many": _SUPERVISOR,
    "outputs.lose": _INTERNAL,
    "outputs.record_progress": _SUPERVISOR,
    "outputs.seal": _SUPERVISOR,
    "outputs.seal_folder": _FILES,
    "outputs.list_unsealed": _INTERNAL,
    "projects.configure": _FILES,
    "projects.install_agent_docs": _FILES,
    "projects.export": _FILES,
    "questions.expire_due": _DAEMON,
    "races.advance_open": _DAEMON,
    "races.export": _FILES,
    "races.hand_over": "the daemon drives races that were started over HTTP",
    "runs.add_sample": _SUPERVISOR,
    "runs.clean_up": _SUPERVISOR,
    "runs.request_stop": "use `runs.stop`",
    "runs.set_attention": _SUPERVISOR,
    "runs.record_environment": _SUPERVISOR,
    "runs.end": _SUPERVISOR,
    "runs.fail": _INTERNAL,
    "runs.end_orphaned": _SUPERVISOR,
    "runs.heartbeat": _SUPERVISOR,
    "runs.launch": _SUPERVISOR,
    "runs.park": _SUPERVISOR,
    "runs.record": "it identifies a process of the machine that calls it",
    "runs.enqueue": "use `runs.start`",
    "runs.restart": _SUPERVISOR,
    "runs.drain_queue": _SUPERVISOR,
    "runs.acquire": _SUPERVISOR,
    "runs.take_over": _SUPERVISOR,
    "runs.update_details": _SUPERVISOR,
    "runs.release_claim": _SUPERVISOR,
    "schedules.fire_due": _DAEMON,
    "schedules.run_script": _DAEMON,
    "search.index_turns": _INTERNAL,
    "secrets.save_value": _SECRETS,
    "secrets.resolve": _SECRETS,
    "secrets.resolve_reference": _SECRETS,
    "tasks.clean": _FILES,
    "tasks.start_ready": _DAEMON,
    "teams.start": _FILES,
    "tokens.check": "it is internal to the HTTP API",
    "tokens.ensure_file": _FILES,
    "tokens.record_use": "it is internal to the HTTP API",
}

# Operations with a streaming response, and their routes.
STREAMED = {
    "events.follow": "GET /api/events",
    "outputs.follow": "GET /api/runs/ID/output",
    "outputs.open": "GET /api/runs/ID/output",
    "runs.wait_for_start": "GET /api/runs/ID, repeatedly",
}

# Methods that only read.
_READING = {
    "db.check",
    "db.schema_version",
    "db.sql",
    "db.verify",
    "decisions.wait",
    "locks.list",
    "locks.wait",
    "mail.list",
    "questions.wait",
    "races.changes",
    "races.diff",
    "races.latest",
    "races.attempt_progress",
    "races.wait",
    "runs.takes_input",
    "runs.wait",
    "search.find",
}

# The argument with the time that a call may wait. The client repeats requests of MAX_WAIT_MS.
WAIT_ARGUMENTS = {
    "decisions.wait": "timeout_ms",
    "locks.wait": "timeout_ms",
    "mail.claim": "wait_ms",
    "questions.wait": "timeout_ms",
    "races.wait": "timeout_ms",
    "runs.wait": "timeout_ms",
}
MAX_WAIT_MS = 30_000

# Names of a first argument that may be part of the path.
_SUBJECTS = {"id", "run_id", "letter", "run"}

# Options of a run that a remote caller cannot set.
_LOCAL_OPTIONS = {"claimed", "remote"}

# Arguments that are not available over HTTP. To wait for a lock, use `locks.request`, `locks.wait`.
LOCAL_ARGUMENTS = {"locks.acquire": {"wait", "timeout_ms"}, "db.verify": {"on_progress"}}

LOCATION_ARGUMENTS = {"races.start": "project", "runs.start": "project", "runs.resume": "project"}
"""The argument with the project, by id or absolute path. It is required over HTTP: the working
directory of the server is never meant."""
OPTIONAL_LOCATION = {"runs.start", "runs.resume"}
"""Calls whose project may come from the session or the agent instead."""

_INT = Annotated[int, msgspec.Meta(ge=-(2**63) + 1, le=2**63 - 1)]


class CallField(NamedTuple):
    """One argument of a call."""

    name: str
    type: Any
    required: bool
    default: Any
    """The default, if JSON can express it."""
    record: type[Any] | None
    """The record type, when the operation takes a record and the call sends its id."""

    @property
    def is_list(self) -> bool:
        """Whether the argument may be repeated in a query string."""
        return any(typing.get_origin(kind) is list for kind in _options(self.type))


class RemoteCall(NamedTuple):
    """One operation as an HTTP request."""

    attribute: str
    verb: str
    method: Literal["GET", "POST"]
    subject: str | None
    """The argument that is part of the path."""
    fields: tuple[CallField, ...]
    positional: tuple[str, ...]
    arguments: type[msgspec.Struct]
    result: Any
    help: str

    @property
    def name(self) -> str:
        return f"{self.attribute}.{self.verb}"

    @property
    def path(self) -> str:
        """The path below /api, with {…} for the subject."""
        if self.verb == "list" and self.method == "GET":
            return f"/{self.attribute}"
        if self.subject is None:
            return f"/{self.attribute}/{self.verb}"
        if self.verb == "get":
            return f"/{self.attribute}/{{{self.subject}}}"
        return f"/{self.attribute}/{{{self.subject}}}/{self.verb}"


@cache
def find_call(attribute: str, verb: str) -> RemoteCall | None:
    """Return how an operation is called over HTTP; None when it is unknown or local only."""
    name = f"{attribute}.{verb}"
    if (
        attribute not in resource_names()
        or verb.startswith("_")
        or name in LOCAL_ONLY
        or name in STREAMED
    ):
        return None
    resource = resource_class(attribute)
    member = vars(resource).get(verb)
    if member is None:
        return None
    operation = describe_operation(attribute, resource, verb, member)
    return None if operation is None else _build_call(operation, member)


def list_calls() -> list[RemoteCall]:
    """List every operation that can be called over HTTP."""
    found = (find_call(operation.attribute, operation.verb) for operation in list_operations())
    return [call for call in found if call is not None]


def _build_call(operation: OperationInfo, member: Any) -> RemoteCall:
    function = member.function if isinstance(member, Operation) else member
    name = f"{operation.attribute}.{operation.verb}"
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[CallField] = []
    positional: list[str] = []
    for parameter in operation.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            fields += _unpack_options(hints[parameter.name])
            continue
        if parameter.name in LOCAL_ARGUMENTS.get(name, ()):
            continue
        if parameter.name == LOCATION_ARGUMENTS.get(name):
            fields.append(CallField(parameter.name, str, True, None, None))
            continue
        fields.append(_field(parameter, hints[parameter.name]))
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            positional.append(parameter.name)
    is_read = operation.kind == "read" or name in _READING
    has_subject = bool(positional) and _is_subject(operation, positional[0])
    return RemoteCall(
        operation.attribute,
        operation.verb,
        "GET" if is_read else "POST",
        positional[0] if has_subject else None,
        tuple(fields),
        tuple(positional),
        _arguments_struct(name, fields),
        hints["return"],
        operation.help,
    )


def _is_subject(operation: OperationInfo, first: str) -> bool:
    return first in _SUBJECTS or first == operation.noun or operation.verb == "get"


def _field(parameter: inspect.Parameter, hint: Any) -> CallField:
    required = parameter.default is inspect.Parameter.empty
    default = None if required or parameter.default is UNSET else parameter.default
    sent, record = _sendable(hint)
    return CallField(parameter.name, sent, required, default, record)


def _unpack_options(hint: Any) -> list[CallField]:
    (options,) = typing.get_args(hint)  # Unpack[…]
    hints = typing.get_type_hints(options)
    return [
        CallField(name, _sendable(kind)[0], False, None, None)
        for name, kind in hints.items()
        if name not in _LOCAL_OPTIONS
    ]


def _sendable(hint: Any) -> tuple[Any, type[Any] | None]:
    """Return the JSON type of an argument, and the record type that its id stands for."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and "id" in _fields_of(hint):
        return str, hint
    options = _options(hint)
    if str in options or Path in options:
        # A record is sent as its id and a path as text, so text alone remains.
        options = [kind for kind in options if not _is_record(kind) and kind is not Path]
        options = options if str in options else [str, *options]
    elif any(_is_record(kind) for kind in options):
        options = [kind for kind in options if typing.get_origin(kind) is not dict]
    return _union([_bounded(kind) for kind in options]), None


def _bounded(kind: Any) -> Any:
    """Return the type with bounds for integers, and with `list` for every sequence."""
    if kind is int:
        return _INT
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, collections.abc.Sequence, collections.abc.Iterable) and arguments:
        return types.GenericAlias(list, (_sendable(arguments[0])[0],))
    return kind


def _options(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return list(typing.get_args(hint))
    return [hint]


def _union(options: list[Any]) -> Any:
    union = options[0]
    for option in options[1:]:
        union = union | option
    return union


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _fields_of(record: type[msgspec.Struct]) -> tuple[str, ...]:
    return record.__struct_fields__


def _arguments_struct(name: str, fields: list[CallField]) -> type[msgspec.Struct]:
    definitions = [
        (field.name, field.type)
        if field.required
        else (field.name, field.type | msgspec.UnsetType, msgspec.UNSET)
        for field in fields
    ]
    title = "".join(part.title() for part in name.replace(".", "_").split("_"))
    return msgspec.defstruct(title, definitions, kw_only=True, forbid_unknown_fields=True)
