"""Matrix, by its client-server HTTP API.

A transaction id makes a repeated sending the same event, so nothing is seen twice. Servers forget
such ids, some within the hour; so each message carries its key too, and a late repetition looks for
it in the room first. Reading begins where the channel was added, and in a room where we were
invited; where a sync leaves a gap, the room's history fills it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from heapq import merge
from typing import Any, ClassVar
from urllib.parse import quote

from corral.adapters.channels.api import PLAIN, SECONDS, Api, Trouble, contents
from corral.adapters.channels.contract import (
    NONSENSE,
    Attached,
    Batch,
    Count,
    File,
    Incoming,
    Kind,
    Outcome,
    Outgoing,
    Plain,
    Seen,
    Sent,
    Traits,
    calls_for,
    fitting,
    sound,
    unseen,
)
from corral.kernel.clock import MINUTE

API = "/_matrix/client/v3"
MEDIA = "/_matrix/client/v1/media/download"
UPLOAD = "/_matrix/media/v3/upload"
MOST_FILE = 50 << 20
MOST_PAGES = 1_000
MOST_BACK = 20
"""Pages of a room's history in which a message of our own is looked for."""
KEY = "corral.key"
CLOCKS_APART_MS = 5 * MINUTE
FILTER = (
    '{"presence":{"types":[]},"account_data":{"types":[]},"room":{"ephemeral":{"types":[]},'
    '"timeline":{"limit":50},"state":{"types":["m.room.name"],"lazy_load_members":true}}}'
)


