"""Executors: everything that happens between a call and its effect.

An open store has one executor, which all of its resources share. An operation asks it once per
resource for the function that performs the call:

    LocalExecutor    opens the transaction, or calls the workflow           this module
    RunExecutor      checks the permissions of a process inside a run       api/permissions.py
    HttpExecutor     sends a request to a daemon                            api/remote.py
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from corral.api.operation import Expiry, Operation, Resource
    from corral.db.database import Database
    from corral.kernel.identity import CallerIdentity

P = ParamSpec("P")
R = TypeVar("R")


class Executor(ABC):
    """Performs the operations of an open store."""

    caller: "CallerIdentity"
    """Whom the process acts as."""

    @property
    @abstractmethod
    def database(self) -> "Database":
        """The database of a local store; raises Refused for a remote store."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the store, without its password."""

    @property
    @abstractmethod
    def engine(self) -> str:
        """The database engine: `sqlite` or `postgresql`."""

    @property
    @abstractmethod
    def path(self) -> "Path | None":
        """The file of a SQLite store that this process can open; otherwise None."""

    @abstractmethod
    def bind(self, resource: "Resource", operation: "Operation[P, R]") -> Callable[P, R]:
        """Return the function that performs an operation of a resource."""

    def authorize(
        self, resource: "Resource", operation: "Operation[..., Any]", arguments: Mapping[str, Any]
    ) -> "tuple[Resource, Mapping[str, Any]]":
        """Return the resource without checks, and the arguments that the caller may use.

        Raises Refused if the caller may not make this call.
        """
        return resource, arguments


class LocalExecutor(Executor):
    """Performs operations in this process, without checks: for people and for Corral itself."""

    def __init__(self, database: "Database", caller: "CallerIdentity") -> None:
        self._database = database
        self.caller = caller

    @property
    def database(self) -> "Database":
        return self._database

    @property
    def url(self) -> str:
        return self._database.url

    @property
    def engine(self) -> str:
        return self._database.engine

    @property
    def path(self) -> "Path | None":
        return getattr(self._database, "path", None)

    def bind(self, resource: "Resource", operation: "Operation[P, R]") -> Callable[P, R]:
        if operation.kind == "workflow":
            return MethodType(operation.function, resource)
        if operation.kind == "write":
            call = self._bind_write(operation)
        else:
            call = self._bind_read(operation)
            if operation.expire is not None:
                call = self._expire_before(call, operation.expire, resource.noun)
        return operation.describe(call)

    def _bind_read(self, operation: "Operation[P, R]") -> Callable[P, R]:
        function, mode = operation.function, operation.mode
        read = self._database.read

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result: R = read(lambda tx: function(tx, *args, **kwargs), mode=mode)
            return result

        return call

    def _bind_write(self, operation: "Operation[P, R]") -> Callable[P, R]:
        function, mode, durable = operation.function, operation.mode, operation.durable
        repeatable, by = operation.repeatable, operation.repeatable_by
        after_commit = operation.after_commit
        write = self._database.write

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result: R = write(
                lambda tx: function(tx, *args, **kwargs),
                mode=mode,
                durable=durable,
                repeatable=repeatable or (by is not None and bool(kwargs.get(by))),
            )
            return result if after_commit is None else after_commit(result)

        return call

    def _expire_before(self, read: Callable[P, R], expire: "Expiry", noun: str) -> Callable[P, R]:
        """Wrap a read so that rows past their deadline are expired before they are returned.

        If the store is not writable, the rows are returned as they are.
        """
        from corral.kernel.deadline import is_overdue
        from corral.services.store.write_before_read import try_write_before_read

        database = self._database

        def expire_all() -> None:
            while database.write(expire, repeatable=True):
                pass

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result: Any = read(*args, **kwargs)
            now = database.clock.now()
            if any(is_overdue(row, now) for row in getattr(result, "items", [result])):
                try_write_before_read(database, f"{noun}.expire_due", expire_all)
                return read(*args, **kwargs)
            first: R = result
            return first

        return call
