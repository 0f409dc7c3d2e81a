"""A lock is a lease on a path of a project.

Whoever asks for a lock gets a row of its own, whose number is its place in line and its fence at
once: what is granted later on the same files has a higher number. A lock that has run out is held
by nobody from that moment on, whatever its row still says; the row follows when somebody looks.
"""

from enum import StrEnum

import msgspec

from corral.kernel.states import Moves, move


class LockState(StrEnum):
    HELD = "held"  # its owner's, until the lease runs out
    WAITING = "waiting"  # in line, behind whoever holds the path or asked for it before
    RELEASED = "released"  # given back by its owner, or at the end of its run
    EXPIRED = "expired"  # its lease ran out, and nobody renewed it
    WITHDRAWN = "withdrawn"  # its owner waited no longer
    REVOKED = "revoked"  # a person took it away


S = LockState
LIVE = (S.HELD, S.WAITING)
MOVES = Moves(
    "lock",
    LockState,
    begin="acquire",
    initial=S.HELD,
    imports=(S.RELEASED, S.EXPIRED),
    also={"ask": S.WAITING},
    verbs={
        "grant": move(S.WAITING, to=S.HELD),
        "release": move(S.HELD, to=S.RELEASED),
        "expire": move(S.HELD, S.WAITING, to=S.EXPIRED),
        "withdraw": move(S.WAITING, to=S.WITHDRAWN),
        "revoke": move(S.HELD, S.WAITING, to=S.REVOKED),
    },
)


class Mode(StrEnum):
    EXCLUSIVE = "exclusive"  # nobody else
    SHARED = "shared"  # with others who hold it shared


class Lock(msgspec.Struct, frozen=True):
    id: str
    fence: int
    """The lock's own number; of two locks on the same files, the later one has the higher."""
    state: LockState
    project_id: str
    path: str
    mode: Mode
    owner: str
    """agent:NAME, user:NAME, session:ID or run:ID."""
    run_id: str | None
    reason: str | None
    ttl_ms: int
    lease_until: int
    """Held or in line until then, unless it is renewed."""
    tells: bool
    """Whether its owner gets a letter when it is granted."""
    created_at: int
    held_at: int | None
    ended_at: int | None
    ended_by: str | None

    def is_live(self, now: int) -> bool:
        """Whether it still counts at a moment: leases end by comparison, not by a sweep."""
        return self.state in LIVE and self.lease_until > now


class Touch(msgspec.Struct, frozen=True):
    """Who changed a file, since when and how often."""

    project_id: str
    path: str
    owner: str
    count: int
    first_at: int
    last_at: int


class InTheWay(msgspec.Struct, frozen=True):
    """A path that somebody else holds, and what whoever wants to change it is told."""

    path: str
    lock: Lock
    text: str
