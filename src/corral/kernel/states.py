"""Transition tables: which verb leads from which states to which state.

A concept declares its table below its state enum. The database layer compiles the table into the
WHERE clause of the only UPDATE that changes a state, so the table is the rule, not documentation.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Transition(NamedTuple):
    """One verb: the states it may start from, and the state it leads to."""

    sources: tuple[StrEnum, ...]
    to: StrEnum


def allow(*sources: StrEnum, to: StrEnum) -> Transition:
    """Allow a verb in any of the states `sources`.

    `to` may be one of the sources: a letter that failed once is waiting again.
    """
    return Transition(sources, to)


class TransitionTable:
    """The states and verbs of one type.

    - `kind`: the type's name in events.
    - `create_verb`: the verb that creates a row in the state `initial`.
    - `other_create_verbs`: further verbs that create a row, with the state of the new row.
    - `import_states`: the states in which a row from another program may be imported, with the verb
      `import`. States that imply active work here must not be included.
    """

    def __init__(
        self,
        kind: str,
        states: type[StrEnum],
        *,
        create_verb: str,
        initial: StrEnum,
        verbs: Mapping[str, Transition],
        other_create_verbs: Mapping[str, StrEnum] | None = None,
        import_states: tuple[StrEnum, ...] = (),
    ) -> None:
        self.kind = kind
        self.states = states
        self.create_verb = create_verb
        self.initial = initial
        self.verbs = verbs
        self.import_states = import_states
        self.initial_states: Mapping[str, StrEnum] = {
            create_verb: initial,
            **(other_create_verbs or {}),
        }
        """The state of a new row, by the verb that creates it."""

    def __getitem__(self, verb: str) -> Transition:
        return self.verbs[verb]

    def allowed_from(self, state: str) -> list[str]:
        """List the verbs that a state allows, in the order of the table."""
        return [verb for verb, allowed in self.verbs.items() if state in allowed.sources]

    @property
    def terminal(self) -> list[StrEnum]:
        """The states that no verb leaves."""
        return [state for state in self.states if not self.allowed_from(state)]
