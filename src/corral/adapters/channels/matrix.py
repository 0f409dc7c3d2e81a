"""Matrix, over the client-server HTTP API.

The transaction id makes a retry idempotent. Servers forget transaction ids, some within an hour, so
each message also carries its key, and a late retry searches the room for the key first. Reading
starts when the channel is added, and in a room at our invitation. If a sync leaves a gap, the
history of the room fills it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from heapq import merge
from typing import Any, ClassVar
from urllib.parse import quote

from corral.adapters.channels.contract import (
    MALFORMED_ERRORS,
    BaseAdapter,
    ChannelTraits,
    EventBatch,
    IncomingEvent,
    LengthUnit,
    MessageKind,
    OutgoingMessage,
    PostedMessage,
    RawAttachment,
    SendOutcome,
    SentMessage,
    StoredFile,
    treat_unconfirmed_as_failed,
    validate_event,
)
from corral.adapters.channels.http_client import (
    DEFAULT_CONTENT_TYPE,
    DEFAULT_TIMEOUT,
    ApiClient,
    PlatformError,
    read_stored_file,
)
from corral.adapters.channels.message_text import has_mention, truncate_text
from corral.kernel.clock import MINUTE

API = "/_matrix/client/v3"
MEDIA = "/_matrix/client/v1/media/download"
UPLOAD = "/_matrix/media/v3/upload"
MAX_FILE_BYTES = 50 << 20
MAX_GAP_PAGES = 1_000
MAX_HISTORY_PAGES = 20
"""Pages of the history of a room that are searched for a message of ours."""
KEY = "corral.key"
MAX_CLOCK_SKEW_MS = 5 * MINUTE
FILTER = (
    '{"presence":{"types":[]},"account_data":{"types":[]},"room":{"ephemeral":{"types":[]},'
    '"timeline":{"limit":50},"state":{"types":["m.room.name"],"lazy_load_members":true}}}'
)


class MatrixAdapter(BaseAdapter):
    """A Matrix account."""

    kind = "matrix"
    traits = ChannelTraits(
        # An event is limited to 65,536 bytes, including its envelope and escapes.
        max_text=20_000,
        length_unit=LengthUnit.BYTES,
        threads=True,
        edits=True,
        reactions=True,
        typing=True,
        files=True,
        idempotent=True,
        key_retention_ms=15 * MINUTE,
        history=True,
    )
    config: ClassVar[Mapping[str, bool]] = {"base_url": True}
    secrets: ClassVar[Mapping[str, bool]] = {"token": True}

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        super().__init__(config, secrets)
        base = str(config["base_url"]).rstrip("/")
        self._api = ApiClient(base, {"Authorization": f"Bearer {secrets['token']}"})
        self._me = ""
        self._names: dict[str, str] = {}
        self._members: dict[str, int] = {}

    def start(self) -> None:
        try:
            self._me = str(self._api.request_json("GET", f"{API}/account/whoami")["user_id"])
        except PlatformError as error:
            raise OSError(str(error)) from None

    def stop(self) -> None:
        self._api.close()

    def check_health(self) -> str | None:
        try:
            self._api.request_json("GET", f"{API}/account/whoami")
        except PlatformError as error:
            return str(error)
        return None

    # -- inbound --------------------------------------------------------------------------------

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        # The first sync only establishes the cursor: earlier messages are not for us.
        params = {"filter": FILTER, "timeout": str(int(seconds * 1_000) if cursor else 0)}
        if cursor:
            params["since"] = cursor
        response = self._api.request_json(
            "GET", f"{API}/sync", params=params, seconds=seconds + DEFAULT_TIMEOUT
        )
        rooms = response.get("rooms", {})
        for room in rooms.get("invite", {}):
            with suppress(PlatformError):  # the room is gone, or the invitation was withdrawn
                self._api.request_json("POST", f"{API}/join/{quote(room)}", json={})
        rooms_events: list[list[IncomingEvent]] = []
        unreadable: dict[str, str] = {}
        for room, joined in rooms.get("join", {}).items():
            self._remember_room(room, joined)
            if cursor:
                timeline = self._read_timeline(room, joined.get("timeline", {}), cursor, unreadable)
                rooms_events.append(list(self._read_events(room, timeline, unreadable)))
        # Rooms are unordered: merge them by time, keeping the order within each room.
        events = list(merge(*rooms_events, key=lambda event: event.at or 0))
        return EventBatch(events, str(response["next_batch"]), unreadable)

    def _read_events(
        self, room: str, events: list[dict[str, Any]], unreadable: dict[str, str]
    ) -> Iterator[IncomingEvent]:
        for event in events:
            try:
                if event.get("type") == "m.room.encrypted":
                    unreadable[str(event["event_id"])] = f"{room} is encrypted"
                elif (incoming := self._parse_event(room, event)) is not None:
                    yield validate_event(incoming)
            except MALFORMED_ERRORS:
                unreadable[_read_event_id(event)] = f"malformed event in {room}"

    def _remember_room(self, room: str, joined: dict[str, Any]) -> None:
        count = joined.get("summary", {}).get("m.joined_member_count")
        if count is not None:
            self._members[room] = int(count)
        timeline = joined.get("timeline", {}).get("events", [])
        for event in [*joined.get("state", {}).get("events", []), *timeline]:
            if event.get("type") == "m.room.name" and event.get("state_key") == "":
                self._names[room] = str(event.get("content", {}).get("name") or "")

    def _read_timeline(
        self, room: str, timeline: dict[str, Any], cursor: str, unreadable: dict[str, str]
    ) -> list[dict[str, Any]]:
        """Return the new events of a room, oldest first, including those that the sync left out."""
        events = list(timeline.get("events", []))
        if timeline.get("limited") and timeline.get("prev_batch"):
            missing, is_cut = self._read_gap(room, str(timeline["prev_batch"]), cursor)
            if is_cut:
                oldest = _read_event_id(missing[-1])
                unreadable[f"before {oldest}"] = f"too many new events in {room}"
            events = [*reversed(missing), *events]
        # Events before our invitation or join are not for us.
        joins = [number for number, event in enumerate(events) if self._is_our_join(event)]
        return events[joins[-1] :] if joins else events

    def _is_our_join(self, event: dict[str, Any]) -> bool:
        """Return whether the event is our invitation, or our join without an invitation."""
        if event.get("type") != "m.room.member" or event.get("state_key") != self._me:
            return False
        before = event.get("unsigned", {}).get("prev_content", {}).get("membership")
        now = event.get("content", {}).get("membership")
        return now == "invite" or (now == "join" and before not in ("invite", "join"))

    def _read_gap(self, room: str, start: str, end: str) -> tuple[list[dict[str, Any]], bool]:
        """Return the events of a gap, newest first, and whether the oldest ones were left out."""
        events: list[dict[str, Any]] = []
        for _ in range(MAX_GAP_PAGES):
            page = self._read_page(room, start, end)
            events += page.get("chunk", [])
            if not page.get("chunk") or not page.get("end"):
                return events, False
            start = str(page["end"])
        return events, True

    def _read_page(
        self, room: str, start: str | None = None, end: str | None = None
    ) -> dict[str, Any]:
        """Return up to 100 events of a room, newest first."""
        params = {"dir": "b", "limit": "100"}
        params |= {name: token for name, token in (("from", start), ("to", end)) if token}
        path = f"{API}/rooms/{quote(room)}/messages"
        response: dict[str, Any] = self._api.request_json("GET", path, params=params)
        return response

    def _parse_event(self, room: str, event: dict[str, Any]) -> IncomingEvent | None:
        if event.get("sender") == self._me or event.get("type") not in (
            "m.room.message",
            "m.reaction",
        ):
            return None
        content = event.get("content", {})
        if content.get("msgtype") == "m.notice":
            return None  # by the Matrix specification, bots do not respond to notices
        relation = content.get("m.relates_to", {})
        kind, target = _parse_relation(event["type"], relation)
        text = relation.get("key", "") if kind is MessageKind.REACTION else content.get("body", "")
        if kind is MessageKind.EDIT:
            text = content.get("m.new_content", {}).get("body", text)
        return IncomingEvent(
            event_id=str(event["event_id"]),
            place=room,
            place_name=self._names.get(room) or None,
            direct=self._is_direct(room),
            thread=relation.get("event_id") if relation.get("rel_type") == "m.thread" else None,
            message_id=str(event["event_id"]),
            sender=str(event["sender"]),
            kind=kind,
            text=str(text),
            mentioned=self._is_mentioned(content),
            reply_to=target,
            attached=self._download_files(content),
            at=int(event.get("origin_server_ts", 0)) or None,
        )

    def _is_direct(self, room: str) -> bool | None:
        """Return whether the room has at most two members now; None if that is unknown."""
        if room not in self._members:  # a sync reports changes only
            try:
                response = self._api.request_json(
                    "GET", f"{API}/rooms/{quote(room)}/joined_members"
                )
            except PlatformError:
                return None
            self._members[room] = len(response.get("joined", {}))
        return self._members[room] <= 2

    def _is_mentioned(self, content: dict[str, Any]) -> bool:
        mentions = content.get("m.mentions", {}).get("user_ids", [])
        return self._me in mentions or has_mention(str(content.get("body", "")), self._me)

    def _download_files(self, content: dict[str, Any]) -> list[RawAttachment]:
        url = str(content.get("url", ""))
        if not url.startswith("mxc://"):
            return []
        name = str(content.get("filename") or content.get("body") or "file")
        info = content.get("info", {})
        size, kind = int(info.get("size") or 0), info.get("mimetype")
        try:
            data = self._api.download(
                f"{MEDIA}/{quote(url.removeprefix('mxc://'))}", MAX_FILE_BYTES
            )
        except PlatformError as error:
            return [RawAttachment(name, None, size, kind, str(error))]
        return [RawAttachment(name, data, len(data), kind)]

    # -- outbound -------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage) -> SendOutcome:
        try:
            type, content = _build_content(message)
            if message.file is not None:
                content |= self._upload_file(message.file)
        except PlatformError as error:
            return treat_unconfirmed_as_failed(
                error.outcome
            )  # an upload without a message is invisible
        path = f"{API}/rooms/{quote(message.place)}/send/{type}/{quote(message.key, safe='')}"
        try:
            response = self._api.request_json("PUT", path, json=content)
        except PlatformError as error:
            if "M_DUPLICATE_ANNOTATION" in str(error):
                return SentMessage([str(message.reply_to)])  # the reaction exists already
            return error.outcome
        return SentMessage([str(response["event_id"])])

    def _upload_file(self, file: StoredFile) -> dict[str, Any]:
        """Upload a file and return the message content that refers to it."""
        type = file.type or DEFAULT_CONTENT_TYPE
        filename = {"filename": file.name}
        response = self._api.upload("POST", UPLOAD, read_stored_file(file), type, params=filename)
        kind = next(
            (media for media in ("image", "audio", "video") if type.startswith(media)), "file"
        )
        info = {"size": file.bytes, "mimetype": type}
        return filename | {
            "msgtype": f"m.{kind}",
            "url": str(response["content_uri"]),
            "info": info,
        }

    def list_posted(self, message: OutgoingMessage) -> list[PostedMessage]:
        messages: list[PostedMessage] = []
        start: str | None = None
        for _ in range(MAX_HISTORY_PAGES):
            page = self._read_page(message.place, start)
            events = page.get("chunk", [])
            messages += [
                own for event in events if (own := self._parse_own_message(event)) is not None
            ]
            start = page.get("end")
            oldest = min((int(event["origin_server_ts"]) for event in events), default=0)
            if start is None or oldest < message.begun_at - MAX_CLOCK_SKEW_MS:
                break
        return messages

    def _parse_own_message(self, event: dict[str, Any]) -> PostedMessage | None:
        content = event.get("content", {})
        if event.get("sender") != self._me or event.get("type") != "m.room.message":
            return None
        relation = content.get("m.relates_to", {})
        thread = relation.get("event_id") if relation.get("rel_type") == "m.thread" else None
        return PostedMessage(
            str(event["event_id"]),
            str(content.get("body", "")),
            thread,
            int(event["origin_server_ts"]),
            key=str(content.get(KEY, "")),
        )

    def show_typing(self, place: str, thread: str | None) -> None:
        path = f"{API}/rooms/{quote(place)}/typing/{quote(self._me)}"
        with suppress(PlatformError):
            self._api.request_json(
                "PUT", path, json={"typing": True, "timeout": 20_000}, seconds=5.0
            )


def _read_event_id(event: Any) -> str:
    return str(event.get("event_id")) if isinstance(event, dict) else "an event without an id"


def _parse_relation(type: str, relation: dict[str, Any]) -> tuple[MessageKind, str | None]:
    """Return the kind of an event and the id of the earlier event that it refers to."""
    if type == "m.reaction":
        return MessageKind.REACTION, relation.get("event_id")
    if relation.get("rel_type") == "m.replace":
        return MessageKind.EDIT, relation.get("event_id")
    replied_to = relation.get("m.in_reply_to", {}).get("event_id")
    return MessageKind.TEXT, None if relation.get("is_falling_back") else replied_to


def _build_content(message: OutgoingMessage) -> tuple[str, dict[str, Any]]:
    if message.kind is MessageKind.REACTION:
        reaction = {"rel_type": "m.annotation", "event_id": message.reply_to, "key": message.text}
        return "m.reaction", {"m.relates_to": reaction}
    content: dict[str, Any] = {"msgtype": "m.text", "body": message.text}
    if message.kind is MessageKind.EDIT:
        return "m.room.message", {
            "msgtype": "m.text",
            # Fallback for clients without edits; both texts must fit into one event.
            "body": truncate_text(f"* {message.text}", 4_000, LengthUnit.BYTES),
            "m.new_content": content,
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
    content[KEY] = message.key
    return "m.room.message", content | ({"m.relates_to": relation} if relation else {})


ADAPTER = MatrixAdapter
