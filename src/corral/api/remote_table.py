"""How operations are called from afar: the table of operations once more, as requests.

Both ends read it: the HTTP API makes its routes and its description of them from it, the client its
methods. `GET /api/runs` is runs.list, `GET /api/runs/ID` is runs.get, `GET /api/runs/ID/samples`
and `GET /api/insights/overview` ask, `POST /api/mail/put` and `POST /api/runs/ID/stop` act. What an
operation takes is a JSON object, of a question the query of the URL. A record that an operation
takes in a method is named by its id here: what the store knows of it counts, not what is sent.
"""

import collections.abc
import inspect
import types
import typing
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from corral.api.operation import Operation, Room
from corral.api.operations import Row, attributes, describe, operations, room_of
from corral.kernel.unset import KEEP

# attribute.verb -> why it can only be called where the store is.
_KEEPER = "what a keeper says of the run that it holds, on its machine"
_DAEMON = "a loop of the daemon's, which has the store open"
_PART = "part of another operation"
_FILES = "it works with files of the machine that it is called on"
_VALUES = "a secret's value is for a process that starts on the same machine"
LOCAL = {
    "alerts.raise_alert": _KEEPER,
    "alerts.see_to_delivery": _DAEMON,
    "charges.over_budget": _KEEPER,
    "charges.release": _KEEPER,
    "charges.reserve": _KEEPER,
    "charges.set_prices": _PART,
    "charges.unpriced": _PART,
    "channels.note_cursor": _DAEMON,
    "channels.note_health": _DAEMON,
    "channels.open": _VALUES,
    "channels.test": _VALUES,
    "db.backup": _FILES,
    "db.migrate": "a store is brought up to date before it is served",
    "db.move": "the daemon that serves a store must be gone before it is moved",
    "db.restore": _FILES,
    "db.stay": "no daemon serves a store that is on its way",
    "decisions.expire_due": _DAEMON,
    "imports.bring": _FILES,
    "imports.take": _FILES,
    "guard.commit_in_the_way": _FILES,
    "gateway.accept": "POST /channels/NAME, as platforms call it",
    "gateway.address": _DAEMON,
    "gateway.deliver": _DAEMON,
    "gateway.exchange": _KEEPER,
    "gateway.look_after": _DAEMON,
    "gateway.next_due": _DAEMON,
    "gateway.prepare": _KEEPER,
    "gateway.settle": _DAEMON,
    "gateway.take_in": _DAEMON,
    "gateway.wake": _DAEMON,
    "guard.place_of": _FILES,
    "guard.places_of": _FILES,
    "guard.take_for_edit": _FILES,
    "locks.commit": _FILES,
    "locks.end_of_run": _KEEPER,
    "locks.expire_due": _DAEMON,
    "locks.forecast": _FILES,
    "locks.forecast_live": _DAEMON,
    "locks.install": _FILES,
    "locks.uninstall": _FILES,
    "mail.expire_due": _DAEMON,
    "messages.file": _FILES,
    "messages.next": "a run asks for its own letters, where it runs",
    "messages.receive": _FILES,
    "messages.receive_all": _FILES,
    "nodes.beat": _DAEMON,
    "nodes.heartbeat": _DAEMON,
    "nodes.join": _DAEMON,
    "nodes.leave": _DAEMON,
    "nodes.lose_silent": _DAEMON,
    "nodes.take_lead": _DAEMON,
    "nodes.yield_lead": _DAEMON,
    "outputs.add_chunk": _KEEPER,
    "outputs.begin": _KEEPER,
    "outputs.chunk": _PART,
    "outputs.clear_deleted": _FILES,
    "outputs.forget": _PART,
    "outputs.index": _PART,
    "outputs.log_many": _KEEPER,
    "outputs.lose": _PART,
    "outputs.progress": _KEEPER,
    "outputs.seal": _KEEPER,
    "outputs.seal_folder": _FILES,
    "outputs.unsealed": _PART,
    "projects.configure": _FILES,
    "projects.equip": _FILES,
    "projects.export": _FILES,
    "questions.expire_due": _DAEMON,
    "races.advance_open": _DAEMON,
    "races.export": _FILES,
    "races.leave": "the daemon drives what was started from afar",
    "runs.add_sample": _KEEPER,
    "runs.after_end": _KEEPER,
    "runs.begin_to_stop": "`runs.stop` does it and sees to the end",
    "runs.call_for": _KEEPER,
    "runs.describe": _KEEPER,
    "runs.end": _KEEPER,
    "runs.fail": _PART,
    "runs.give_up": _KEEPER,
    "runs.heartbeat": _KEEPER,
    "runs.launch": _KEEPER,
    "runs.park": _KEEPER,
    "runs.record": "it reads the identity of a process of the machine that it is called on",
    "runs.request": "`runs.ask` asks for the same, and checks it",
    "runs.restart": _KEEPER,
    "runs.see_to_line": _KEEPER,
    "runs.start": _KEEPER,
    "runs.take_over": _KEEPER,
    "runs.tell": _KEEPER,
    "runs.unclaim": _KEEPER,
    "schedules.fire_due": _DAEMON,
    "schedules.run_script": _DAEMON,
    "search.index_turns": _PART,
    "secrets.keep": _VALUES,
    "secrets.resolve": _VALUES,
    "secrets.value_of": _VALUES,
    "tasks.clean": _FILES,
    "tasks.start_ready": _DAEMON,
    "teams.start": _FILES,
    "tokens.check": "the API's own work",
    "tokens.in_file": _FILES,
    "tokens.note_use": "the API's own work",
}

