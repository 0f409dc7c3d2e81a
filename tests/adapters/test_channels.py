"""Chat platform adapters against local servers with the same HTTP API."""

import hashlib
import hmac
import json
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlencode

import pytest

from corral.adapters import notifications
from corral.adapters.attachments import make_safe_name
from corral.adapters.channels.contract import (
    ChannelAdapter,
    FailedMessage,
    MessageKind,
    OutgoingMessage,
    RejectedMessage,
    RequestRejected,
    SentMessage,
    UnconfirmedMessage,
    UnsupportedMessage,
)
from corral.adapters.channels.matrix import MatrixAdapter
from corral.adapters.channels.message_text import format_card, split_text
from corral.adapters.channels.registry import BUILTIN_KINDS, get_adapter_class
from corral.adapters.channels.slack import SlackAdapter
from corral.adapters.channels.telegram import TelegramAdapter
from corral.adapters.channels.terminal import TerminalAdapter
from corral.adapters.channels.webhook import WebhookAdapter
from tests.support.chat_server_stub import Answer, ApiRequest, platform
from tests.support.grouped_cases import each_case
from tests.support.http_receiver import run_receiver

NOW = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


def make_message(text: str = "hello", **fields: Any) -> OutgoingMessage:
    return OutgoingMessage(**{"key": "k1", "place": "room", "text": text} | fields)


# -- all adapters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BUILTIN_KINDS)
def test_every_kind_implements_the_contract(kind: str) -> None:
    adapter_class = get_adapter_class(kind)
    assert adapter_class.kind == kind
    methods = ("start", "stop", "check_health", "receive", "accept", "send", "show_typing")
    for name in (*methods, "list_posted"):
        assert callable(getattr(adapter_class, name))


@pytest.mark.parametrize(
    ("text", "most", "pieces"),
    [
        ("short", 10, ["short"]),
        ("", 10, [""]),
        ("one two three", 8, ["one two", "three"]),
        ("x" * 25, 10, ["x" * 10, "x" * 10, "x" * 5]),
        ("first\n\nsecond", 10, ["first", "second"]),
    ],
)
def test_long_text_is_split_at_paragraphs_and_words(
    text: str, most: int, pieces: list[str]
) -> None:
    assert split_text(text, most) == pieces


def test_card_without_buttons_lists_numbers() -> None:
    assert format_card("Which?", ["a", "b"]) == "Which?\n1. a\n2. b\n\nAnswer with a number."
    assert format_card("What?", []) == "What?"


@pytest.mark.parametrize(
    ("name", "safe_name"),
    [
        ("../../etc/passwd", "1-passwd"),
        ("C:\\Temp\\a b.txt", "1-a_b.txt"),
        ("", "1-file"),
        ("...", "1-file"),
        (".bashrc", "1-bashrc"),
        ("x" * 200, "1-" + "x" * 80),
        ("a\0b", "1-a_b"),
    ],
)
def test_attachment_name_is_sanitized(name: str, safe_name: str) -> None:
    assert make_safe_name(name, 1) == safe_name


def test_terminal_shows_text_and_cards_only_with_a_viewer() -> None:
    lines: list[str] = []
    terminal = TerminalAdapter({}, {}, lines.append)
    assert terminal.send(make_message()) == SentMessage(["k1"])
    terminal.send(make_message("Which?", kind=MessageKind.QUESTION, options=["a"]))
    assert lines == ["hello", "Which?\n1. a\n\nAnswer with a number."]
    assert isinstance(TerminalAdapter({}, {}).send(make_message()), UnsupportedMessage)
    assert isinstance(
        terminal.send(make_message("x", kind=MessageKind.REACTION)), UnsupportedMessage
    )


# -- send outcomes --------------------------------------------------------------------------------


