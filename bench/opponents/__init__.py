"""Implementations to compare with: the raw driver, and common queues and frameworks."""

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
    """The interface of every contestant: put one item, and take one."""

    def put(self) -> None: ...

    def take(self) -> None:
        """Claim and complete the next item."""
        ...


class CorralQueue:
    """Corral through its public API."""

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
    """Put `count` items and take them again."""
    start = time.perf_counter()
    for _ in range(count):
        queue.put()
    put_end = time.perf_counter()
    for _ in range(count):
        queue.take()
    take_end = time.perf_counter()
    return {
        "put": count / (put_end - start),
        "claim + ack": count / (take_end - put_end),
        "put + claim + ack": count / (take_end - start),
    }
