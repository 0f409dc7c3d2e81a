"""A cache of token lookups.

The event of a revoked token clears the cache at once (`handle_event`). The TTL bounds the delay
when that event is late.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from contextlib import suppress

from corral.api import Corral
from corral.domain.events.model import Event
from corral.http.errors import ApiError
from corral.kernel.errors import CorralError, Refused
from corral.services.tokens import TokenIdentity

TTL_SECONDS = 5.0
MAX_ENTRIES = 1_000


class TokenCache:
    """Identities by the hash of their secret, and stores that act as them.

    Thread-safe, except `store_for`: only the event loop calls it.
    """

    def __init__(self, store: Corral) -> None:
        self._store = store
        self._lock = threading.Lock()
        # Keyed by hash: no secret stays in memory longer than its request.
        self._identities: OrderedDict[bytes, tuple[TokenIdentity, float]] = OrderedDict()
        self._stores: OrderedDict[str, Corral] = OrderedDict()
        self._used: set[str] = set()

    def get_cached(self, secret: str) -> TokenIdentity | None:
        """Return the cached identity of a secret; None if it is missing or expired."""
        entry = self._identities.get(_hash_secret(secret))
        if entry is None or time.monotonic() > entry[1]:
            return None
        return entry[0]

    def look_up(self, secret: str) -> TokenIdentity:
        """Return the identity of a secret from the store and cache it; raises ApiError 401."""
        started_at = time.monotonic()
        try:
            who = self._store.internal.tokens.check(secret)
        except Refused as error:
            raise ApiError(
                401,
                "unauthenticated",
                error.message,
                headers={"www-authenticate": "Bearer"},
                reason=error.details.get("reason"),
            ) from None
        ttl = TTL_SECONDS
        if who.expires_at is not None:
            ttl = min(ttl, (who.expires_at - self._store.now()) / 1_000)
        with self._lock:
            self._identities[_hash_secret(secret)] = (who, started_at + ttl)
            if len(self._identities) > MAX_ENTRIES:
                self._identities.popitem(last=False)
            self._used.add(who.id)
        return who

    def record_uses(self) -> None:
        """Record which tokens were used since the last call.

        Requests do not do this themselves, so that reads work while the store is not writable.
        """
        with self._lock:
            used, self._used = self._used, set()
        for id in used:
            with suppress(CorralError):
                self._store.internal.tokens.record_use(id)

    def handle_event(self, event: Event) -> None:
        """Clear the cache when a token or an agent changes."""
        if event.kind in ("token", "agent"):
            with self._lock:
                self._identities.clear()

    def store_for(self, who: TokenIdentity, store: Corral, run: str | None = None) -> Corral:
        """Return a cached store that acts as the caller; `run` is the run of its process."""
        key = f"{who.actor} {run or ''}"
        caller_store = self._stores.get(key)
        if caller_store is None:
            caller_store = self._stores[key] = store.as_actor(who.actor, run)
            if len(self._stores) > MAX_ENTRIES:
                self._stores.popitem(last=False)
        return caller_store


def _hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