class Matrix(Plain):
    kind = "matrix"
    traits = Traits(
        # An event has up to 65,536 bytes, its envelope and escapes among them.
        max_text=20_000,
        counts=Count.BYTES,
        threads=True,
        edits=True,
        reactions=True,
        typing=True,
        files=True,
        idempotent=True,
        remembers_ms=15 * MINUTE,
        history=True,
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
        spoken: list[list[Incoming]] = []
        unreadable: dict[str, str] = {}
        for room, joined in rooms.get("join", {}).items():
            self._learn(room, joined)
            if cursor:
                told_there = self._timeline(room, joined.get("timeline", {}), cursor, unreadable)
                spoken.append(list(self._taken(room, told_there, unreadable)))
        # Rooms come in no order; whoever spoke first is heard first, and each room in its own.
        events = list(merge(*spoken, key=lambda event: event.at or 0))
        return Batch(events, str(told["next_batch"]), unreadable)

    def _taken(
        self, room: str, events: list[dict[str, Any]], unreadable: dict[str, str]
    ) -> Iterator[Incoming]:
        for event in events:
            try:
                if event.get("type") == "m.room.encrypted":
                    unreadable[str(event["event_id"])] = f"{room} is encrypted"
                elif (taken := self._event(room, event)) is not None:
                    yield sound(taken)
            except NONSENSE:
                unreadable[_id_of(event)] = f"somebody in {room} sent what makes no sense"

    def _learn(self, room: str, joined: dict[str, Any]) -> None:
        count = joined.get("summary", {}).get("m.joined_member_count")
        if count is not None:
            self._members[room] = int(count)
        timeline = joined.get("timeline", {}).get("events", [])
        for event in [*joined.get("state", {}).get("events", []), *timeline]:
            if event.get("type") == "m.room.name" and event.get("state_key") == "":
                self._names[room] = str(event.get("content", {}).get("name") or "")

    def _timeline(
        self, room: str, timeline: dict[str, Any], cursor: str, unreadable: dict[str, str]
    ) -> list[dict[str, Any]]:
        """The room's new events, oldest first, those that the sync left out among them."""
        found = list(timeline.get("events", []))
        if timeline.get("limited") and timeline.get("prev_batch"):
            missing = list(self._gap(room, str(timeline["prev_batch"]), cursor))
            if len(missing) > MOST_PAGES * 100:
                unreadable[f"before {missing[-1]['event_id']}"] = f"{room} said too much at once"
            found = [*reversed(missing), *found]
        # A room that we have come to shows what was said there before: that is not ours to hear.
        came = [number for number, event in enumerate(found) if self._calls_us(event)]
        return found[came[-1] :] if came else found

    def _calls_us(self, event: dict[str, Any]) -> bool:
        """Whether by this we are invited to a room; or come to it, where nobody had to invite."""
        if event.get("type") != "m.room.member" or event.get("state_key") != self._me:
            return False
        before = event.get("unsigned", {}).get("prev_content", {}).get("membership")
        now = event.get("content", {}).get("membership")
        return now == "invite" or (now == "join" and before not in ("invite", "join"))

    def _gap(self, room: str, start: str, end: str) -> Iterator[dict[str, Any]]:
        for _ in range(MOST_PAGES + 1):
            page = self._page(room, start, end)
            yield from page.get("chunk", [])
            if not page.get("chunk") or not page.get("end"):
                return
            start = str(page["end"])

    def _page(self, room: str, start: str | None = None, end: str | None = None) -> dict[str, Any]:
        """A hundred events of a room, newest first."""
        asked = {"dir": "b", "limit": "100"}
        asked |= {name: each for name, each in (("from", start), ("to", end)) if each}
        path = f"{API}/rooms/{quote(room)}/messages"
        told: dict[str, Any] = self._web.ask("GET", path, params=asked)
        return told

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
            direct=self._is_direct(room),
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

    def _is_direct(self, room: str) -> bool | None:
        """Whether nobody is there but us and one other, as of now; None: nobody says."""
        if room not in self._members:  # a sync tells it when it changes
            try:
                told = self._web.ask("GET", f"{API}/rooms/{quote(room)}/joined_members")
            except Trouble:
                return None
            self._members[room] = len(told.get("joined", {}))
        return self._members[room] <= 2

    def _is_meant(self, content: dict[str, Any]) -> bool:
        named = content.get("m.mentions", {}).get("user_ids", [])
        return self._me in named or calls_for(str(content.get("body", "")), self._me)

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
        try:
            type, content = _content(message)
            if message.file is not None:
                content |= self._uploaded(message.file)
        except Trouble as error:
            return unseen(error.outcome)  # nobody sees what no message names
        path = f"{API}/rooms/{quote(message.place)}/send/{type}/{quote(message.key, safe='')}"
        try:
            told = self._web.ask("PUT", path, json=content)
        except Trouble as error:
            if "M_DUPLICATE_ANNOTATION" in str(error):
                return Sent([str(message.reply_to)])  # our sign is on it already
            return error.outcome
        return Sent([str(told["event_id"])])

    def _uploaded(self, file: File) -> dict[str, Any]:
        """What makes a message one of a file."""
        type = file.type or PLAIN
        named = {"filename": file.name}
        told = self._web.put("POST", UPLOAD, contents(file), type, params=named)
        kind = next((each for each in ("image", "audio", "video") if type.startswith(each)), "file")
        info = {"size": file.bytes, "mimetype": type}
        return named | {"msgtype": f"m.{kind}", "url": str(told["content_uri"]), "info": info}

    def history(self, message: Outgoing) -> list[Seen]:
        found: list[Seen] = []
        start: str | None = None
        for _ in range(MOST_BACK):
            page = self._page(message.place, start)
            events = page.get("chunk", [])
            found += [seen for each in events if (seen := self._seen(each)) is not None]
            start = page.get("end")
            oldest = min((int(each["origin_server_ts"]) for each in events), default=0)
            if start is None or oldest < message.begun_at - CLOCKS_APART_MS:
                break
        return found

    def _seen(self, event: dict[str, Any]) -> Seen | None:
        content = event.get("content", {})
        if event.get("sender") != self._me or event.get("type") != "m.room.message":
            return None
        relation = content.get("m.relates_to", {})
        thread = relation.get("event_id") if relation.get("rel_type") == "m.thread" else None
        return Seen(
            str(event["event_id"]),
            str(content.get("body", "")),
            thread,
            int(event["origin_server_ts"]),
            key=str(content.get(KEY, "")),
        )

    def typing(self, place: str, thread: str | None) -> None:
        path = f"{API}/rooms/{quote(place)}/typing/{quote(self._me)}"
        with suppress(Trouble):
            self._web.ask("PUT", path, json={"typing": True, "timeout": 20_000}, seconds=5.0)


def _id_of(event: Any) -> str:
    return str(event.get("event_id")) if isinstance(event, dict) else "an event without an id"


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
            # For clients that know no edits; both texts have to go into one event.
            "body": fitting(f"* {message.text}", 4_000, Count.BYTES),
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
    words[KEY] = message.key
    return "m.room.message", words | ({"m.relates_to": relation} if relation else {})


ADAPTER = Matrix
