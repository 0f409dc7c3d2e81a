"""Attributes of a store whose modules are imported when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from corral.api.executor import Executor
    from corral.api.operation import Resource

ResourceType = TypeVar("ResourceType", bound="Resource")


class LazyResource(Generic[ResourceType]):
    """The operations of one noun as an attribute of a store: `store.runs`.

    Importing the API is cheap, because the class of a resource is imported by the first access.
    The resource is then stored in the instance, so that later accesses skip this descriptor.
    """

    def __init__(self, module: str, class_name: str) -> None:
        """`module` is a module of `corral.api`."""
        self._module = f"corral.api.{module}"
        self._class_name = class_name
        self._attribute = ""
        self.__doc__ = f"See `{self._module}.{class_name}`."

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    def load_class(self) -> type[ResourceType]:
        """Import the module of the resource and return its class."""
        resource_class: type[ResourceType] = getattr(import_module(self._module), self._class_name)
        return resource_class

    def create(self, executor: "Executor") -> ResourceType:
        """Return a new resource for an open store."""
        return self.load_class()(executor, self._attribute)

    @overload
    def __get__(self, store: None, owner: type) -> Self: ...
    @overload
    def __get__(self, store: Any, owner: type) -> ResourceType: ...
    def __get__(self, store: Any, owner: type) -> Self | ResourceType:
        if store is None:
            return self
        resource = self.create(store._executor)
        store.__dict__[self._attribute] = resource
        return resource
