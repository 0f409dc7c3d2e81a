"""Slack: inbound over the Events API (webhook), outbound over the Web API.

Each message carries its key as metadata, so a search of the history shows whether an unconfirmed
message arrived.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qs

from corral.adapters.channels.contract import (
    MALFORMED_ERRORS,
    AcceptedRequest,
    BaseAdapter,
    ChannelTraits,
    FailedMessage,
    IncomingEvent,
    MessageKind,
    OutgoingMessage,
    PostedMessage,
    RawAttachment,
    RejectedMessage,
    RequestRejected,
    SendOutcome,
    SentMessage,
    StoredFile,
    treat_unconfirmed_as_failed,
    validate_event,
)
from corral.adapters.channels.http_client import (
    DEFAULT_CONTENT_TYPE,
    ApiClient,
    PlatformError,
    read_stored_file,
)
from corral.adapters.channels.signatures import parse_signed_at, verify_signature

BASE = "https://slack.com/api"
FILES = "https://files.slack.com/"
MAX_FILE_BYTES = 50 << 20
MAX_PAGES = 20
# Errors of our configuration or rate, and of Slack itself: the message can be retried.
RETRYABLE_CLIENT_ERRORS = {
    "invalid_auth",
    "not_authed",
    "account_inactive",
    "token_revoked",
    "ratelimited",
}
RETRYABLE_SERVER_ERRORS = {
    "internal_error",
    "fatal_error",
    "service_unavailable",
    "request_timeout",
}


class SlackAdapter(BaseAdapter):
    """A Slack app with a bot token."""

    kind = "slack"
    traits = ChannelTraits(
        max_text=3_000,
        threads=True,
        edits=True,
        reactions=True,
        buttons=True,
        files=True,
        history=True,
        uses_webhook=True,
    )
    config: ClassVar[Mapping[str, bool]] = {"base_url": False}
    secrets: ClassVar[Mapping[str, bool]] = {"token": True, "signing_secret": True}

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        super().__init__(config, secrets)
        self._base = str(config.get("base_url", BASE)).rstrip("/") + "/"
        self._api = ApiClient(self._base, {"Authorization": f"Bearer {secrets['token']}"})
        self._me = ""

    def start(self) -> None:
        if reason := self.check_health():
            raise OSError(reason)

    def stop(self) -> None:
        self._api.close()

    def check_health(self) -> str | None:
        try:
            body = self._api.request_json("POST", "auth.test")
        except PlatformError as error:
            return str(error)
        if not body.get("ok"):
            return f"Slack returned {body.get('error')}"
        self._me = str(body.get("user_id", ""))
        return None

    # -- inbound --------------------------------------------------------------------------------

    def accept(self, headers: Mapping[str, str], body: bytes, now: int) -> AcceptedRequest:
        self._check(headers, body, now)
        try:
            return self._read(_decode_body(headers, body))
        except MALFORMED_ERRORS:
            raise RequestRejected("the request is malformed") from None

    def _read(self, body: dict[str, Any]) -> AcceptedRequest:
        if body.get("type") == "url_verification":
            return AcceptedRequest([], str(body.get("challenge", "")).encode(), "text/plain")
        if body.get("type") == "block_actions":
            return AcceptedRequest([validate_event(event) for event in _parse_buttons(body)])
        event = self._parse_event(body)
        return AcceptedRequest([validate_event(event)] if event is not None else [])

    def _check(self, headers: Mapping[str, str], body: bytes, now: int) -> None:
        seconds = headers.get("x-slack-request-timestamp", "")
        signed_at = parse_signed_at(seconds)
        signed = b"v0:" + seconds.encode() + b":" + body
        secret = self._secrets["signing_secret"].encode()
        expected = "v0=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
        signature = headers.get("x-slack-signature", "")
        verify_signature(signature, expected, signed_at=signed_at, now=now)

    def _parse_event(self, body: dict[str, Any]) -> IncomingEvent | None:
        event = body.get("event", {})
        if event.get("type") == "reaction_added":
            return _parse_reaction(event)
        if event.get("subtype") == "message_changed":
            return _parse_edit(event)
        is_message = event.get("subtype") in (None, "file_share")
        if event.get("type") not in ("message", "app_mention") or not is_message:
            return None
        if event.get("bot_id") or "user" not in event:
            return None  # messages of bots, including our own
        bot_user = (body.get("authorizations") or [{}])[0].get("user_id")
        text = str(event.get("text", ""))
        thread = event.get("thread_ts")
        return IncomingEvent(
            # A mention arrives as two events. Channel and time identify the message.
            event_id=f"{event['channel']}:{event['ts']}",
            place=str(event["channel"]),
            direct=event.get("channel_type") == "im",
            thread=str(thread) if thread else None,
            message_id=str(event["ts"]),
            sender=str(event["user"]),
            text=unescape_text(text),
            mentioned=event["type"] == "app_mention" or bool(bot_user and f"<@{bot_user}>" in text),
            attached=[self._download_file(file) for file in event.get("files", [])],
            at=int(float(event["ts"]) * 1_000),
        )

    def _download_file(self, file: dict[str, Any]) -> RawAttachment:
        name, size = str(file.get("name") or "file"), int(file.get("size") or 0)
        url = str(file.get("url_private", ""))
        if not url.startswith((FILES, self._base)):
            # The download sends our token, so the URL must be Slack's.
            return RawAttachment(
                name, None, size, file.get("mimetype"), "the file is not hosted by Slack"
            )
        try:
            data = self._api.download(url, MAX_FILE_BYTES)
        except PlatformError as error:
            return RawAttachment(name, None, size, file.get("mimetype"), str(error))
        return RawAttachment(name, data, size, file.get("mimetype"))

    # -- outbound -------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage) -> SendOutcome:
        params: dict[str, Any] = {"channel": message.place}
        if message.kind is MessageKind.REACTION:
            name = message.text.strip().strip(":")
            return self._call(
                "reactions.add", params | {"timestamp": message.reply_to, "name": name}
            )
        if message.file is not None:
            return self._share_file(message, message.file)
        params["text"] = escape_text(message.text)
        if message.kind is MessageKind.EDIT:
            return self._call("chat.update", params | {"ts": message.reply_to, "blocks": []})
        if message.thread:
            params["thread_ts"] = message.thread
        params["metadata"] = {"event_type": "corral", "event_payload": {"key": message.key}}
        if message.kind is MessageKind.QUESTION and message.options:
            params["blocks"] = _build_card(message)
        return self._call("chat.postMessage", params)

    def _share_file(self, message: OutgoingMessage, file: StoredFile) -> SendOutcome:
        """Upload a file to the URL that Slack assigns, then share it in the channel."""
        file_params = {"filename": file.name, "length": str(file.bytes)}
        try:
            body = self._api.request_json("POST", "files.getUploadURLExternal", data=file_params)
            if not body.get("ok"):
                return _build_error_outcome(str(body.get("error")))
            url = str(body["upload_url"])
            if not url.startswith((FILES, self._base)):
                return FailedMessage("the upload URL is not hosted by Slack")
            self._api.upload_to(
                "POST", url, read_stored_file(file), file.type or DEFAULT_CONTENT_TYPE
            )
        except PlatformError as error:
            return treat_unconfirmed_as_failed(error.outcome)
        id = str(body["file_id"])
        params: dict[str, Any] = {
            "files": [{"id": id, "title": file.name}],
            "channel_id": message.place,
        }
        if message.thread:
            params["thread_ts"] = message.thread
        outcome = self._call("files.completeUploadExternal", params)
        return SentMessage([id]) if isinstance(outcome, SentMessage) else outcome

    def _call(self, method: str, params: dict[str, Any]) -> SendOutcome:
        try:
            body = self._api.request_json("POST", method, json=params)
        except PlatformError as error:
            return error.outcome
        if body.get("ok"):
            return SentMessage([str(body.get("ts") or params.get("timestamp"))])
        code = str(body.get("error"))
        if code == "already_reacted":
            return SentMessage([str(params.get("timestamp"))])
        return _build_error_outcome(code)

    def list_posted(self, message: OutgoingMessage) -> list[PostedMessage]:
        params = {
            "channel": message.place,
            "oldest": str(message.begun_at // 1_000 - 5),
            "limit": "200",
            "include_all_metadata": "true",
        }
        method = "conversations.history"
        if message.thread:
            method, params["ts"] = "conversations.replies", message.thread
        messages: list[dict[str, Any]] = []
        for _ in range(MAX_PAGES):
            body = self._api.request_json("POST", method, data=params)
            if not body.get("ok"):
                raise PlatformError(FailedMessage(f"Slack returned {body.get('error')}"))
            messages += body.get("messages", [])
            params["cursor"] = (body.get("response_metadata") or {}).get("next_cursor", "")
            if not body.get("has_more") or not params["cursor"]:
                break
        else:
            raise PlatformError(FailedMessage("the history is too long to search"))
        if message.file is not None:
            # A shared file has no key and is identified by its name, so only our own files count.
            messages = [
                shown for shown in messages if shown.get("files") and shown.get("user") == self._me
            ]
        return [_parse_posted(shown, message) for shown in messages]


def escape_text(text: str) -> str:
    """Escape control characters of Slack, so that agent text cannot create mentions or links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def unescape_text(text: str) -> str:
    """Revert `escape_text`."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _parse_edit(event: dict[str, Any]) -> IncomingEvent | None:
    """Return an edit by a person; None for other changes, such as link previews."""
    message, before = event.get("message", {}), event.get("previous_message", {})
    if message.get("bot_id") or "user" not in message or message.get("text") == before.get("text"):
        return None
    return IncomingEvent(
        event_id=f"{event['channel']}:{message['ts']}:{event['event_ts']}",
        place=str(event["channel"]),
        direct=event.get("channel_type") == "im",
        thread=message.get("thread_ts"),
        message_id=str(message["ts"]),
        sender=str(message["user"]),
        kind=MessageKind.EDIT,
        text=unescape_text(str(message.get("text", ""))),
        reply_to=str(message["ts"]),
        at=int(float(event["event_ts"]) * 1_000),
    )


def _parse_reaction(event: dict[str, Any]) -> IncomingEvent | None:
    item = event.get("item", {})
    if item.get("type") != "message" or "user" not in event:
        return None
    return IncomingEvent(
        event_id=f"{item['channel']}:{event['event_ts']}:{event['user']}:{event['reaction']}",
        place=str(item["channel"]),
        sender=str(event["user"]),
        kind=MessageKind.REACTION,
        text=f":{event['reaction']}:",
        reply_to=str(item["ts"]),
        at=int(float(event["event_ts"]) * 1_000),
    )


def _build_error_outcome(error: str) -> SendOutcome:
    reason = f"Slack returned {error}"
    return (
        FailedMessage(reason)
        if error in RETRYABLE_CLIENT_ERRORS | RETRYABLE_SERVER_ERRORS
        else RejectedMessage(reason)
    )


def _parse_posted(shown: dict[str, Any], message: OutgoingMessage) -> PostedMessage:
    at = int(float(shown["ts"]) * 1_000)
    if message.file is not None:
        file = shown["files"][0]
        return PostedMessage(str(file["id"]), str(file.get("title")), message.thread, at)
    key = shown.get("metadata", {}).get("event_payload", {}).get("key", "")
    return PostedMessage(str(shown["ts"]), str(shown.get("text", "")), message.thread, at, key=key)


def _decode_body(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    if "x-www-form-urlencoded" in headers.get("content-type", ""):
        body = parse_qs(body.decode())["payload"][0].encode()
    payload: dict[str, Any] = json.loads(body)
    return payload


def _parse_buttons(body: dict[str, Any]) -> list[IncomingEvent]:
    events = []
    for action in body.get("actions", []):
        question, _, option = str(action.get("value", "")).rpartition(":")
        if question:
            events.append(
                IncomingEvent(
                    event_id=f"action:{action.get('action_ts')}:{body['user']['id']}",
                    place=str(body["channel"]["id"]),
                    sender=str(body["user"]["id"]),
                    sender_name=body["user"].get("username"),
                    kind=MessageKind.ANSWER,
                    text=option,
                    question=question,
                )
            )
    return events


def _build_card(message: OutgoingMessage) -> list[dict[str, Any]]:
    buttons = [
        {
            "type": "button",
            "text": {"type": "plain_text", "text": option[:75]},
            "value": f"{message.question}:{number}",
            "action_id": f"option-{number}",
        }
        for number, option in enumerate(message.options, 1)
    ]
    section = {"type": "section", "text": {"type": "plain_text", "text": message.text[:3_000]}}
    return [section, {"type": "actions", "elements": buttons}]


ADAPTER = SlackAdapter
