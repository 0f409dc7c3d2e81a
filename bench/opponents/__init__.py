"""The same work, done by others: by hand on the raw driver, and by queues that people use."""

import time
from typing import Any, Protocol

import corral
from bench.harness import Rates
from corral.api import Corral

MAILBOX = "queue:bench"
ACTOR = "user:bench"
OWNER = "worker"
LEASE_MS = 30_000
BODY: dict[str, Any] = {"task": "index", "path": "docs/explanation/architecture.md", "attempt": 1}


class Queue(Protocol):
    """What every contestant can do: take in one piece of work, and hand one out to be done."""

    def put(self) -> None: ...

    def take(self) -> None:
        """Claim the next piece and say that it is done."""
        ...


class CorralQueue:
    """Corral as its users call it."""

    def __init__(self, store: Corral, mailbox: str = MAILBOX) -> None:
        self._mail = store.mail
        self._mailbox = mailbox

    def put(self) -> None:
        self._mail.put(self._mailbox, BODY)

    def take(self) -> None:
        (letter,) = self._mail.claim(self._mailbox, owner=OWNER)
        self._mail.ack(letter)


def open_store(url: str | None) -> Corral:
    return corral.open(url, actor=ACTOR)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def put_then_take(queue: Queue, count: int) -> Rates:
    """Fill the queue with `count` pieces and empty it again."""
    began = time.perf_counter()
    for _ in range(count):
        queue.put()
    filled = time.perf_counter()
    for _ in range(count):
        queue.take()
    emptied = time.perf_counter()
    return {
        "put": count / (filled - began),
        "claim + ack": count / (emptied - filled),
        "put + claim + ack": count / (emptied - began),
    }
