"""Tables of legal moves: which verb leads from which states to which.

A room writes its table under its state enum. The database layer compiles the table into the WHERE
clause of the one UPDATE that changes a state, so the table is not documentation of the rule: it is
the rule.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Move(NamedTuple):
    sources: tuple[StrEnum, ...]
    to: StrEnum


def move(*sources: StrEnum, to: StrEnum) -> Move:
    return Move(sources, to)


class Moves:
    """One type's states and verbs.

    `kind` is the type's word in events, `begin` the verb under which a new row enters `initial`;
    `also` are other verbs under which one may be made, and the state in which it is then.
    `imports` are the states in which a row of another program may enter, under the verb `import`:
    none in which somebody here is taken to be at work on it.
    A verb may lead back to the state it came from: a letter that failed once is waiting again.
    """

    def __init__(
        self,
        kind: str,
        states: type[StrEnum],
        *,
        begin: str,
        initial: StrEnum,
        verbs: Mapping[str, Move],
        also: Mapping[str, StrEnum] | None = None,
        imports: tuple[StrEnum, ...] = (),
    ) -> None:
        self.kind = kind
        self.states = states
        self.begin = begin
        self.initial = initial
        self.verbs = verbs
        self.imports = imports
        self.entries: Mapping[str, StrEnum] = {begin: initial, **(also or {})}

    def __getitem__(self, verb: str) -> Move:
        return self.verbs[verb]

    def allowed_from(self, state: str) -> list[str]:
        """The verbs that lead on from a state, in the table's order."""
        return [verb for verb, move in self.verbs.items() if state in move.sources]

    @property
    def terminal(self) -> list[StrEnum]:
        """The states that no verb leaves."""
        return [state for state in self.states if not self.allowed_from(state)]
