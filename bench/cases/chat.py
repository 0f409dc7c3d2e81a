"""Chat messages: stored and routed by Corral, and the same rows written by hand."""

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
Take = Callable[[Sequence[IncomingEvent]], object]


def measure(bench: Bench) -> list[Row]:
    store, heard = _prepared(bench)
    other, known = _prepared(bench)
    by_hand = RawChat(other, known)
    one, all_ = partial(_one, store, heard.channel_id), partial(_all, store, heard.channel_id)
    result = bench.compare(
        Rival("by hand", partial(_sample, bench, by_hand.receive, by_hand.receive)),
        [Rival("Corral", partial(_sample, bench, one, all_))],
        rounds=bench.pick(21, 5),
    )
    _check_same_rows(store, other)
    store.close()
    other.close()
    return [
        Row("messages received, one at a time", result.speed_of("Corral", "one"), BAR),
        Row(f"messages received, {BATCH} at once", result.speed_of("Corral", "batch")),
    ]


def _prepared(bench: Bench) -> tuple[Corral, Message]:
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
        event_id=f"event-{number}", place="room", sender="ann", text=f"what of {number}?"
    )


def _one(store: Corral, channel: str, events: Sequence[IncomingEvent]) -> None:
    for event in events:
        store.messages.receive(channel, event)


def _all(store: Corral, channel: str, events: Sequence[IncomingEvent]) -> None:
    store.messages.receive_all(channel, events)


def _sample(bench: Bench, one: Take, all_: Take) -> Rates:
    size = bench.pick(400, 200)
    events = [_event() for _ in range(size)]
    began = time.perf_counter()
    for event in events:
        one([event])
    middle = time.perf_counter()
    events = [_event() for _ in range(size * 2)]
    start = time.perf_counter()
    for first in range(0, len(events), BATCH):
        all_(events[first : first + BATCH])
    end = time.perf_counter()
    return {"one": size / (middle - began), "batch": len(events) / (end - start)}


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
            ("message", "hear"): BATCH,
        }
