"""Slack: its Events API calls us, and its web API is called.

Each message carries its key as metadata, so that a look at the history tells whether one arrived
whose outcome is not known.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qs

from corral.adapters.channels.api import PLAIN, Api, Trouble, contents
from corral.adapters.channels.contract import (
    NONSENSE,
    Accepted,
    Attached,
    Failed,
    File,
    Incoming,
    Kind,
    Outcome,
    Outgoing,
    Plain,
    Refused,
    Seen,
    Sent,
    Traits,
    Unwelcome,
    sound,
    unseen,
)
from corral.kernel.clock import MINUTE

BASE = "https://slack.com/api"
FILES = "https://files.slack.com/"
OLDEST_MS = 5 * MINUTE
MOST_FILE = 50 << 20
MOST_PAGES = 20
# What Slack itself says when it is we who have to mend something, or who came too fast.
OURS = {"invalid_auth", "not_authed", "account_inactive", "token_revoked", "ratelimited"}
THEIRS = {"internal_error", "fatal_error", "service_unavailable", "request_timeout"}


class Slack(Plain):
    kind = "slack"
    traits = Traits(
        max_text=3_000,
        threads=True,
        edits=True,
        reactions=True,
        buttons=True,
        files=True,
        history=True,
        calls=True,
    )
    config: ClassVar[Mapping[str, bool]] = {"base_url": False}
    secrets: ClassVar[Mapping[str, bool]] = {"token": True, "signing_secret": True}

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        super().__init__(config, secrets)
        self._base = str(config.get("base_url", BASE)).rstrip("/") + "/"
        self._web = Api(self._base, {"Authorization": f"Bearer {secrets['token']}"})

        self._me = ""

    def start(self) -> None:
        if why := self.health():
            raise OSError(why)

    def stop(self) -> None:
        self._web.close()

    def health(self) -> str | None:
        try:
            told = self._web.ask("POST", "auth.test")
        except Trouble as error:
            return str(error)
        if not told.get("ok"):
            return f"Slack says {told.get('error')}"
        self._me = str(told.get("user_id", ""))
        return None

    # -- in -------------------------------------------------------------------------------------

    def accept(self, headers: Mapping[str, str], body: bytes, now: int) -> Accepted:
        self._check(headers, body, now)
        try:
            return self._read(_decoded(headers, body))
        except NONSENSE:
            raise Unwelcome("it makes no sense") from None

    def _read(self, told: dict[str, Any]) -> Accepted:
        if told.get("type") == "url_verification":
            return Accepted([], str(told.get("challenge", "")).encode(), "text/plain")
        if told.get("type") == "block_actions":
            return Accepted([sound(event) for event in _pressed(told)])
        event = self._event(told)
        return Accepted([sound(event)] if event is not None else [])

    def _check(self, headers: Mapping[str, str], body: bytes, now: int) -> None:
        seconds = headers.get("x-slack-request-timestamp", "")
        if not (seconds.isascii() and seconds.isdigit()) or len(seconds) > 12:
            raise Unwelcome("it is not signed")
        signed = b"v0:" + seconds.encode() + b":" + body
        secret = self._secrets["signing_secret"].encode()
        code = "v0=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
        shown = headers.get("x-slack-signature", "")
        if not hmac.compare_digest(code.encode(), shown.encode()):  # as text only ASCII would do
            raise Unwelcome("its signature is wrong")
        if abs(now - int(seconds) * 1_000) > OLDEST_MS:
            raise Unwelcome("its signature is too old, or of a clock that goes wrong")

    def _event(self, told: dict[str, Any]) -> Incoming | None:
        event = told.get("event", {})
        if event.get("type") == "reaction_added":
            return _signed(event)
        if event.get("subtype") == "message_changed":
            return _changed(event)
        plain = event.get("subtype") in (None, "file_share")
        if event.get("type") not in ("message", "app_mention") or not plain:
            return None
        if event.get("bot_id") or "user" not in event:
            return None  # what bots say, we among them
        own = (told.get("authorizations") or [{}])[0].get("user_id")
        text = str(event.get("text", ""))
        thread = event.get("thread_ts")
        return Incoming(
            # A mention comes as two events of one message, which has one time in its channel.
            event_id=f"{event['channel']}:{event['ts']}",
            place=str(event["channel"]),
            direct=event.get("channel_type") == "im",
            thread=str(thread) if thread else None,
            message_id=str(event["ts"]),
            sender=str(event["user"]),
            text=unescaped(text),
            mentioned=event["type"] == "app_mention" or bool(own and f"<@{own}>" in text),
            attached=[self._file(each) for each in event.get("files", [])],
            at=int(float(event["ts"]) * 1_000),
        )

    def _file(self, file: dict[str, Any]) -> Attached:
        name, size = str(file.get("name") or "file"), int(file.get("size") or 0)
        url = str(file.get("url_private", ""))
        if not url.startswith((FILES, self._base)):
            # The token goes along with the request, and to nobody but Slack.
            return Attached(name, None, size, file.get("mimetype"), "it is not on Slack")
        try:
            data = self._web.fetch(url, MOST_FILE)
        except Trouble as error:
            return Attached(name, None, size, file.get("mimetype"), str(error))
        return Attached(name, data, size, file.get("mimetype"))

    # -- out ------------------------------------------------------------------------------------

    def send(self, message: Outgoing) -> Outcome:
        given: dict[str, Any] = {"channel": message.place}
        if message.kind is Kind.REACTION:
            name = message.text.strip().strip(":")
            return self._do("reactions.add", given | {"timestamp": message.reply_to, "name": name})
        if message.file is not None:
            return self._share(message, message.file)
        given["text"] = escaped(message.text)
        if message.kind is Kind.EDIT:
            return self._do("chat.update", given | {"ts": message.reply_to, "blocks": []})
        if message.thread:
            given["thread_ts"] = message.thread
        given["metadata"] = {"event_type": "corral", "event_payload": {"key": message.key}}
        if message.kind is Kind.QUESTION and message.options:
            given["blocks"] = _card(message)
        return self._do("chat.postMessage", given)

    def _share(self, message: Outgoing, file: File) -> Outcome:
        """Slack gives an address for the bytes, and shows the file when it is told where to."""
        asked = {"filename": file.name, "length": str(file.bytes)}
        try:
            told = self._web.ask("POST", "files.getUploadURLExternal", data=asked)
            if not told.get("ok"):
                return _refused(str(told.get("error")))
            url = str(told["upload_url"])
            if not url.startswith((FILES, self._base)):
                return Failed("Slack wants the file at an address that is not its own")
            self._web.send_away("POST", url, contents(file), file.type or PLAIN)
        except Trouble as error:
            return unseen(error.outcome)
        id = str(told["file_id"])
        given: dict[str, Any] = {
            "files": [{"id": id, "title": file.name}],
            "channel_id": message.place,
        }
        if message.thread:
            given["thread_ts"] = message.thread
        outcome = self._do("files.completeUploadExternal", given)
        return Sent([id]) if isinstance(outcome, Sent) else outcome

    def _do(self, method: str, given: dict[str, Any]) -> Outcome:
        try:
            told = self._web.ask("POST", method, json=given)
        except Trouble as error:
            return error.outcome
        if told.get("ok"):
            return Sent([str(told.get("ts") or given.get("timestamp"))])
        why = str(told.get("error"))
        if why == "already_reacted":
            return Sent([str(given.get("timestamp"))])
        return _refused(why)

    def history(self, message: Outgoing) -> list[Seen]:
        asked = {
            "channel": message.place,
            "oldest": str(message.begun_at // 1_000 - 5),
            "limit": "200",
            "include_all_metadata": "true",
        }
        method = "conversations.history"
        if message.thread:
            method, asked["ts"] = "conversations.replies", message.thread
        shown: list[dict[str, Any]] = []
        for _ in range(MOST_PAGES):
            told = self._web.ask("POST", method, data=asked)
            if not told.get("ok"):
                raise Trouble(Failed(f"Slack says {told.get('error')}"))
            shown += told.get("messages", [])
            asked["cursor"] = (told.get("response_metadata") or {}).get("next_cursor", "")
            if not told.get("has_more") or not asked["cursor"]:
                break
        else:
            raise Trouble(Failed("so much was said there that it cannot be looked through"))
        if message.file is not None:
            # It has no key there, and is known by its name; others may share one of that name.
            shown = [each for each in shown if each.get("files") and each.get("user") == self._me]
        return [_seen(each, message) for each in shown]


def escaped(text: str) -> str:
    """Words as Slack takes them: what an agent says calls nobody and leads nowhere by accident."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _changed(event: dict[str, Any]) -> Incoming | None:
    """Somebody changed words of theirs; Slack calls its own previews of links a change, too."""
    message, before = event.get("message", {}), event.get("previous_message", {})
    if message.get("bot_id") or "user" not in message or message.get("text") == before.get("text"):
        return None
    return Incoming(
        event_id=f"{event['channel']}:{message['ts']}:{event['event_ts']}",
        place=str(event["channel"]),
        direct=event.get("channel_type") == "im",
        thread=message.get("thread_ts"),
        message_id=str(message["ts"]),
        sender=str(message["user"]),
        kind=Kind.EDIT,
        text=unescaped(str(message.get("text", ""))),
        reply_to=str(message["ts"]),
        at=int(float(event["event_ts"]) * 1_000),
    )