def adapters(url: str) -> list[ChannelAdapter]:
    return [
        MatrixAdapter({"base_url": url}, {"token": "t"}),
        TelegramAdapter({"base_url": url}, {"token": "t"}),
        SlackAdapter({"base_url": url}, {"token": "t", "signing_secret": "s"}),
    ]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ((429, {}, {"Retry-After": "7"}), FailedMessage("the platform returned 429", 7_000)),
        ((401, {}), FailedMessage("the platform returned 401; the token is invalid")),
        (
            (403, {"errcode": "M_FORBIDDEN"}),
            RejectedMessage("the platform returned 403: M_FORBIDDEN"),
        ),
        ((502, b"bad gateway"), UnconfirmedMessage("the platform returned 502")),
    ],
)
@pytest.mark.parametrize("which", range(3))
def test_http_status_maps_to_one_send_outcome(answer: Answer, outcome: object, which: int) -> None:
    with platform(lambda request: answer) as api:
        adapter = adapters(api.url)[which]
        assert adapter.send(make_message(place="1")) == outcome
        adapter.stop()


@pytest.mark.parametrize("which", range(3))
def test_broken_connection_is_unconfirmed_and_refused_one_is_not(which: int) -> None:
    with platform(lambda request: (0, None)) as api:
        adapter = adapters(api.url)[which]
        assert isinstance(adapter.send(make_message(place="1")), UnconfirmedMessage)
    assert isinstance(adapters(api.url)[which].send(make_message(place="1")), FailedMessage)


@pytest.mark.parametrize("which", range(3))
def test_wrong_token_is_reported_without_the_token(which: int) -> None:
    def refuse(request: ApiRequest) -> Answer:
        if "auth.test" in request.path:
            return 200, {"ok": False, "error": "invalid_auth"}
        return 401, {"errcode": "M_UNKNOWN_TOKEN", "description": "Unauthorized"}

    with platform(refuse) as api:
        adapter = adapters(api.url)[which]
        with pytest.raises(OSError, match=r"401|invalid_auth") as caught:
            adapter.start()
        assert "bott/" not in str(caught.value)
        assert adapter.check_health() is not None


# -- webhook --------------------------------------------------------------------------------------


def sign_request(secret: str, body: bytes, time: int = NOW) -> dict[str, str]:
    return {notifications.SIGNATURE_HEADER.lower(): notifications.sign_body(secret, body, time)}


def test_webhook_accepts_only_signed_requests() -> None:
    hook = WebhookAdapter({}, {"secret": "hush"})
    body = json.dumps({"event_id": "1", "place": "p", "sender": "s", "text": "hi"}).encode()
    (event,) = hook.accept(sign_request("hush", body), body, NOW).events
    assert (event.event_id, event.place, event.text, event.kind) == (
        "1",
        "p",
        "hi",
        MessageKind.TEXT,
    )
    for headers, sent, now in (
        ({}, body, NOW),
        (sign_request("other", body), body, NOW),
        (sign_request("hush", body), body + b" ", NOW),
        (sign_request("hush", body), body, NOW + 3_600_000),
        ({notifications.SIGNATURE_HEADER.lower(): "t=x,v1=y"}, body, NOW),
        (sign_request("hush", b"[]"), b"[]", NOW),
        (sign_request("hush", b'{"event_id": "1"}'), b'{"event_id": "1"}', NOW),
        (sign_request("hush", b"\xff"), b"\xff", NOW),
        (sign_request("hush", b"[" * 5_000), b"[" * 5_000, NOW),
    ):
        with pytest.raises(RequestRejected):
            hook.accept(headers, sent, now)


@pytest.mark.parametrize("half", [rb"\ud83d", b"\xf0\x9f"])
def test_webhook_accepts_a_lone_surrogate(half: bytes) -> None:
    body = b'{"event_id": "1", "place": "p", "sender": "s", "text": "cut %s"}' % half
    (event,) = (
        WebhookAdapter({}, {"secret": "hush"}).accept(sign_request("hush", body), body, NOW).events
    )
    assert event.text in ("cut ?", "cut \ufffd")


