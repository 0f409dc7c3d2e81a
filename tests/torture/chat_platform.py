"""A faulty chat platform in its own process, and the adapters that connect to it.

It fails, delays, duplicates and reorders messages, and loses responses. Two kinds of channels:
`once` deduplicates by key, `open` shows a message as often as it is sent and reports its history.
The visible messages survive the death of any other process.
"""

import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from corral.adapters.channels import registry
from corral.adapters.channels.contract import (
    BaseAdapter,
    ChannelTraits,
    EventBatch,
    FailedMessage,
    IncomingEvent,
    OutgoingMessage,
    PostedMessage,
    SendOutcome,
    SentMessage,
    UnconfirmedMessage,
)

POLL = 0.3
SECONDS = 10.0


# -- the platform ----------------------------------------------------------------------------------


class FaultyPlatform:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._held: list[tuple[float, str, dict[str, Any]]] = []
        self._logs: dict[str, list[dict[str, Any]]] = {"once": [], "open": []}
        self.shown: list[dict[str, Any]] = []
        self._keys: dict[tuple[str, str], str] = {}
        self.counts: dict[str, int] = {}

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def say(self, kind: str, event: dict[str, Any]) -> None:
        """Post a message; it is delivered eventually and not always in order."""
        with self._lock:
            delay = self._random.choice((0, 0, 0, 0.05, 0.5))
            self._held.append((time.monotonic() + delay, kind, event))

    def poll(self, kind: str, cursor: int) -> dict[str, Any] | None:
        with self._lock:
            if self._random.random() < 0.08:
                self.count("polls that failed")
                return None
            now = time.monotonic()
            free = [item for item in self._held if item[0] <= now]
            self._held = [item for item in self._held if item[0] > now]
            if self._random.random() < 0.3:
                self._random.shuffle(free)
                self.count("batches out of order")
            for _, event_kind, event in free:
                self._logs[event_kind].append(event)
            log = self._logs[kind]
            events = log[cursor : cursor + 40]
            result = list(events)
            for _ in range(self._random.choice((0, 0, 1, 3)) if log else 0):
                result.insert(self._random.randint(0, len(result)), self._random.choice(log))
                self.count("events repeated")
            # An event delivered too early is delivered again in its turn.
            return {"events": result, "cursor": cursor + len(events)}

    def send(self, kind: str, message: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """None: the connection breaks, and the sender does not know the outcome."""
        with self._lock:
            chance = self._random.random()
            if chance < 0.08:
                self.count("failed sends")
                return 503, {}
            if chance < 0.12:
                self.count("throttled sends")
                return 429, {"retry_ms": 150}
            if chance < 0.15:
                self.count("lost requests")
                return None
            message_id = self._keys.get((kind, message["key"])) if kind == "once" else None
            if message_id is None:
                message_id = f"m{len(self.shown)}"
                self._keys[kind, message["key"]] = message_id
                self.shown.append({"id": message_id, "kind": kind, **message})
            else:
                self.count("repeated keys")
            if chance < 0.19:
                self.count("lost responses")
                return None
            return 200, {"id": message_id}

    def handle(
        self, what: str, kind: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]] | None:
        """Return the response to a request; None: no response."""
        if what == "say":
            for event in body["events"]:
                self.say(kind, event)
            return 200, {}
        if what == "poll":
            result = self.poll(kind, body["cursor"])
            return (503, {}) if result is None else (200, result)
        if what == "send":
            return self.send(kind, body)
        if what == "history":
            return 200, {"shown": self.history(kind, body["place"])}
        return 200, {"shown": self.shown[body["after"] :], **self.counts}

    def delay(self) -> None:
        with self._lock:
            pause = self._random.choice((0, 0, 0, 0, 0.01, 0.1))
        time.sleep(pause)

    def history(self, kind: str, place: str) -> list[dict[str, Any]]:
        with self._lock:
            self.count("history requests")
            messages = [
                item for item in self.shown if item["kind"] == kind and item["place"] == place
            ]
            return messages[-100:]


def serve(port: int, seed: int) -> None:
    platform = FaultyPlatform(seed)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Discard the log."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            platform.delay()
            answer = platform.handle(body.pop("what"), body.pop("kind", "once"), body)
            if answer is None:
                self.close_connection = True
            else:
                self._respond(*answer)

        def _respond(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    class PlatformServer(ThreadingHTTPServer):
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """Ignore: the client was killed."""

    PlatformServer(("127.0.0.1", port), Handler).serve_forever()


# -- adapters --------------------------------------------------------------------------------------


def ask(url: str, **body: Any) -> tuple[int, dict[str, Any]]:
    """Return the platform's response; raises OSError if the connection breaks."""
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            return 200, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class IdempotentAdapter(BaseAdapter):
    """A channel that shows a repeated key once."""

    kind = "once"
    traits = ChannelTraits(max_text=2_000, idempotent=True)
    config: ClassVar[Mapping[str, bool]] = {"url": True}

    @property
    def _url(self) -> str:
        return str(self._config["url"])

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        status, result = ask(self._url, what="poll", kind=self.kind, cursor=int(cursor or 0))
        if status != 200:
            raise OSError(f"the platform answered {status}")
        if not result["events"]:
            time.sleep(POLL)
        return EventBatch(
            [IncomingEvent(**event) for event in result["events"]], str(result["cursor"])
        )

    def send(self, message: OutgoingMessage) -> SendOutcome:
        try:
            status, result = ask(
                self._url,
                what="send",
                kind=self.kind,
                key=message.key,
                place=message.place,
                text=message.text,
            )
        except (OSError, ValueError) as error:
            return UnconfirmedMessage(f"the connection broke ({type(error).__name__})")
        if status == 200:
            return SentMessage([result["id"]])
        return FailedMessage(f"it answered {status}", retry_ms=result.get("retry_ms"))


class HistoryAdapter(IdempotentAdapter):
    """A channel that shows a message as often as it is sent and reports its history."""

    kind = "open"
    traits = ChannelTraits(max_text=2_000, history=True)

    def list_posted(self, message: OutgoingMessage) -> list[PostedMessage]:
        _, result = ask(self._url, what="history", kind=self.kind, place=message.place)
        return [
            PostedMessage(item["id"], item["text"], None, message.begun_at)
            for item in result["shown"]
        ]


KINDS = {adapter.kind: adapter for adapter in (IdempotentAdapter, HistoryAdapter)}


class _EntryPoint:
    def __init__(self, adapter: type[BaseAdapter]) -> None:
        self.load = lambda: adapter


def register_adapters() -> None:
    """Register these channel kinds as if a package had provided them."""
    registry._list_entry_points = lambda: {
        kind: _EntryPoint(adapter) for kind, adapter in KINDS.items()
    }


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