# What is no single answer, and where it is.
STREAMS = {
    "events.follow": "GET /api/events",
    "outputs.follow": "GET /api/runs/ID/output",
    "outputs.open": "GET /api/runs/ID/output",
    "runs.wait_for_start": "GET /api/runs/ID, again and again",
}

# Methods (they compose operations) that only ask.
_ASKING = {
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
    "races.so_far",
    "races.wait",
    "runs.takes_input",
    "runs.wait",
    "search.find",
}

# The argument that says for how long a call may wait; each waits a while, and is called again.
WAITS = {
    "decisions.wait": "timeout_ms",
    "locks.wait": "timeout_ms",
    "mail.claim": "wait_ms",
    "questions.wait": "timeout_ms",
    "races.wait": "timeout_ms",
    "runs.wait": "timeout_ms",
}
LONGEST_WAIT_MS = 30_000

# The first argument of these names what they are about, so it may stand in the path.
_NAMES = {"id", "run_id", "letter", "run"}

# Only for whoever brings a keeper along, and what is so by itself.
_NOT_FROM_AFAR = {"claimed", "afar"}

# From afar, `locks.request` and then `locks.wait` wait for a lock, and keep its place in line.
_ONLY_HERE = {"locks.acquire": {"wait", "timeout_ms"}, "db.verify": {"told"}}

PLACES = {"races.start": "project", "runs.ask": "project", "runs.resume": "project"}
"""The argument that says where work is done, by a project's id or a whole path: nobody who calls
from afar means the directory that the server happens to be in."""
WISHES = {"runs.ask", "runs.resume"}
"""A session or an agent may have a place of its own; where none has, these are told to ask."""

_INT = Annotated[int, msgspec.Meta(ge=-(2**63) + 1, le=2**63 - 1)]


