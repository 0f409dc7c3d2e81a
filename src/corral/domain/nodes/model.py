"""A node is one machine, one boot of one host, that runs agents on a store."""

from enum import StrEnum

import msgspec

from corral.kernel.states import Moves, move


class NodeState(StrEnum):
    UP = "up"  # its daemon heartbeats
    LEFT = "left"  # its daemon said good-bye
    LOST = "lost"  # silent past its lease; what it ran is fenced off


N = NodeState
MOVES = Moves(
    "node",
    NodeState,
    begin="join",
    initial=N.UP,
    verbs={
        "rejoin": move(N.UP, N.LEFT, N.LOST, to=N.UP),
        "leave": move(N.UP, to=N.LEFT),
        # Said only once the lease has run out.
        "lose": move(N.UP, to=N.LOST),
    },
)


class Node(msgspec.Struct, frozen=True):
    id: str
    name: str
    boot_id: str
    state: NodeState
    owner: str | None
    fence: int
    lease_until: int
    slots: int
    labels: list[str]
    joined_at: int
    seen_at: int


class Beat(msgspec.Struct, frozen=True):
    """What a daemon is told when it says that it is there."""

    node: Node
    leads: "list[Lead]"
    """Who leads each of the loops that it would lead."""


class Lead(msgspec.Struct, frozen=True):
    """The right to run one loop, until a moment."""

    name: str
    owner: str
    fence: int
    lease_until: int