def _signed(event: dict[str, Any]) -> Incoming | None:
    item = event.get("item", {})
    if item.get("type") != "message" or "user" not in event:
        return None
    return Incoming(
        event_id=f"{item['channel']}:{event['event_ts']}:{event['user']}:{event['reaction']}",
        place=str(item["channel"]),
        sender=str(event["user"]),
        kind=Kind.REACTION,
        text=f":{event['reaction']}:",
        reply_to=str(item["ts"]),
        at=int(float(event["event_ts"]) * 1_000),
    )


def _refused(why: str) -> Outcome:
    said = f"Slack says {why}"
    return Failed(said) if why in OURS | THEIRS else Refused(said)


def _seen(shown: dict[str, Any], message: Outgoing) -> Seen:
    at = int(float(shown["ts"]) * 1_000)
    if message.file is not None:
        file = shown["files"][0]
        return Seen(str(file["id"]), str(file.get("title")), message.thread, at)
    key = shown.get("metadata", {}).get("event_payload", {}).get("key", "")
    return Seen(str(shown["ts"]), str(shown.get("text", "")), message.thread, at, key=key)


def _decoded(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    if "x-www-form-urlencoded" in headers.get("content-type", ""):
        body = parse_qs(body.decode())["payload"][0].encode()
    told: dict[str, Any] = json.loads(body)
    return told


def _pressed(told: dict[str, Any]) -> list[Incoming]:
    found = []
    for action in told.get("actions", []):
        question, _, option = str(action.get("value", "")).rpartition(":")
        if question:
            found.append(
                Incoming(
                    event_id=f"action:{action.get('action_ts')}:{told['user']['id']}",
                    place=str(told["channel"]["id"]),
                    sender=str(told["user"]["id"]),
                    sender_name=told["user"].get("username"),
                    kind=Kind.ANSWER,
                    text=option,
                    question=question,
                )
            )
    return found


def _card(message: Outgoing) -> list[dict[str, Any]]:
    buttons = [
        {
            "type": "button",
            "text": {"type": "plain_text", "text": option[:75]},
            "value": f"{message.question}:{number}",
            "action_id": f"option-{number}",
        }
        for number, option in enumerate(message.options, 1)
    ]
    words = {"type": "section", "text": {"type": "plain_text", "text": message.text[:3_000]}}
    return [words, {"type": "actions", "elements": buttons}]


ADAPTER = Slack
