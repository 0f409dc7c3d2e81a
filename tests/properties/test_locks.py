"""Locks, compared with a model under random operations: a list of requests in order."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from corral.domain.locks.model import Lock
from corral.kernel.clock import MINUTE
from corral.kernel.errors import Conflict, Held
from tests.properties.state_machine import (
    FreshUrl,
    StoreMachine,
    allow_shrinking_time,
    run_machine,
)

FILES = ("a/1", "a/2", "b/1")
# The files that each path covers.
COVERS = {
    "a/1": {"a/1"},
    "a/2": {"a/2"},
    "a/": {"a/1", "a/2"},
    "*/1": {"a/1", "b/1"},
    ".": {*FILES},
}
paths = st.sampled_from(sorted(COVERS))
owners = st.sampled_from(["x", "y", "z"])
modes = st.sampled_from(["exclusive", "shared"])
terms = st.sampled_from([MINUTE, 3 * MINUTE])


class ModelRequest:
    """A lock request of the model."""

    def __init__(self, lock: Lock, path: str, mode: str, owner: str, until: int, ttl: int) -> None:
        self.id, self.path, self.mode, self.owner = lock.id, path, mode, owner
        self.until, self.ttl = until, ttl
        self.held = lock.state == "held"


class LocksMachine(StoreMachine):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.folder = tempfile.TemporaryDirectory()
        self.project = self.store.projects.register(Path(self.folder.name)).id
        self.requests: list[ModelRequest] = []

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()

    # -- the model -----------------------------------------------------------------------------

    @staticmethod
    def excludes(path: str, mode: str, owner: str, other: ModelRequest) -> bool:
        if owner == other.owner or (mode == "shared" == other.mode):
            return False
        return bool(COVERS[path] & COVERS[other.path])

    def settle(self) -> None:
        """Drop expired requests, then grant those that no earlier request or holder excludes."""
        self.requests = [request for request in self.requests if request.until > self.now]
        for position, request in enumerate(self.requests):
            before = [other for n, other in enumerate(self.requests) if other.held or n < position]
            if not request.held and not any(
                self.excludes(request.path, request.mode, request.owner, other) for other in before
            ):
                request.held = True
                request.until = self.now + request.ttl

    def would_deadlock(self, path: str, mode: str, owner: str) -> bool:
        waiting = [request for request in self.requests if not request.held]

        def blockers(request: ModelRequest) -> list[ModelRequest]:
            position = self.requests.index(request)
            return [
                other
                for n, other in enumerate(self.requests)
                if (other.held or n < position)
                and self.excludes(request.path, request.mode, request.owner, other)
            ]

        seen: set[str] = set()
        front = {
            request.owner for request in self.requests if self.excludes(path, mode, owner, request)
        }
        while front:
            waiting_owner = front.pop()
            seen.add(waiting_owner)
            blocking_owners = {
                other.owner
                for request in waiting
                if request.owner == waiting_owner
                for other in blockers(request)
            }
            if owner in blocking_owners:
                return True
            front |= blocking_owners - seen
        return False

    # -- the rules -----------------------------------------------------------------------------

    @rule(path=paths, mode=modes, owner=owners, ttl=terms, queue=st.booleans())
    def acquire(self, path: str, mode: str, owner: str, ttl: int, queue: bool) -> None:
        self.settle()
        own_request = next(
            (o for o in self.requests if (o.path, o.mode, o.owner) == (path, mode, owner)), None
        )
        blocking = [o for o in self.requests if self.excludes(path, mode, owner, o)]
        error: type[Conflict] | None = None
        if not (own_request and own_request.held) and blocking:
            if not queue:
                error = Held
            elif own_request is None and self.would_deadlock(path, mode, owner):
                error = Conflict

        def call() -> Any:
            verb = self.store.locks.request if queue else self.store.locks.acquire
            return verb(self.project, path, owner, mode=mode, ttl_ms=ttl)

        if self.is_rejected(error, call):
            return
        lock = call()
        if own_request is not None:
            assert lock.id == own_request.id
            own_request.ttl = ttl
            term = ttl if own_request.held else 30 * MINUTE
            own_request.until = max(own_request.until, self.now + term)
            return
        until = self.now + (ttl if not blocking else 30 * MINUTE)
        assert (lock.state == "held") == (not blocking)
        self.requests.append(ModelRequest(lock, path, mode, owner, until, ttl))

    @rule(number=st.integers(0, 5))
    def release(self, number: int) -> None:
        self.settle()
        self.store.internal.locks.expire_due()
        if self.requests:
            request = self.requests.pop(number % len(self.requests))
            self.store.locks.release(request.id, agent=request.owner)
            self.settle()

    @rule(ms=st.sampled_from([1, MINUTE, 3 * MINUTE, 40 * MINUTE]))
    def advance_clock(self, ms: int) -> None:
        self.settle()
        self.store.internal.locks.expire_due()
        self.clock.advance(ms)

    @invariant()
    def locks_match_the_model(self) -> None:
        self.store.internal.locks.expire_due()
        self.settle()
        locks = {lock.id: lock for lock in self.store.locks.list(limit=100).items}
        assert {id: lock.state == "held" for id, lock in locks.items()} == {
            request.id: request.held for request in self.requests
        }
        assert {id: lock.lease_until for id, lock in locks.items()} == {
            request.id: request.until for request in self.requests
        }
        for file in FILES:
            holders = {lock.id for lock in self.store.locks.holders(self.project, file)}
            assert holders == {
                request.id
                for request in self.requests
                if request.held and file in COVERS[request.path]
            }


@allow_shrinking_time
def test_locks_match_a_simple_model(fresh_url: FreshUrl) -> None:
    run_machine(LocksMachine, fresh_url, examples=40, steps=25)
