"""The catalog of operations: every verb of every noun, as data.

It is derived from the classes of the API, so it cannot differ from them. Interfaces and the
reference docs are generated from it.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from corral.api import Corral
from corral.api.lazy_resource import LazyResource
from corral.api.operation import Operation, Resource


class OperationInfo(NamedTuple):
    """One operation: `store.<attribute>.<verb>`, `corral <noun> <verb>`."""

    attribute: str
    noun: str
    verb: str
    kind: str
    """read, write, or method: it composes operations or needs more than a transaction."""
    signature: inspect.Signature
    help: str


def resource_names() -> list[str]:
    """List the attributes of an open store that are resources, without importing their classes."""
    return [name for name, member in vars(Corral).items() if isinstance(member, LazyResource)]


def resource_class(attribute: str) -> type[Resource]:
    """Return the class of a resource. Imports its module, but needs no store."""
    resource: LazyResource[Resource] = vars(Corral)[attribute]
    return resource.load_class()


def resource_classes() -> dict[str, type[Resource]]:
    """Return the class of every resource by its attribute."""
    return {attribute: resource_class(attribute) for attribute in resource_names()}


def list_operations() -> Iterator[OperationInfo]:
    """Yield every public operation of every resource."""
    for attribute, resource in resource_classes().items():
        for verb, member in vars(resource).items():
            if verb.startswith("_"):
                continue
            operation = describe_operation(attribute, resource, verb, member)
            if operation is not None:
                yield operation


def describe_operation(
    attribute: str, resource: type[Resource], verb: str, member: Any
) -> OperationInfo | None:
    """Describe a member of a resource class; returns None when it is not an operation."""
    kind: str
    if isinstance(member, Operation):
        kind, function = member.kind, member.function
    elif inspect.isfunction(member):
        kind, function = "method", member
    else:
        return None
    signature = _without_first(function)
    return OperationInfo(attribute, resource.noun, verb, kind, signature, _summary(member))


def _without_first(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature without `self` or the transaction."""
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _summary(member: Any) -> str:
    """Return the first paragraph of the docstring."""
    paragraph = (inspect.getdoc(member) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())
