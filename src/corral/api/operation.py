"""How an operation of a room becomes a method of the library: one call, one transaction."""

from collections.abc import Callable
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, overload

from corral.db.database import Database
from corral.db.tx import Mode, Tx
from corral.kernel.deadline import is_late
from corral.services.store.upkeep import try_upkeep

P = ParamSpec("P")
R = TypeVar("R")


class Room:
    """The operations of one room, bound to an open store."""

    noun = ""
    """The room's word in the CLI, in HTTP and in the record."""

    def __init__(self, database: Database) -> None:
        self._database = database


class Operation(Generic[P, R]):
    """A function of an open transaction, offered as a method without it.

    What an operation declares here (does it read or write, is it one statement, must it survive a
    power cut, may it be repeated) is all that its caller, any interface and the docs need to know.
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
        timely: bool = False,
    ) -> None:
        self.function = function
        self.kind = kind
        self.mode = mode
        self.durable = durable
        self.repeatable = repeatable
        self.repeatable_by = repeatable_by
        self.timely = timely
        self.name = ""
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, room: None, owner: type) -> Self: ...
    @overload
    def __get__(self, room: Room, owner: type) -> Callable[P, R]: ...
    def __get__(self, room: Room | None, owner: type) -> Self | Callable[P, R]:
        if room is None:
            return self
        function, mode = self.function, self.mode
        if self.kind == "read":
            read = room._database.read

            def look(*args: P.args, **kwargs: P.kwargs) -> R:
                return read(lambda tx: function(tx, *args, **kwargs), mode=mode)

            call = _in_time(room, look) if self.timely else look
        else:
            write = room._database.write
            durable, repeatable, by = self.durable, self.repeatable, self.repeatable_by

            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                return write(
                    lambda tx: function(tx, *args, **kwargs),
                    mode=mode,
                    durable=durable,
                    repeatable=repeatable or (by is not None and bool(kwargs.get(by))),
                )

        call.__name__ = call.__qualname__ = self.name
        call.__doc__ = function.__doc__
        room.__dict__[self.name] = call  # found there at once the next time
        return call


def _in_time(room: Any, look: Callable[P, R]) -> Callable[P, R]:
    """Wrap a read so that rows past their deadline are ended first. If the store is not writable,
    the rows are returned as they are."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        found: Any = look(*args, **kwargs)
        now = room._database.clock.now()
        if not any(is_late(each, now) for each in getattr(found, "items", [found])):
            first: R = found
            return first

        def expire() -> None:
            while room.expire_due():
                pass

        try_upkeep(room._database, f"{room.noun}.expire_due", expire)
        return look(*args, **kwargs)

    return call


def read(
    function: Callable[Concatenate[Tx, P], R], *, mode: Mode = "many", timely: bool = False
) -> Operation[P, R]:
    """One call, one snapshot. With `timely`, what ends at a deadline is ended before it is shown
    (`expire_due` of the room), so that a row is true though nobody swept."""
    return Operation(function, "read", mode=mode, timely=timely)


def write(
    function: Callable[Concatenate[Tx, P], R],
    *,
    mode: Mode = "many",
    durable: bool = False,
    repeatable: bool = False,
    repeatable_by: str | None = None,
) -> Operation[P, R]:
    """One call, one transaction; the options are those of `Database.write`.

    `repeatable_by` names the argument that makes it repeatable when it is given: with a key, the
    second time finds what the first one made.
    """
    return Operation(
        function,
        "write",
        repeatable_by=repeatable_by,
        mode=mode,
        durable=durable,
        repeatable=repeatable,
    )