def test_webhook_sends_signed_json_with_the_key() -> None:
    with run_receiver() as receiver:
        hook = WebhookAdapter({"url": receiver.url}, {"secret": "hush"})
        assert isinstance(hook.send(make_message("hello", thread="t")), SentMessage)
        receiver.answers = [500]
        failed = hook.send(make_message())
    assert isinstance(failed, FailedMessage)
    assert "500" in failed.reason
    payload = json.loads(receiver.posted[0].body)
    assert (payload["key"], payload["place"], payload["text"], payload["thread"]) == (
        "k1",
        "room",
        "hello",
        "t",
    )
    assert notifications.SIGNATURE_HEADER in receiver.posted[0].headers
    assert isinstance(WebhookAdapter({}, {"secret": "x"}).send(make_message()), UnsupportedMessage)


def test_webhook_health_check_sends_no_message() -> None:
    with run_receiver() as receiver:
        hook = WebhookAdapter({"url": receiver.url}, {"secret": "hush"})
        assert hook.check_health() is None, "the health check is not supported"
        assert receiver.posted == []
    assert hook.check_health() is not None
    assert WebhookAdapter({}, {"secret": "x"}).check_health() is None


@pytest.mark.parametrize(
    ("status", "last_error"),
    [(204, None), (401, None), (405, None), (404, "404"), (503, "503")],
)
def test_webhook_health_depends_on_the_status_code(status: int, last_error: str | None) -> None:
    with platform(lambda request: (status, b"")) as stub:
        health = WebhookAdapter({"url": f"{stub.url}/hook"}, {"secret": "x"}).check_health()
    assert health is None if last_error is None else last_error in str(health)


# -- Telegram -------------------------------------------------------------------------------------


def serve_updates(*updates: dict[str, Any]) -> Any:
    def answer(request: ApiRequest) -> Answer:
        method = request.path.rpartition("/")[2]
        if method == "getMe":
            return 200, {"ok": True, "result": {"id": 99, "username": "corral_bot"}}
        if method == "getUpdates":
            offset = (request.body or {}).get("offset", 0)
            pending = [update for update in updates if update["update_id"] >= offset]
            return 200, {"ok": True, "result": pending}
        if method == "getFile":
            return 200, {"ok": True, "result": {"file_path": "docs/a.txt"}}
        if request.path.startswith("/file/"):
            return 200, b"the file"
        if method == "setMessageReaction":
            return 200, {"ok": True, "result": True}
        return 200, {"ok": True, "result": {"message_id": 77}}

    return answer


ANN = {"id": 5, "username": "ann"}


def test_telegram_polling_resumes_after_the_cursor() -> None:
    message = {
        "message_id": 7,
        "from": ANN,
        "chat": {"id": -3, "type": "group", "title": "Crew"},
        "date": 1_800_000_000,
        "text": "@corral_bot hello",
        "document": {"file_id": "f", "file_name": "../a.txt", "file_size": 8},
    }
    pressed = {
        "id": "c",
        "from": ANN,
        "data": "qst_1:2",
        "message": {"message_id": 8, "chat": {"id": 5, "type": "private"}},
    }
    with platform(
        serve_updates(
            {"update_id": 10, "message": message},
            {"update_id": 11, "edited_message": message},
            {"update_id": 12, "callback_query": pressed},
            {"update_id": 13, "poll": {}},
        )
    ) as api:
        telegram = TelegramAdapter({"base_url": api.url}, {"token": "secret"})
        telegram.start()
        batch = telegram.receive(None, 0)
        assert batch.cursor == "14"
        message, edited, answer = batch.events
        assert (message.event_id, message.place, message.place_name, message.direct) == (
            "10",
            "-3",
            "Crew",
            False,
        )
        assert (message.sender, message.mentioned, message.message_id) == ("5", True, "7")
        assert message.attached[0].data == b"the file"
        assert edited.kind is MessageKind.EDIT
        assert (answer.kind, answer.question, answer.text, answer.direct) == (
            MessageKind.ANSWER,
            "qst_1",
            "2",
            True,
        )
        assert telegram.receive("14", 0).events == []
        telegram.stop()