class Field(NamedTuple):
    """One argument of a call."""

    name: str
    type: Any
    required: bool
    default: Any
    """What it is when it is left out, as far as JSON can say it."""
    record: type[Any] | None
    """The record that its id stands for, where the operation wants the record."""

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times in the query of a URL."""
        return any(typing.get_origin(kind) is list for kind in _options(self.type))


class Call(NamedTuple):
    """One operation, as a request."""

    attribute: str
    verb: str
    method: Literal["GET", "POST"]
    subject: str | None
    """The argument that stands in the path."""
    fields: tuple[Field, ...]
    positional: tuple[str, ...]
    arguments: type[msgspec.Struct]
    result: Any
    help: str

    @property
    def name(self) -> str:
        return f"{self.attribute}.{self.verb}"

    @property
    def path(self) -> str:
        """Its path below /api, with {…} for the subject."""
        if self.verb == "list" and self.method == "GET":
            return f"/{self.attribute}"
        if self.subject is None:
            return f"/{self.attribute}/{self.verb}"
        if self.verb == "get":
            return f"/{self.attribute}/{{{self.subject}}}"
        return f"/{self.attribute}/{{{self.subject}}}/{self.verb}"


@cache
def call_of(attribute: str, verb: str) -> Call | None:
    """How an operation is called from afar; None when there is none, or it is local."""
    name = f"{attribute}.{verb}"
    if attribute not in attributes() or verb.startswith("_") or name in LOCAL or name in STREAMS:
        return None
    room = room_of(attribute)
    member = vars(room).get(verb)
    row = describe(attribute, room, verb, member) if member is not None else None
    return None if row is None else _make(row, room, member)


def calls() -> list[Call]:
    """Every operation that can be called from afar."""
    found = (call_of(row.attribute, row.verb) for row in operations())
    return [call for call in found if call is not None]


def _make(row: Row, room: type[Room], member: Any) -> Call:
    function = member.function if isinstance(member, Operation) else member
    name = f"{row.attribute}.{row.verb}"
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Field] = []
    positional: list[str] = []
    for parameter in row.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            fields += _unpacked(hints[parameter.name])
            continue
        if parameter.name in _ONLY_HERE.get(name, ()):
            continue
        if parameter.name == PLACES.get(name):
            fields.append(Field(parameter.name, str, True, None, None))
            continue
        fields.append(_field(parameter, hints[parameter.name]))
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            positional.append(parameter.name)
    subject = positional[0] if positional and _is_subject(row, positional[0]) else None
    asks = row.kind == "read" or name in _ASKING
    return Call(
        row.attribute,
        row.verb,
        "GET" if asks else "POST",
        subject,
        tuple(fields),
        tuple(positional),
        _struct(name, fields),
        hints["return"],
        row.help,
    )


def _is_subject(row: Row, first: str) -> bool:
    return first in _NAMES or first == row.noun or row.verb == "get"


def _field(parameter: inspect.Parameter, hint: Any) -> Field:
    required = parameter.default is inspect.Parameter.empty
    default = None if required or parameter.default is KEEP else parameter.default
    sent, record = _sendable(hint)
    return Field(parameter.name, sent, required, default, record)


def _unpacked(hint: Any) -> list[Field]:
    (wishes,) = typing.get_args(hint)  # Unpack[…]
    hints = typing.get_type_hints(wishes)
    return [
        Field(name, _sendable(kind)[0], False, None, None)
        for name, kind in hints.items()
        if name not in _NOT_FROM_AFAR
    ]


def _sendable(hint: Any) -> tuple[Any, type[Any] | None]:
    """What stands for a type in JSON, and the record that an id stands for."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and "id" in _fields_of(hint):
        return str, hint
    options = _options(hint)
    if str in options or Path in options:
        # A record or a path beside text: its id, its text.
        options = [kind for kind in options if not _is_record(kind) and kind is not Path]
        options = options if str in options else [str, *options]
    elif any(_is_record(kind) for kind in options):
        options = [kind for kind in options if typing.get_origin(kind) is not dict]
    return _union([_bounded(kind) for kind in options]), None


def _bounded(kind: Any) -> Any:
    """The type with bounds for whole numbers, and with one form for what JSON has one form for."""
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
    made = options[0]
    for option in options[1:]:
        made = made | option
    return made


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _fields_of(record: type[msgspec.Struct]) -> tuple[str, ...]:
    return record.__struct_fields__


def _struct(name: str, fields: list[Field]) -> type[msgspec.Struct]:
    made = [
        (field.name, field.type)
        if field.required
        else (field.name, field.type | msgspec.UnsetType, msgspec.UNSET)
        for field in fields
    ]
    title = "".join(part.title() for part in name.replace(".", "_").split("_"))
    return msgspec.defstruct(title, made, kw_only=True, forbid_unknown_fields=True)
