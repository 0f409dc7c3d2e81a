"""The catalog of operations: every verb of every noun, as data.

It is derived from the classes of the API, so it cannot differ from them. Interfaces and the
reference docs are generated from it.
"""

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from corral.api import Corral
from corral.api.lazy_resource import LazyResource
from corral.api.operation import Kind, Operation, Resource, find_operation
from corral.api.policy import OperationPolicy


class OperationInfo(NamedTuple):
    """One operation: `store.<attribute>.<verb>`, `corral <noun> <verb>`."""

    attribute: str
    noun: str
    verb: str
    kind: Kind
    policy: OperationPolicy
    signature: inspect.Signature
    help: str

    @property
    def name(self) -> str:
        """The name in errors, permissions and the OpenAPI document."""
        return f"{self.attribute}.{self.verb}"

    @property
    def is_read(self) -> bool:
        return self.kind == "read" or self.policy.reads


def resource_names(owner: type = Corral) -> list[str]:
    """List the attributes of an open store that are resources, without importing their classes."""
    return [name for name, member in vars(owner).items() if isinstance(member, LazyResource)]


def resource_class(attribute: str, owner: type = Corral) -> type[Resource]:
    """Return the class of a resource. Imports its module, but needs no store."""
    resource: LazyResource[Resource] = vars(owner)[attribute]
    return resource.load_class()


def resource_classes(owner: type = Corral) -> dict[str, type[Resource]]:
    """Return the class of every resource by its attribute."""
    return {attribute: resource_class(attribute, owner) for attribute in resource_names(owner)}


def list_operations(owner: type = Corral) -> Iterator[OperationInfo]:
    """Yield every public operation of every resource; of `InternalStore`, the internal ones."""
    for attribute, resource in resource_classes(owner).items():
        for verb, member in vars(resource).items():
            if isinstance(member, Operation) and not verb.startswith("_"):
                yield _describe(attribute, resource, member)


def find_declaration(attribute: str, verb: str) -> Operation[..., Any] | None:
    """Return the declaration of a public operation; None if it is unknown."""
    if attribute not in resource_names() or verb.startswith("_"):
        return None
    return find_operation(resource_class(attribute), verb)


def describe_operation(attribute: str, verb: str) -> OperationInfo | None:
    """Describe a public operation; returns None when it is unknown."""
    member = find_declaration(attribute, verb)
    if member is None:
        return None
    return _describe(attribute, resource_class(attribute), member)


def _describe(
    attribute: str, resource: type[Resource], member: Operation[..., Any]
) -> OperationInfo:
    return OperationInfo(
        attribute,
        resource.noun,
        member.name,
        member.kind,
        member.policy,
        member.__signature__,
        _summary(member),
    )


def _summary(member: Operation[..., Any]) -> str:
    """Return the first paragraph of the docstring."""
    paragraph = (inspect.getdoc(member) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())
