"""Declaration of operations.

`read` and `write` turn a function of a transaction into a method of the API; `operation` declares a
method that composes operations or calls a workflow of `services`. A declaration states everything
that is known about an operation besides its code: see `OperationPolicy`.

The path of one call, `store.locks.renew(lock)`:

    store.locks         LazyResource    imports api/locks.py at the first access
    .locks              CheckedResource only inside a run: checks the permissions of the call
    .renew              Operation       binds the declared function, once per resource
    renew(lock)         Database.write  opens the transaction, retries it if it is repeatable
    ops.renew(tx, …)    domain/locks    validates, executes the statements of sql.py
"""

from collections.abc import Callable, Sized
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from corral.api.policy import OperationPolicy, PolicyFields
from corral.db.database import Database
from corral.db.tx import Mode, Tx
from corral.kernel.deadline import is_overdue
from corral.services.store.write_before_read import try_write_before_read

if TYPE_CHECKING:
    from inspect import Signature

    Expiry = Callable[[Tx], Sized]

P = ParamSpec("P")
R = TypeVar("R")
MethodType = TypeVar("MethodType", bound=Callable[..., Any])


class Resource:
    """The operations of one noun, bound to an open store."""

    noun = ""
    """The noun in the command line, in HTTP paths and in events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def for_database(cls, database: Database) -> Self:
        """Return the resource for the actor of an open store."""
        return cls(database)


class Operation(Generic[P, R]):
    """A function of a transaction, offered as a method without that parameter.

    One call is one transaction. The declaration says whether it reads or writes, whether it is one
    statement or several, whether it must survive a power cut, and whether it may be retried.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Tx, P], R],
        kind: Literal["read", "write"],
        *,
        mode: Mode = "many",
        durable: bool = False,
        repeatable: bool = False,
        repeatable_by: str | None = None,
        expire: "Expiry | None" = None,
        policy: OperationPolicy,
    ) -> None:
        self.function = self.__wrapped__ = function
        self.kind = kind
        self.mode = mode
        self.durable = durable
        self.repeatable = repeatable
        self.repeatable_by = repeatable_by
        self.expire = expire
        self.policy = policy
        self.name = ""
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def __signature__(self) -> "Signature":
        """The signature of the method, without the transaction."""
        from inspect import signature

        function = signature(self.function)
        return function.replace(parameters=[*function.parameters.values()][1:])

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource, owner: type) -> Callable[P, R]: ...
    def __get__(self, resource: Resource | None, owner: type) -> Self | Callable[P, R]:
        if resource is None:
            return self
        call = self._bind_read(resource) if self.kind == "read" else self._bind_write(resource)
        call.__name__ = call.__qualname__ = self.name
        call.__module__, call.__doc__ = self.function.__module__, self.__doc__
        # `inspect` finds the signature and the source of the function there, and only if asked.
        call.__dict__["__wrapped__"] = self
        resource.__dict__[self.name] = call  # cached: the next access skips this descriptor
        return call

    def _bind_read(self, resource: Resource) -> Callable[P, R]:
        function, mode = self.function, self.mode
        read = resource._database.read

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return read(lambda tx: function(tx, *args, **kwargs), mode=mode)

        return call if self.expire is None else _expiring_first(resource, call, self.expire)

    def _bind_write(self, resource: Resource) -> Callable[P, R]:
        function, mode = self.function, self.mode
        write = resource._database.write
        durable, repeatable, by = self.durable, self.repeatable, self.repeatable_by

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return write(
                lambda tx: function(tx, *args, **kwargs),
                mode=mode,
                durable=durable,
                repeatable=repeatable or (by is not None and bool(kwargs.get(by))),
            )

        return call


def _expiring_first(resource: Resource, read: Callable[P, R], expire: "Expiry") -> Callable[P, R]:
    """Wrap a read so that rows past their deadline are expired before they are returned.

    If the store is not writable, the rows are returned as they are.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        result: Any = read(*args, **kwargs)
        now = resource._database.clock.now()
        if not any(is_overdue(row, now) for row in getattr(result, "items", [result])):
            first: R = result
            return first

        def expire_all() -> None:
            while resource._database.write(expire, repeatable=True):
                pass

        try_write_before_read(resource._database, f"{resource.noun}.expire_due", expire_all)
        return read(*args, **kwargs)

    return call


def read(
    function: Callable[Concatenate[Tx, P], R],
    *,
    mode: Mode = "many",
    expire: "Expiry | None" = None,
    **policy: Unpack[PolicyFields],
) -> Operation[P, R]:
    """Declare a read: one call reads one snapshot.

    `expire` is called first if a row is past its deadline, so that the result is right even if no
    daemon runs. It expires a batch of due rows and returns them.
    """
    return Operation(function, "read", mode=mode, expire=expire, policy=OperationPolicy(**policy))


def write(
    function: Callable[Concatenate[Tx, P], R],
    *,
    mode: Mode = "many",
    durable: bool = False,
    repeatable: bool = False,
    repeatable_by: str | None = None,
    **policy: Unpack[PolicyFields],
) -> Operation[P, R]:
    """Declare a write: one call is one transaction. The options are those of `Database.write`.

    `repeatable_by` names the argument, such as an idempotency key, that makes the write repeatable
    when it is given.
    """
    return Operation(
        function,
        "write",
        repeatable_by=repeatable_by,
        mode=mode,
        durable=durable,
        repeatable=repeatable,
        policy=OperationPolicy(**policy),
    )


def operation(**policy: Unpack[PolicyFields]) -> Callable[[MethodType], MethodType]:
    """Declare a method of a resource as an operation; the method itself is not changed."""
    declared = OperationPolicy(**policy)

    def declare(method: MethodType) -> MethodType:
        method.__dict__["policy"] = declared
        return method

    return declare


def find_operation(resource_class: type[Resource], verb: str) -> Any:
    """Return the declaration of an operation, possibly of a base class; None if it is unknown.

    getattr() on a resource would return the bound method instead.
    """
    for base in resource_class.__mro__:
        if verb in vars(base):
            declaration = vars(base)[verb]
            return None if find_policy(declaration) is None else declaration
    return None


def find_policy(member: object) -> OperationPolicy | None:
    """Return the policy of a member of a resource class; None if it is not an operation."""
    policy = getattr(member, "policy", None)
    return policy if isinstance(policy, OperationPolicy) else None