@each_case(
    ("kind", "file", "name"),
    [
        ("voice", {"mime_type": "audio/ogg"}, "voice.og[ga]"),
        ("voice", {}, "voice.ogg"),
        ("audio", {"mime_type": "audio/mpeg"}, "audio.mp[23]"),
        ("video", {"mime_type": "video/mp4"}, "video.mp4"),
        ("video", {"mime_type": "video/unknown"}, "video.mp4"),
        ("document", {"mime_type": "application/pdf"}, "document.pdf"),
        ("document", {}, "document"),
        ("document", {"file_name": "a.txt"}, "a.txt"),
        ("photo", {}, "photo.jpg"),
    ],
)
def test_telegram_file_without_a_name_is_named_by_its_kind(
    kind: str, file: dict[str, str], name: str
) -> None:
    attached = {"file_id": "f", **file}
    message = {
        "message_id": 7,
        "from": ANN,
        "chat": {"id": 5, "type": "private"},
        kind: [attached] if kind == "photo" else attached,
    }
    with platform(serve_updates({"update_id": 10, "message": message})) as api:
        telegram = TelegramAdapter({"base_url": api.url}, {"token": "secret"})
        (event,) = telegram.receive(None, 0).events
        telegram.stop()
    assert fnmatchcase(event.attached[0].name, name)


def test_telegram_sends_text_cards_edits_and_reactions() -> None:
    with platform(serve_updates()) as api:
        telegram = TelegramAdapter({"base_url": api.url}, {"token": "secret"})
        assert telegram.send(make_message(thread="4", reply_to="7")) == SentMessage(["77"])
        telegram.send(
            make_message("Which?", kind=MessageKind.QUESTION, question="qst_1", options=["a", "b"])
        )
        telegram.send(make_message("new", kind=MessageKind.EDIT, reply_to="7"))
        assert telegram.send(
            make_message("+", kind=MessageKind.REACTION, reply_to="7")
        ) == SentMessage(["7"])
        telegram.stop()
    text, card, edit, reaction = (request.body for request in api.asked)
    assert (text["text"], text["message_thread_id"]) == ("hello", 4)
    assert card["reply_markup"]["inline_keyboard"][1][0]["callback_data"] == "qst_1:2"
    assert (edit["message_id"], edit["text"]) == (7, "new")
    assert reaction["reaction"][0]["emoji"] == "+"
    assert all("/botsecret/" in request.path for request in api.asked)


# -- Slack ----------------------------------------------------------------------------------------


def slack(url: str = "http://127.0.0.1:9") -> SlackAdapter:
    return SlackAdapter({"base_url": url}, {"token": "xoxb", "signing_secret": "sign"})


