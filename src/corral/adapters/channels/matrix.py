"""Matrix, by its client-server HTTP API.

A transaction id makes a repeated sending the same event, so nothing is seen twice. Reading begins
where the channel was added; where a sync leaves a gap, the room's history fills it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import quote

from corral.adapters.channels.api import SECONDS, Api, Trouble
from corral.adapters.channels.contract import (
    Attached,
    Batch,
    Incoming,
    Kind,
    Outcome,
    Outgoing,
    Plain,
    Sent,
    Traits,
)

API = "/_matrix/client/v3"
MEDIA = "/_matrix/client/v1/media/download"
MOST_FILE = 50 << 20
MOST_PAGES = 100
FILTER = (
    '{"presence":{"types":[]},"account_data":{"types":[]},"room":{"ephemeral":{"types":[]},'
    '"timeline":{"limit":50},"state":{"types":["m.room.name"],"lazy_load_members":true}}}'
)


class Matrix(Plain):
    kind = "matrix"
    traits = Traits(
        max_text=16_000, threads=True, edits=True, reactions=True, typing=True, idempotent=True
    )
    config: ClassVar[Mapping[str, bool]] = {"base_url": True}
    secrets: ClassVar[Mapping[str, bool]] = {"token": True}

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        super().__init__(config, secrets)
        base = str(config["base_url"]).rstrip("/")
        self._web = Api(base, {"Authorization": f"Bearer {secrets['token']}"})
        self._me = ""
        self._names: dict[str, str] = {}
        self._members: dict[str, int] = {}

    def start(self) -> None:
        try:
            self._me = str(self._web.ask("GET", f"{API}/account/whoami")["user_id"])
        except Trouble as error:
            raise OSError(str(error)) from None

    def stop(self) -> None:
        self._web.close()

    def health(self) -> str | None:
        try:
            self._web.ask("GET", f"{API}/account/whoami")
        except Trouble as error:
            return str(error)
        return None

    # -- in -------------------------------------------------------------------------------------

    def receive(self, cursor: str | None, seconds: float) -> Batch:
        # The first time, what was said before is not ours to hear.
        asked = {"filter": FILTER, "timeout": str(int(seconds * 1_000) if cursor else 0)}
        if cursor:
            asked["since"] = cursor
        told = self._web.ask("GET", f"{API}/sync", params=asked, seconds=seconds + SECONDS)
        rooms = told.get("rooms", {})
        for room in rooms.get("invite", {}):
            with suppress(Trouble):  # a room that is gone, or that changed its mind
                self._web.ask("POST", f"{API}/join/{quote(room)}", json={})
        events: list[Incoming] = []
        for room, joined in rooms.get("join", {}).items():
            self._learn(room, joined)
            if cursor:
                for event in self._timeline(room, joined.get("timeline", {}), cursor):
                    taken = self._event(room, event)
                    if taken is not None:
                        events.append(taken)
        return Batch(events, str(told["next_batch"]))

    def _learn(self, room: str, joined: dict[str, Any]) -> None:
        count = joined.get("summary", {}).get("m.joined_member_count")
        if count is not None:
            self._members[room] = int(count)
        timeline = joined.get("timeline", {}).get("events", [])
        for event in [*joined.get("state", {}).get("events", []), *timeline]:
            if event.get("type") == "m.room.name" and event.get("state_key") == "":
                self._names[room] = str(event.get("content", {}).get("name") or "")

    def _timeline(
        self, room: str, timeline: dict[str, Any], cursor: str
    ) -> Iterator[dict[str, Any]]:
        """The room's new events, oldest first, those that the sync left out among them."""
        if timeline.get("limited") and timeline.get("prev_batch"):
            yield from reversed(list(self._gap(room, str(timeline["prev_batch"]), cursor)))
        yield from timeline.get("events", [])

    def _gap(self, room: str, start: str, end: str) -> Iterator[dict[str, Any]]:
        for _ in range(MOST_PAGES):
            asked = {"dir": "b", "from": start, "to": end, "limit": "100"}
            told = self._web.ask("GET", f"{API}/rooms/{quote(room)}/messages", params=asked)
            yield from told.get("chunk", [])
            if not told.get("chunk") or not told.get("end"):
                return
            start = str(told["end"])

    def _event(self, room: str, event: dict[str, Any]) -> Incoming | None:
        if event.get("sender") == self._me or event.get("type") not in (
            "m.room.message",
            "m.reaction",
        ):
            return None
        content = event.get("content", {})
        if content.get("msgtype") == "m.notice":
            return None  # by the rules of Matrix, bots do not answer these
        relation = content.get("m.relates_to", {})
        kind, target = _about(event["type"], relation)
        text = relation.get("key", "") if kind is Kind.REACTION else content.get("body", "")
        if kind is Kind.EDIT:
            text = content.get("m.new_content", {}).get("body", text)
        return Incoming(
            event_id=str(event["event_id"]),
            place=room,
            place_name=self._names.get(room) or None,
            direct=self._members.get(room, 3) <= 2,
            thread=relation.get("event_id") if relation.get("rel_type") == "m.thread" else None,
            message_id=str(event["event_id"]),
            sender=str(event["sender"]),
            kind=kind,
            text=str(text),
            mentioned=self._is_meant(content),
            reply_to=target,
            attached=self._files(content),
            at=int(event.get("origin_server_ts", 0)) or None,
        )

    def _is_meant(self, content: dict[str, Any]) -> bool:
        named = content.get("m.mentions", {}).get("user_ids", [])
        return self._me in named or (bool(self._me) and self._me in str(content.get("body", "")))

    def _files(self, content: dict[str, Any]) -> list[Attached]:
        url = str(content.get("url", ""))
        if not url.startswith("mxc://"):
            return []
        name = str(content.get("filename") or content.get("body") or "file")
        info = content.get("info", {})
        size, kind = int(info.get("size") or 0), info.get("mimetype")
        try:
            data = self._web.fetch(f"{MEDIA}/{quote(url.removeprefix('mxc://'))}", MOST_FILE)
        except Trouble as error:
            return [Attached(name, None, size, kind, str(error))]
        return [Attached(name, data, len(data), kind)]

    # -- out ------------------------------------------------------------------------------------

    def send(self, message: Outgoing) -> Outcome:
        type, content = _content(message)
        path = f"{API}/rooms/{quote(message.place)}/send/{type}/{quote(message.key, safe='')}"
        try:
            told = self._web.ask("PUT", path, json=content)
        except Trouble as error:
            return error.outcome
        return Sent([str(told["event_id"])])

    def typing(self, place: str, thread: str | None) -> None:
        path = f"{API}/rooms/{quote(place)}/typing/{quote(self._me)}"
        with suppress(Trouble):
            self._web.ask("PUT", path, json={"typing": True, "timeout": 20_000}, seconds=5.0)


