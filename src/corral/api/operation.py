"""Declaration of operations.

Every public member of a resource is an `Operation`. `read` and `write` offer a function of a
transaction as a method; `operation` declares a method that composes operations or calls a workflow
of `services`. A declaration states everything that is known about an operation besides its code:
see `OperationPolicy`.

The path of one call, `store.locks.renew(lock)`:

    store.locks         LazyResource    imports api/locks.py at the first access
    .renew              Operation       asks the executor for a function, once per resource
    renew(lock)         Executor        opens the transaction; see api/executor.py
    ops.renew(tx, …)    domain/locks    validates, executes the statements of sql.py
"""

from collections.abc import Callable, Mapping, Sized
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

if TYPE_CHECKING:
    from inspect import Signature

    from corral.api.executor import Executor

    Expiry = Callable[[Tx], Sized]

P = ParamSpec("P")
R = TypeVar("R")
Committed = TypeVar("Committed")
Kind = Literal["read", "write", "workflow"]


class Resource:
    """The operations of one noun, bound to an open store."""

    noun = ""
    """The noun in the command line, in HTTP paths and in events."""
    subjects: tuple[str, ...] = ()
    """The names of the argument that identifies one record of this noun. The first argument of an
    operation, if it has such a name, is part of the path of its request."""
    are_in_projects = True
    """Whether a token that is limited to a project may name only records of that project."""

    def __init__(self, executor: "Executor", attribute: str = "") -> None:
        self._executor = executor
        self._attribute = attribute
        """The attribute of the store that this resource is, such as `runs`."""

    @property
    def _database(self) -> Database:
        return self._executor.database


class Operation(Generic[P, R]):
    """One operation of a resource: a function, and everything that is declared about it.

    One call of a read or a write is one transaction, and its function gets the transaction as its
    first argument. The function of a workflow gets the resource. Callers see neither.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        kind: Kind,
        *,
        mode: Mode = "many",
        durable: bool = False,
        repeatable: bool = False,
        repeatable_by: str | None = None,
        expire: "Expiry | None" = None,
        after_commit: Callable[[Any], R] | None = None,
        policy: OperationPolicy,
    ) -> None:
        self.function = self.__wrapped__ = function
        self.kind: Kind = kind
        self.mode: Mode = mode
        self.durable = durable
        self.repeatable = repeatable
        self.repeatable_by = repeatable_by
        self.expire = expire
        self.after_commit = after_commit
        self.policy = policy
        self.name = ""
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.__name__ = name
        self.__qualname__ = f"{owner.__qualname__}.{name}"

    @property
    def __signature__(self) -> "Signature":
        """The signature of the method, without the transaction or the resource."""
        from inspect import signature

        function = signature(self.function)
        result = function if self.after_commit is None else signature(self.after_commit)
        return function.replace(
            parameters=[*function.parameters.values()][1:],
            return_annotation=result.return_annotation,
        )

    def type_hints(self) -> dict[str, Any]:
        """Return the types of the arguments, and of the result as `return`."""
        from typing import get_type_hints

        hints = get_type_hints(self.function, include_extras=True)
        if self.after_commit is not None:
            hints["return"] = get_type_hints(self.after_commit)["return"]
        return hints

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource, owner: type) -> Callable[P, R]: ...
    def __get__(self, resource: Resource | None, owner: type) -> Self | Callable[P, R]:
        if resource is None:
            return self
        call = resource._executor.bind(resource, self)
        resource.__dict__[self.name] = call  # cached: the next access skips this descriptor
        return call

    def __call__(self, resource: Resource, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the operation as a function of the class: `Mail.put(store.mail, …)`."""
        return self.__get__(resource, type(resource))(*args, **kwargs)

    def describe(self, call: Callable[P, R]) -> Callable[P, R]:
        """Give a function that performs this operation its name, signature, docstring and source.

        `inspect` finds the signature and the source in the operation, and only if asked.
        """
        call.__name__ = self.name
        call.__qualname__ = self.__qualname__
        call.__module__, call.__doc__ = self.__module__, self.__doc__
        call.__dict__["__wrapped__"] = self
        return call

    def bind_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name; raises TypeError for too many or repeated ones.

        Missing and unknown arguments are left to the function.
        """
        names = self._positional_names()
        if len(args) > len(names):
            raise TypeError(f"{self.name}() takes {len(names)} positional arguments")
        arguments = dict(zip(names, args, strict=False))
        if repeated := arguments.keys() & kwargs.keys():
            raise TypeError(f"{self.name}() got multiple values for {', '.join(sorted(repeated))}")
        return arguments | dict(kwargs)

    def _positional_names(self) -> tuple[str, ...]:
        """Return the names of the arguments that may be given by position, without `inspect`."""
        function: Any = self.function
        while hasattr(function, "__wrapped__"):  # a decorator's own parameters are *args, **kwargs
            function = function.__wrapped__
        code = function.__code__
        names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount]
        return names


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


@overload
def write(
    function: Callable[Concatenate[Tx, P], R],
    *,
    mode: Mode = "many",
    durable: bool = False,
    repeatable: bool = False,
    repeatable_by: str | None = None,
    **policy: Unpack[PolicyFields],
) -> Operation[P, R]: ...
@overload
def write(
    function: Callable[Concatenate[Tx, P], Committed],
    *,
    mode: Mode = "many",
    durable: bool = False,
    repeatable: bool = False,
    repeatable_by: str | None = None,
    after_commit: Callable[[Committed], R],
    **policy: Unpack[PolicyFields],
) -> Operation[P, R]: ...
def write(
    function: Callable[..., Any],
    *,
    mode: Mode = "many",
    durable: bool = False,
    repeatable: bool = False,
    repeatable_by: str | None = None,
    after_commit: Callable[[Any], Any] | None = None,
    **policy: Unpack[PolicyFields],
) -> Operation[..., Any]:
    """Declare a write: one call is one transaction. The options are those of `Database.write`.

    `repeatable_by` names the argument, such as an idempotency key, that makes the write repeatable
    when it is given. `after_commit` converts what the function returned into the result. It must
    not write: a call with an idempotency key runs it before the commit. An error that it raises
    refuses the call, but the changes are committed all the same.
    """
    return Operation(
        function,
        "write",
        repeatable_by=repeatable_by,
        mode=mode,
        durable=durable,
        repeatable=repeatable,
        after_commit=after_commit,
        policy=OperationPolicy(**policy),
    )


def operation(
    **policy: Unpack[PolicyFields],
) -> Callable[[Callable[Concatenate[Any, P], R]], Operation[P, R]]:
    """Declare a method of a resource that composes operations or calls a workflow."""
    declared = OperationPolicy(**policy)

    def declare(method: Callable[Concatenate[Any, P], R]) -> Operation[P, R]:
        return Operation(method, "workflow", policy=declared)

    return declare


def find_operation(resource_class: type[Resource], verb: str) -> "Operation[..., Any] | None":
    """Return the declaration of an operation; None if the class has no such operation."""
    member = getattr(resource_class, verb, None)
    return member if isinstance(member, Operation) else None
