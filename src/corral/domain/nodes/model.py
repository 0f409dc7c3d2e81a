"""A node is one boot of one host that runs agents for a store."""

from enum import StrEnum

import msgspec

from corral.kernel.states import TransitionTable, allow


class NodeState(StrEnum):
    UP = "up"  # its daemon sends heartbeats
    LEFT = "left"  # its daemon has shut down
    LOST = "lost"  # its lease expired; its runs are fenced off


TRANSITIONS = TransitionTable(
    "node",
    NodeState,
    create_verb="join",
    initial=NodeState.UP,
    verbs={
        "rejoin": allow(NodeState.UP, NodeState.LEFT, NodeState.LOST, to=NodeState.UP),
        "leave": allow(NodeState.UP, to=NodeState.LEFT),
        # Only after the lease has expired.
        "lose": allow(NodeState.UP, to=NodeState.LOST),
    },
)


class Node(msgspec.Struct, frozen=True):
    """A machine that serves the store, with its slots and labels."""

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


class NodeHeartbeat(msgspec.Struct, frozen=True):
    """The result of a daemon's heartbeat."""

    node: Node
    leaderships: "list[Leadership]"
    """The leader of each loop that the daemon is a candidate for."""


class Leadership(msgspec.Struct, frozen=True):
    """The leadership of one daemon loop: a lease with a fence."""

    name: str
    owner: str
    fence: int
    lease_until: int