def _about(type: str, relation: dict[str, Any]) -> tuple[Kind, str | None]:
    """What an event does with an earlier one, and which."""
    if type == "m.reaction":
        return Kind.REACTION, relation.get("event_id")
    if relation.get("rel_type") == "m.replace":
        return Kind.EDIT, relation.get("event_id")
    answered = relation.get("m.in_reply_to", {}).get("event_id")
    shown = None if relation.get("is_falling_back") else answered
    return Kind.TEXT, shown


def _content(message: Outgoing) -> tuple[str, dict[str, Any]]:
    if message.kind is Kind.REACTION:
        sign = {"rel_type": "m.annotation", "event_id": message.reply_to, "key": message.text}
        return "m.reaction", {"m.relates_to": sign}
    words: dict[str, Any] = {"msgtype": "m.text", "body": message.text}
    if message.kind is Kind.EDIT:
        return "m.room.message", {
            "msgtype": "m.text",
            "body": f"* {message.text}",
            "m.new_content": words,
            "m.relates_to": {"rel_type": "m.replace", "event_id": message.reply_to},
        }
    relation: dict[str, Any] = {}
    if message.thread:
        relation = {
            "rel_type": "m.thread",
            "event_id": message.thread,
            "m.in_reply_to": {"event_id": message.reply_to or message.thread},
            "is_falling_back": message.reply_to is None,
        }
    elif message.reply_to:
        relation = {"m.in_reply_to": {"event_id": message.reply_to}}
    return "m.room.message", words | ({"m.relates_to": relation} if relation else {})


ADAPTER = Matrix
