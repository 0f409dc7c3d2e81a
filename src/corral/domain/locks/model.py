"""A lock is a lease on a path of a project.

Each request creates a row with the next number. The number is the end of the id (`lck_7`), the
position in the wait queue and the fencing token (`fence`): of two locks on the same files, the one
that was requested later has the higher number. A lock whose lease has expired is not held, even if
its row still has the state `held`. The next operation on the locks of its project updates the row.
"""

from enum import StrEnum

import msgspec

from corral.kernel.states import TransitionTable, allow


class LockState(StrEnum):
    HELD = "held"  # held by its owner until the lease expires
    WAITING = "waiting"  # in the wait queue, behind conflicting holders and earlier requests
    RELEASED = "released"  # released by its owner, or at the end of its run
    EXPIRED = "expired"  # the lease expired without a renewal
    WITHDRAWN = "withdrawn"  # its owner stopped waiting
    REVOKED = "revoked"  # taken away by a person


LIVE = (LockState.HELD, LockState.WAITING)
TRANSITIONS = TransitionTable(
    "lock",
    LockState,
    create_verb="acquire",
    initial=LockState.HELD,
    import_states=(LockState.RELEASED, LockState.EXPIRED),
    other_create_verbs={"request": LockState.WAITING},
    verbs={
        "grant": allow(LockState.WAITING, to=LockState.HELD),
        "release": allow(LockState.HELD, to=LockState.RELEASED),
        "expire": allow(LockState.HELD, LockState.WAITING, to=LockState.EXPIRED),
        "withdraw": allow(LockState.WAITING, to=LockState.WITHDRAWN),
        "revoke": allow(LockState.HELD, LockState.WAITING, to=LockState.REVOKED),
    },
)


class LockMode(StrEnum):
    EXCLUSIVE = "exclusive"  # one owner
    SHARED = "shared"  # several owners, all of them shared


class Lock(msgspec.Struct, frozen=True):
    """A lock that is held, waited for, or has ended."""

    id: str
    fence: int
    """The fencing token: the number in `id`. A later lock on the same files has a higher one."""
    state: LockState
    project_id: str
    path: str
    mode: LockMode
    owner: str
    """agent:NAME, user:NAME, session:ID or run:ID."""
    run_id: str | None
    reason: str | None
    ttl_ms: int
    lease_until: int
    """The end of the lease, or of the place in the wait queue, unless renewed."""
    notify: bool
    """Whether the owner gets a letter when the lock is granted."""
    created_at: int
    held_at: int | None
    ended_at: int | None
    ended_by: str | None

    def is_live(self, now: int) -> bool:
        """Whether it is held or waits at this time.

        Expiry is decided when the row is read; no background process is needed.
        """
        return self.state in LIVE and self.lease_until > now


class LockRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a lock request, before names are resolved."""

    project: str
    path: str
    agent: str
    mode: str
    ttl_ms: int
    run: str | None
    reason: str | None
    wait_ms: int | None = None
    """How long the place in the wait queue is kept; None: do not wait."""
    notify: bool = False
    """Whether the owner gets a letter when the lock is granted later."""


class FileTouch(msgspec.Struct, frozen=True):
    """The number and times of the changes of a file by one owner."""

    project_id: str
    path: str
    owner: str
    count: int
    first_at: int
    last_at: int


class LockConflict(msgspec.Struct, frozen=True):
    """A path that another owner has locked, with the error message for the caller."""

    path: str
    lock: Lock
    text: str
