"""Remote calls: how each operation is called over HTTP, derived from its declaration.

The HTTP API generates its routes and its OpenAPI description from the calls, the client its
methods:

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
    find_declaration,
    list_operations,
    resource_class,
)
from corral.api.policy import OperationPolicy
from corral.kernel.unset import UNSET

MAX_WAIT_MS = 30_000
"""The longest wait of one request. The client repeats requests until its own time is over."""

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

    resource_name: str
    verb: str
    method: Literal["GET", "POST"]
    subject: str | None
    """The argument that is part of the path."""
    fields: tuple[CallField, ...]
    positional: tuple[str, ...]
    arguments: type[msgspec.Struct]
    result: Any
    objects: tuple[tuple[str, str], ...]
    """The arguments that name records of projects, each with the attribute of its resource."""
    policy: OperationPolicy
    help: str

    @property
    def name(self) -> str:
        return f"{self.resource_name}.{self.verb}"

    @property
    def path(self) -> str:
        """The path below /api, with {…} for the subject."""
        if self.verb == "list" and self.method == "GET":
            return f"/{self.resource_name}"
        if self.subject is None:
            return f"/{self.resource_name}/{self.verb}"
        if self.verb == "get":
            return f"/{self.resource_name}/{{{self.subject}}}"
        return f"/{self.resource_name}/{{{self.subject}}}/{self.verb}"


@cache
def find_call(resource_name: str, verb: str) -> RemoteCall | None:
    """Return how an operation is called over HTTP; None when it is unknown or local only."""
    operation = describe_operation(resource_name, verb)
    if operation is None or operation.policy.local or operation.policy.streamed:
        return None
    declaration = find_declaration(resource_name, verb)
    assert declaration is not None
    return _build_call(operation, declaration.type_hints())


def is_verb(resource_name: str, text: str) -> bool:
    """Whether `text` is the verb of an operation: /api/RESOURCE/TEXT then names the operation."""
    return find_declaration(resource_name, text) is not None


def list_calls() -> list[RemoteCall]:
    """List every operation that can be called over HTTP."""
    found = (find_call(operation.attribute, operation.verb) for operation in list_operations())
    return [call for call in found if call is not None]


def _build_call(operation: OperationInfo, hints: dict[str, Any]) -> RemoteCall:
    policy = operation.policy
    fields: list[CallField] = []
    positional: list[str] = []
    for parameter in operation.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            fields += _unpack_options(hints[parameter.name], policy)
            continue
        if parameter.name in policy.local_arguments:
            continue
        if policy.location is not None and parameter.name == policy.location.argument:
            fields.append(CallField(parameter.name, str, True, None, None))
            continue
        fields.append(_field(parameter, hints[parameter.name]))
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            positional.append(parameter.name)
    resource = resource_class(operation.attribute)
    subjects = {*resource.subjects, policy.subject}
    subject = positional[0] if positional and positional[0] in subjects else None
    objects = [*policy.objects.items()]
    if subject is not None and resource.are_in_projects:
        objects.append((subject, operation.attribute))
    return RemoteCall(
        operation.attribute,
        operation.verb,
        "GET" if operation.is_read else "POST",
        subject,
        tuple(fields),
        tuple(positional),
        _arguments_struct(operation.name, fields),
        hints["return"],
        tuple(objects),
        policy,
        operation.help,
    )


def _field(parameter: inspect.Parameter, hint: Any) -> CallField:
    required = parameter.default is inspect.Parameter.empty
    default = None if required or parameter.default is UNSET else parameter.default
    sent, record = _sendable(hint)
    return CallField(parameter.name, sent, required, default, record)


def _unpack_options(hint: Any, policy: OperationPolicy) -> list[CallField]:
    (options,) = typing.get_args(hint)  # Unpack[…]
    hints = typing.get_type_hints(options)
    return [
        CallField(name, _sendable(kind)[0], False, None, None)
        for name, kind in hints.items()
        if name not in policy.local_arguments
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
