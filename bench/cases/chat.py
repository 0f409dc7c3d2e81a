"""Inbound chat messages: Corral, compared with the same rows written by hand."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from bench.harness import Bar, Bench, Rates, Rival, Row
from bench.opponents import open_store
from bench.opponents.raw_chat import RawChat
from corral.adapters.channels.contract import IncomingEvent
from corral.api import Corral
from corral.domain.chat.model import Message

TITLE = "Inbound chat messages, SQLite, one process"
ABOUT = """
    A message of an approved sender in a place with one wired agent: a message, a letter in the
    agent's session and an event for each, durable before the platform gets its acknowledgement.
    By hand (1x): APSW with prepared statements that writes the same rows at the same
    durability, with the same number of messages per transaction, and without any routing
    decision.
"""
BAR = Bar(">=", 0.5)
BATCH = 50

_numbers = count(1)
Receive = Callable[[Sequence[IncomingEvent]], object]


def measure(bench: Bench) -> list[Row]:
    store, message = _prepare_store(bench)
    other_store, other_message = _prepare_store(bench)
    by_hand = RawChat(other_store, other_message)
    receive_each, receive_all = (
        partial(_receive_each, store, message.channel_id),
        partial(_receive_all, store, message.channel_id),
    )
    result = bench.compare(
        Rival("by hand", partial(_sample, bench, by_hand.receive, by_hand.receive)),
        [Rival("Corral", partial(_sample, bench, receive_each, receive_all))],
        rounds=bench.pick(21, 5),
    )
    _check_same_rows(store, other_store)
    store.close()
    other_store.close()
    return [
        Row("messages received, one at a time", result.speed_of("Corral", "one"), BAR),
        Row(f"messages received, {BATCH} at once", result.speed_of("Corral", "batch")),
    ]


def _prepare_store(bench: Bench) -> tuple[Corral, Message]:
    """A store with a channel wired to an agent, and its first message."""
    store = open_store(f"sqlite:///{bench.new_file()}")
    store.agents.create("ada", provider="scripted")
    store.channels.add("chat", "webhook", secrets=_secret(store), policy="public")
    store.wirings.add("ada", channel="chat")
    return store, store.messages.receive("chat", _event())


def _secret(store: Corral) -> dict[str, str]:
    store.secrets.set("signing", "env:BENCH_SECRET")
    return {"secret": "signing"}


def _event() -> IncomingEvent:
    number = next(_numbers)
    return IncomingEvent(
        event_id=f"event-{number}", place="room", sender="ann", text=f"message {number}"
    )


def _receive_each(store: Corral, channel: str, events: Sequence[IncomingEvent]) -> None:
    for event in events:
        store.messages.receive(channel, event)


def _receive_all(store: Corral, channel: str, events: Sequence[IncomingEvent]) -> None:
    store.messages.receive_all(channel, events)


def _sample(bench: Bench, receive_each: Receive, receive_all: Receive) -> Rates:
    size = bench.pick(400, 200)
    events = [_event() for _ in range(size)]
    start_each = time.perf_counter()
    for event in events:
        receive_each([event])
    end_each = time.perf_counter()
    events = [_event() for _ in range(size * 2)]
    start_batches = time.perf_counter()
    for first in range(0, len(events), BATCH):
        receive_all(events[first : first + BATCH])
    end_batches = time.perf_counter()
    return {
        "one": size / (end_each - start_each),
        "batch": len(events) / (end_batches - start_batches),
    }


def _check_same_rows(store: Corral, other: Corral) -> None:
    """Check that both write the same rows, except numbers and times."""
    for item in (store, other):
        message = item.messages.list(limit=1).items[0]
        letter = item.mail.get(str(message.routes[0].letter_id))
        assert message.state == "routed"
        assert letter.body["text"] == message.text
        assert letter.key == letter.body["message"] == message.id
        events = item.events.newest(limit=2 * BATCH).items
        assert Counter((event.kind, event.verb) for event in events) == {
            ("letter", "put"): BATCH,
            ("message", "route"): BATCH,
        }
