"""Inbound chat messages written by hand: the rows that Corral stores, and no more.

Place, sender, wiring and session are hard-coded: no permission check, no routing, no open
questions.
The unique index finds duplicate events.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.opponents import ACTOR, now_ms
from bench.opponents.raw_sqlite import connect
from corral.adapters.channels.contract import IncomingEvent
from corral.api import Corral
from corral.domain.chat.model import Message

MESSAGE = """
    INSERT INTO messages (channel_id, place_id, direction, kind, event_id, platform_ids, sender_id,
        text, data, routes, at, created_at, ended_at, state)
    VALUES (:channel_id, :place_id, 'in', 'text', :event_id, '[]', :sender_id,
        :text, '{"mentioned":false}', :routes, :now, :now, :now, 'routed')
    ON CONFLICT (channel_id, event_id) DO NOTHING
    RETURNING seq
"""

LETTER = """
    INSERT INTO letters (mailbox, sender, key, body, rank, state, due_at, queue_at, fence, attempts,
        created_at)
    VALUES (:mailbox, :sender, :key, :body, 0, 'waiting', :now, :now, 0, 0, :now)
    ON CONFLICT (mailbox, key) WHERE key IS NOT NULL DO NOTHING
    RETURNING seq
"""

NOTE = """
    INSERT INTO events (at, actor, kind, verb, subject, data)
    VALUES (:now, :actor, :kind, :verb, :subject, :data)
"""


class RawChat:
    def __init__(self, store: Corral, like: Message) -> None:
        """`like` is a message that the store has routed; others are routed like it."""
        assert store.db.path is not None
        connection = connect(store.db.path)
        # the message must be durable before the platform gets the acknowledgement
        connection.execute("PRAGMA synchronous = FULL")
        self._run: Callable[..., Any] = connection.execute
        self._encode = msgspec.json.Encoder().encode
        (route,) = like.routes
        self._mailbox = f"session:{route.session_id}"
        self._routes = self._encode([msgspec.structs.replace(route, letter_id=None)]).decode()
        self._like = like
        place = store.places.get(like.place_id)
        self._body = store.mail.get(str(route.letter_id)).body
        self._event_data = self._encode({"in": place.id}).decode()
        self._place = place.mailbox

    def receive(self, events: Sequence[IncomingEvent]) -> None:
        self._run("BEGIN IMMEDIATE")
        for event in events:
            self._insert(event)
        self._run("COMMIT")

    def _insert(self, event: IncomingEvent) -> None:
        run, now, like = self._run, now_ms(), self._like
        values = {
            "channel_id": like.channel_id,
            "place_id": like.place_id,
            "event_id": f"in:{event.event_id}",
            "sender_id": like.sender_id,
            "text": event.text,
            "routes": self._routes,
            "now": now,
        }
        rows = run(MESSAGE, values).fetchall()
        if not rows:
            return
        id = f"msg_{rows[0][0]}"
        self._insert_event(now, "message", "route", id, self._event_data)
        letter = {
            "mailbox": self._mailbox,
            "sender": self._place,
            "key": id,
            "body": self._encode(self._body | {"message": id, "text": event.text}).decode(),
            "now": now,
        }
        ((seq,),) = run(LETTER, letter).fetchall()
        self._insert_event(now, "letter", "put", f"let_{seq}", None)

    def _insert_event(self, now: int, kind: str, verb: str, subject: str, data: str | None) -> None:
        values = {"now": now, "actor": ACTOR, "kind": kind, "verb": verb}
        self._run(NOTE, values | {"subject": subject, "data": data})
