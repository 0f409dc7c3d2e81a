"""The catalog of operations: every verb of every noun, as data.

It is derived from the classes of the API, so it cannot differ from them. Interfaces and the
reference docs are generated from it.
"""

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from corral.api import Corral
from corral.api.lazy_resource import LazyResource
from corral.api.operation import Operation, Resource, find_operation, find_policy
from corral.api.policy import OperationPolicy


class OperationInfo(NamedTuple):
    """One operation: `store.<attribute>.<verb>`, `corral <noun> <verb>`."""

    attribute: str
    noun: str
    verb: str
    kind: str
    """read, write, or method: it composes operations or needs more than a transaction."""
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
            policy = find_policy(member)
            if policy is not None and not verb.startswith("_"):
                yield _describe(attribute, resource, verb, member, policy)


def find_declaration(attribute: str, verb: str) -> Any:
    """Return the member of a resource class that declares a public operation; None if unknown."""
    if attribute not in resource_names() or verb.startswith("_"):
        return None
    return find_operation(resource_class(attribute), verb)


def describe_operation(attribute: str, verb: str) -> OperationInfo | None:
    """Describe a public operation; returns None when it is unknown."""
    member = find_declaration(attribute, verb)
    policy = find_policy(member)
    if policy is None:
        return None
    return _describe(attribute, resource_class(attribute), verb, member, policy)


def _describe(
    attribute: str, resource: type[Resource], verb: str, member: Any, policy: OperationPolicy
) -> OperationInfo:
    if isinstance(member, Operation):
        kind: str = member.kind
        signature = member.__signature__
    else:
        kind = "method"
        signature = inspect.signature(member)
        signature = signature.replace(parameters=[*signature.parameters.values()][1:])
    return OperationInfo(attribute, resource.noun, verb, kind, policy, signature, _summary(member))


def _summary(member: Any) -> str:
    """Return the first paragraph of the docstring."""
    paragraph = (inspect.getdoc(member) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())
