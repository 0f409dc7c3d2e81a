"""Locks compared with a simple model: a list of requests in order."""

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
    run_machine,
    while_it_is_made_short,
)

FILES = ("a/1", "a/2", "b/1")
# What each path covers, spelled out.
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


class Asked:
    """One who asked: as plain as can be."""

    def __init__(self, lock: Lock, path: str, mode: str, owner: str, until: int, ttl: int) -> None:
        self.id, self.path, self.mode, self.owner = lock.id, path, mode, owner
        self.until, self.ttl = until, ttl
        self.held = lock.state == "held"


class LocksMachine(StoreMachine):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.folder = tempfile.TemporaryDirectory()
        self.project = self.store.projects.register(Path(self.folder.name)).id
        self.line: list[Asked] = []

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()

    # -- the model -----------------------------------------------------------------------------

    @staticmethod
    def excludes(path: str, mode: str, owner: str, other: Asked) -> bool:
        if owner == other.owner or (mode == "shared" == other.mode):
            return False
        return bool(COVERS[path] & COVERS[other.path])

    def settle(self) -> None:
        """Whoever ran out is gone; whoever nobody stands in the way of holds it."""
        self.line = [one for one in self.line if one.until > self.now]
        for place, one in enumerate(self.line):
            before = [other for n, other in enumerate(self.line) if other.held or n < place]
            if not one.held and not any(
                self.excludes(one.path, one.mode, one.owner, other) for other in before
            ):
                one.held = True
                one.until = self.now + one.ttl

    def waits_for_ever(self, path: str, mode: str, owner: str) -> bool:
        waiting = [one for one in self.line if not one.held]

        def blockers(one: Asked) -> list[Asked]:
            place = self.line.index(one)
            return [
                other
                for n, other in enumerate(self.line)
                if (other.held or n < place) and self.excludes(one.path, one.mode, one.owner, other)
            ]

        seen: set[str] = set()
        front = {one.owner for one in self.line if self.excludes(path, mode, owner, one)}
        while front:
            who = front.pop()
            seen.add(who)
            found = {other.owner for one in waiting if one.owner == who for other in blockers(one)}
            if owner in found:
                return True
            front |= found - seen
        return False

    # -- the rules -----------------------------------------------------------------------------

    @rule(path=paths, mode=modes, owner=owners, ttl=terms, queue=st.booleans())
    def take(self, path: str, mode: str, owner: str, ttl: int, queue: bool) -> None:
        self.settle()
        own = next((o for o in self.line if (o.path, o.mode, o.owner) == (path, mode, owner)), None)
        in_the_way = [o for o in self.line if self.excludes(path, mode, owner, o)]
        error: type[Conflict] | None = None
        if not (own and own.held) and in_the_way:
            if not queue:
                error = Held
            elif own is None and self.waits_for_ever(path, mode, owner):
                error = Conflict

        def call() -> Any:
            verb = self.store.locks.request if queue else self.store.locks.acquire
            return verb(self.project, path, owner, mode=mode, ttl_ms=ttl)

        if self.refused(error, call):
            return
        lock = call()
        if own is not None:
            assert lock.id == own.id
            own.ttl = ttl
            term = ttl if own.held else 30 * MINUTE
            own.until = max(own.until, self.now + term)
            return
        until = self.now + (ttl if not in_the_way else 30 * MINUTE)
        assert (lock.state == "held") == (not in_the_way)
        self.line.append(Asked(lock, path, mode, owner, until, ttl))

    @rule(number=st.integers(0, 5))
    def release(self, number: int) -> None:
        self.settle()
        self.store.internal.locks.expire_due()
        if self.line:
            one = self.line.pop(number % len(self.line))
            self.store.locks.release(one.id, agent=one.owner)
            self.settle()

    @rule(ms=st.sampled_from([1, MINUTE, 3 * MINUTE, 40 * MINUTE]))
    def time_goes_on(self, ms: int) -> None:
        self.settle()
        self.store.internal.locks.expire_due()
        self.clock.advance(ms)

    @invariant()
    def the_same_locks_are_held_and_waited_for(self) -> None:
        self.store.internal.locks.expire_due()
        self.settle()
        found = {lock.id: lock for lock in self.store.locks.list(limit=100).items}
        assert {id: lock.state == "held" for id, lock in found.items()} == {
            one.id: one.held for one in self.line
        }
        assert {id: lock.lease_until for id, lock in found.items()} == {
            one.id: one.until for one in self.line
        }
        for file in FILES:
            holders = {lock.id for lock in self.store.locks.holders(self.project, file)}
            assert holders == {one.id for one in self.line if one.held and file in COVERS[one.path]}


@while_it_is_made_short
def test_locks_match_a_simple_model(fresh_url: FreshUrl) -> None:
    run_machine(LocksMachine, fresh_url, stories=40, steps=25)
