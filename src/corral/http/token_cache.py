"""Who calls: what the store said of a secret is remembered for a few seconds.

A token that is revoked is forgotten as soon as its event comes by the feed (`watch`); the few
seconds are what stands behind that.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from contextlib import suppress

from corral.api import Corral
from corral.api.tokens import Who
from corral.domain.events.model import Event
from corral.http.errors import Problem
from corral.kernel.errors import CorralError, Refused

SECONDS = 5.0
MOST = 1_000


class Callers:
    def __init__(self, store: Corral) -> None:
        self._store = store
        self._lock = threading.Lock()
        # By hash: no secret stays in memory longer than its request.
        self._known: OrderedDict[bytes, tuple[Who, float]] = OrderedDict()
        self._stores: OrderedDict[str, Corral] = OrderedDict()
        self._used: set[str] = set()

    def known(self, secret: str) -> Who | None:
        """Who it is, if that was asked a moment ago."""
        found = self._known.get(_key(secret))
        if found is None or time.monotonic() > found[1]:
            return None
        return found[0]

    def look_up(self, secret: str) -> Who:
        """Ask the store whose secret it is."""
        asked = time.monotonic()
        try:
            who = self._store.tokens.check(secret)
        except Refused as error:
            raise Problem(
                401,
                "unauthenticated",
                error.message,
                headers={"www-authenticate": "Bearer"},
                reason=error.details.get("reason"),
            ) from None
        good_for = SECONDS
        if who.expires_at is not None:
            good_for = min(good_for, (who.expires_at - self._store.now()) / 1_000)
        with self._lock:
            self._known[_key(secret)] = (who, asked + good_for)
            if len(self._known) > MOST:
                self._known.popitem(last=False)
        with self._lock:
            self._used.add(who.id)
        return who

    def note_uses(self) -> None:
        """Record which tokens were used since the last call. Not part of any request, so that
        reads work while the store is not writable."""
        with self._lock:
            used, self._used = self._used, set()
        for id in used:
            with suppress(CorralError):
                self._store.tokens.note_use(id)

    def watch(self, event: Event) -> None:
        """When a token, or an agent that has one, has changed, whoever calls next is looked up."""
        if event.kind in ("token", "agent"):
            with self._lock:
                self._known.clear()

    def store_of(self, who: Who, store: Corral, origin: str | None = None) -> Corral:
        """Return a store that acts as the caller; cached. `origin` is the run of the caller's
        process."""
        key = f"{who.actor} {origin or ''}"
        found = self._stores.get(key)
        if found is None:
            found = self._stores[key] = store.acting_as(who.actor, origin)
            if len(self._stores) > MOST:
                self._stores.popitem(last=False)
        return found


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