def sign_slack_request(
    body: bytes, time: int = NOW, kind: str = "application/json"
) -> dict[str, str]:
    signed = b"v0:%d:" % (time // 1_000) + body
    code = hmac.new(b"sign", signed, hashlib.sha256).hexdigest()
    return {
        "x-slack-request-timestamp": str(time // 1_000),
        "x-slack-signature": f"v0={code}",
        "content-type": kind,
    }


def slack_event(type: str, **fields: Any) -> bytes:
    event = {
        "type": type,
        "channel": "C1",
        "channel_type": "channel",
        "user": "U1",
        "text": "<@UBOT> hello",
        "ts": "1800000000.000100",
    }
    payload = {
        "type": "event_callback",
        "event_id": f"Ev-{type}",
        "authorizations": [{"user_id": "UBOT"}],
        "event": event | fields,
    }
    return json.dumps(payload).encode()


def test_slack_signature_is_checked_and_mention_is_one_event() -> None:
    challenge = json.dumps({"type": "url_verification", "challenge": "abc"}).encode()
    assert slack().accept(sign_slack_request(challenge), challenge, NOW).answer == b"abc"
    first, second = slack_event("message"), slack_event("app_mention")
    (event,) = slack().accept(sign_slack_request(first), first, NOW).events
    (two,) = slack().accept(sign_slack_request(second), second, NOW).events
    assert event.event_id == two.event_id
    assert (event.mentioned, event.place, event.sender) == (True, "C1", "U1")
    for body in (
        slack_event("message", bot_id="B1"),
        slack_event("message", subtype="channel_join"),
        slack_event("reaction_added"),
    ):
        assert slack().accept(sign_slack_request(body), body, NOW).events == []
    with pytest.raises(RequestRejected):
        slack().accept(sign_slack_request(first), first + b" ", NOW)
    with pytest.raises(RequestRejected):
        slack().accept(sign_slack_request(first), first, NOW + 3_600_000)
    with pytest.raises(RequestRejected):
        slack().accept({}, first, NOW)


def test_slack_token_is_sent_only_to_slack() -> None:
    body = slack_event(
        "message", files=[{"name": "a", "size": 1, "url_private": "http://evil.test/a"}]
    )
    (event,) = slack().accept(sign_slack_request(body), body, NOW).events
    assert event.attached[0].reason == "the file is not hosted by Slack"


def test_slack_button_press_is_an_answer() -> None:
    payload = {
        "type": "block_actions",
        "user": {"id": "U1", "username": "ann"},
        "channel": {"id": "C1"},
        "actions": [{"value": "qst_1:2", "action_ts": "9"}],
    }
    body = urlencode({"payload": json.dumps(payload)}).encode()
    headers = sign_slack_request(body, kind="application/x-www-form-urlencoded")
    (event,) = slack().accept(headers, body, NOW).events
    assert (event.kind, event.question, event.text, event.sender) == (
        MessageKind.ANSWER,
        "qst_1",
        "2",
        "U1",
    )


def test_slack_history_shows_delivered_messages() -> None:
    posted: list[dict[str, Any]] = []

    def answer(request: ApiRequest) -> Answer:
        method = request.path.rpartition("/")[2]
        if method == "chat.postMessage":
            posted.append({"ts": "1800000001.5", **request.body})
            return 200, {"ok": True, "ts": "1800000001.5"}
        if method == "conversations.history":
            return 200, {"ok": True, "messages": posted}
        if request.body.get("name") == "twice":
            return 200, {"ok": False, "error": "already_reacted"}
        error = "channel_not_found" if request.body.get("ts") == "1" else "ratelimited"
        return 200, {"ok": False, "error": error}

    with platform(answer) as api:
        adapter = slack(api.url)
        assert adapter.send(make_message(begun_at=NOW)) == SentMessage(["1800000001.5"])
        (message,) = adapter.list_posted(make_message(begun_at=NOW))
        assert (message.key, message.id, message.text) == ("k1", "1800000001.5", "hello")
        edit = make_message("x", kind=MessageKind.EDIT, reply_to="1")
        assert adapter.send(edit) == RejectedMessage("Slack returned channel_not_found")
        later = make_message("x", kind=MessageKind.EDIT, reply_to="2")
        assert adapter.send(later) == FailedMessage("Slack returned ratelimited")
        sign = make_message(":twice:", kind=MessageKind.REACTION, reply_to="3")
        assert adapter.send(sign) == SentMessage(["3"])
        adapter.stop()


# -- Matrix ---------------------------------------------------------------------------------------


def make_room_event(id: str, sender: str = "@ann:here", **content: Any) -> dict[str, Any]:
    body = {"msgtype": "m.text", "body": f"text of {id}"} | content
    return {
        "type": "m.room.message",
        "event_id": id,
        "sender": sender,
        "origin_server_ts": NOW,
        "content": body,
    }


class FakeHomeserver:
    """The part of the Matrix API that the adapter uses."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[str, Any]] = {}
        self.joined: list[str] = []
        self.sync: dict[str, Any] = {"next_batch": "s2", "rooms": {}}
        self.page: dict[str, Any] = {}

    def __call__(self, request: ApiRequest) -> Answer:
        path = request.path
        if path.endswith("/whoami"):
            return 200, {"user_id": "@bot:here"}
        if path.endswith("/sync"):
            return 200, self.sync
        if "/join/" in path:
            self.joined.append(path.rpartition("/")[2])
            return 200, {}
        if path.endswith("/messages"):
            return 200, {"chunk": [make_room_event("$gap2"), make_room_event("$gap1")], **self.page}
        if "/media/" in path:
            return 200, b"picture"
        key = path.rpartition("/")[2]
        self.sent.setdefault(key, {"event_id": f"$sent{len(self.sent)}"})
        return 200, self.sent[key]


def test_matrix_reports_a_gap_that_is_not_read_completely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("corral.adapters.channels.matrix.MAX_GAP_PAGES", 2)
    server = FakeHomeserver()
    timeline = {"limited": True, "prev_batch": "p", "events": [make_room_event("$1")]}
    server.sync["rooms"] = {"join": {"!r:here": {"timeline": timeline}}}
    unreadable = []
    with platform(server) as api:
        matrix = MatrixAdapter({"base_url": api.url}, {"token": "secret"})
        matrix.start()
        for server.page in ({}, {"end": "more"}):
            unreadable.append([*matrix.receive("s1", 0).unreadable])
        matrix.stop()
    assert unreadable == [[], ["before $gap1"]]


def test_matrix_sync_starts_at_the_join_and_fills_gaps() -> None:
    server = FakeHomeserver()
    room = {
        "summary": {"m.joined_member_count": 2},
        "state": {"events": [{"type": "m.room.name", "state_key": "", "content": {"name": "Den"}}]},
        "timeline": {
            "limited": True,
            "prev_batch": "p",
            "events": [
                make_room_event("$1", **{"m.mentions": {"user_ids": ["@bot:here"]}}),
                make_room_event("$2", sender="@bot:here"),
                make_room_event("$3", msgtype="m.notice"),
                make_room_event(
                    "$4", **{"m.relates_to": {"rel_type": "m.thread", "event_id": "$root"}}
                ),
                make_room_event(
                    "$5",
                    **{
                        "m.relates_to": {"rel_type": "m.replace", "event_id": "$1"},
                        "m.new_content": {"body": "better"},
                    },
                ),
                make_room_event("$6", msgtype="m.image", url="mxc://here/abc", filename="a.png"),
                {
                    "type": "m.reaction",
                    "event_id": "$7",
                    "sender": "@ann:here",
                    "content": {
                        "m.relates_to": {"rel_type": "m.annotation", "event_id": "$1", "key": "+"}
                    },
                },
            ],
        },
    }
    server.sync["rooms"] = {"join": {"!r:here": room}, "invite": {"!new:here": {}}}
    with platform(server) as api:
        matrix = MatrixAdapter({"base_url": api.url}, {"token": "secret"})
        matrix.start()
        assert matrix.receive(None, 0).events == [], "earlier messages are ignored"
        batch = matrix.receive("s1", 0)
        matrix.stop()
    assert batch.cursor == "s2"
    assert server.joined == ["!new:here"] * 2
    events = {event.event_id: event for event in batch.events}
    assert list(events) == ["$gap1", "$gap2", "$1", "$4", "$5", "$6", "$7"]
    first = events["$1"]
    assert (first.mentioned, first.direct, first.place_name) == (True, True, "Den")
    assert events["$4"].thread == "$root"
    assert (events["$5"].kind, events["$5"].text, events["$5"].reply_to) == (
        MessageKind.EDIT,
        "better",
        "$1",
    )
    assert events["$6"].attached[0].data == b"picture"
    assert (events["$7"].kind, events["$7"].text) == (MessageKind.REACTION, "+")


def test_matrix_deduplicates_by_key() -> None:
    server = FakeHomeserver()
    with platform(server) as api:
        matrix = MatrixAdapter({"base_url": api.url}, {"token": "secret"})
        first = matrix.send(make_message(place="!r:here", thread="$root"))
        assert matrix.send(make_message(place="!r:here", thread="$root")) == first
        matrix.send(
            make_message("new", key="k2", place="!r:here", kind=MessageKind.EDIT, reply_to="$1")
        )
        matrix.send(
            make_message("+", key="k3", place="!r:here", kind=MessageKind.REACTION, reply_to="$1")
        )
        matrix.stop()
    assert len(server.sent) == 3
    text, _, edit, reaction = (request.body for request in api.asked)
    assert text["m.relates_to"]["rel_type"] == "m.thread"
    assert edit["m.new_content"]["body"] == "new"
    assert reaction["m.relates_to"]["key"] == "+"
    assert all(request.headers["authorization"] == "Bearer secret" for request in api.asked)
