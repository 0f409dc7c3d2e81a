"""Telegram, over the Bot API with long polling.

The Bot API has neither idempotency keys nor a history. Whether an unconfirmed message arrived
cannot be determined, so the policy of the channel decides about a retry.
"""

import mimetypes
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from corral.adapters.channels.contract import (
    MALFORMED_ERRORS,
    BaseAdapter,
    ChannelTraits,
    EventBatch,
    IncomingEvent,
    LengthUnit,
    MessageKind,
    OutgoingMessage,
    RawAttachment,
    SendOutcome,
    SentMessage,
    StoredFile,
    UnsupportedMessage,
    validate_event,
)
from corral.adapters.channels.http_client import (
    DEFAULT_CONTENT_TYPE,
    DEFAULT_TIMEOUT,
    FILE_TIMEOUT,
    ApiClient,
    PlatformError,
    read_stored_file,
)
from corral.adapters.channels.message_text import has_mention

BASE = "https://api.telegram.org"
MAX_FILE_BYTES = 20 << 20  # the download limit for bots
EXTENSIONS = {"document": "", "audio": ".mp3", "video": ".mp4", "voice": ".ogg", "photo": ".jpg"}
"""Extensions of files without a name and without a known MIME type, by kind."""
UPDATES = ["message", "edited_message", "callback_query"]


class TelegramAdapter(BaseAdapter):
    """A Telegram bot."""

    kind = "telegram"
    traits = ChannelTraits(
        max_text=4_096,
        length_unit=LengthUnit.UTF16_UNITS,
        threads=True,
        edits=True,
        reactions=True,
        typing=True,
        buttons=True,
        files=True,
    )
    config: ClassVar[Mapping[str, bool]] = {"base_url": False}
    secrets: ClassVar[Mapping[str, bool]] = {"token": True}

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        super().__init__(config, secrets)
        self._base = str(config.get("base_url", BASE)).rstrip("/")
        self._api = ApiClient(f"{self._base}/bot{secrets['token']}/")
        self._me: dict[str, Any] = {}

    def start(self) -> None:
        try:
            self._me = self._api.request_json("GET", "getMe")["result"]
        except PlatformError as error:
            raise OSError(str(error)) from None

    def stop(self) -> None:
        self._api.close()

    def check_health(self) -> str | None:
        try:
            self._api.request_json("GET", "getMe")
        except PlatformError as error:
            return str(error)
        return None

    # -- inbound --------------------------------------------------------------------------------

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        params = {"timeout": int(seconds), "allowed_updates": UPDATES, "limit": 100}
        if cursor:
            params["offset"] = int(cursor)
        response = self._api.request_json(
            "POST", "getUpdates", json=params, seconds=seconds + DEFAULT_TIMEOUT
        )
        updates = response.get("result", [])
        last = max((int(update["update_id"]) for update in updates), default=None)
        events: list[IncomingEvent] = []
        unreadable: dict[str, str] = {}
        for update in updates:
            try:
                if (event := self._parse_event(update)) is not None:
                    events.append(validate_event(event))
            except MALFORMED_ERRORS:
                unreadable[str(update["update_id"])] = "malformed update"
        # The next request with this offset acknowledges the updates before it.
        return EventBatch(events, cursor if last is None else str(last + 1), unreadable)

    def _parse_event(self, update: dict[str, Any]) -> IncomingEvent | None:
        if pressed := update.get("callback_query"):
            return self._parse_button(update, pressed)
        edited = update.get("edited_message")
        message = update.get("message") or edited
        if not message or "from" not in message:
            return None
        text = str(message.get("text") or message.get("caption") or "")
        chat = message["chat"]
        replied_to = message.get("reply_to_message", {})
        return IncomingEvent(
            event_id=str(update["update_id"]),
            place=str(chat["id"]),
            place_name=chat.get("title") or chat.get("username"),
            direct=chat.get("type") == "private",
            thread=str(message["message_thread_id"]) if message.get("is_topic_message") else None,
            message_id=str(message["message_id"]),
            sender=str(message["from"]["id"]),
            sender_name=message["from"].get("username") or message["from"].get("first_name"),
            kind=MessageKind.EDIT if edited else MessageKind.TEXT,
            text=text,
            mentioned=self._is_mentioned(text, replied_to),
            reply_to=str(replied_to["message_id"]) if replied_to.get("message_id") else None,
            attached=self._download_files(message),
            at=int(message.get("date", 0)) * 1_000 or None,
        )

    def _is_mentioned(self, text: str, replied_to: dict[str, Any]) -> bool:
        name = self._me.get("username", "")
        author = replied_to.get("from", {}).get("id")
        is_named = bool(name) and has_mention(text, f"@{name}")
        return is_named or (author is not None and author == self._me.get("id"))

    def _parse_button(
        self, update: dict[str, Any], pressed: dict[str, Any]
    ) -> IncomingEvent | None:
        question, _, option = str(pressed.get("data", "")).rpartition(":")
        message = pressed.get("message")
        if not question or not message:
            return None
        with suppress(PlatformError):  # without it, the button only shows its spinner longer
            self._api.request_json(
                "POST", "answerCallbackQuery", json={"callback_query_id": pressed["id"]}
            )
        return IncomingEvent(
            event_id=str(update["update_id"]),
            place=str(message["chat"]["id"]),
            direct=message["chat"].get("type") == "private",
            sender=str(pressed["from"]["id"]),
            sender_name=pressed["from"].get("username"),
            kind=MessageKind.ANSWER,
            text=option,
            question=question,
        )

    def _download_files(self, message: dict[str, Any]) -> list[RawAttachment]:
        files: list[tuple[str, dict[str, Any]]] = [
            (kind, message[kind])
            for kind in ("document", "audio", "video", "voice")
            if kind in message
        ]
        if photos := message.get("photo"):
            files.append(("photo", photos[-1]))
        return [self._download_file(_name_file(kind, file), file) for kind, file in files]

    def _download_file(self, name: str, file: dict[str, Any]) -> RawAttachment:
        size = int(file.get("file_size") or 0)
        kind = file.get("mime_type")
        try:
            path = self._api.request_json("POST", "getFile", json={"file_id": file["file_id"]})
            url = f"{self._base}/file/bot{self._secrets['token']}/{path['result']['file_path']}"
            return RawAttachment(name, self._api.download(url, MAX_FILE_BYTES), size, kind)
        except (PlatformError, KeyError) as error:
            return RawAttachment(name, None, size, kind, str(error))

    # -- outbound -------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage) -> SendOutcome:
        if message.kind is MessageKind.REACTION:
            reaction = [{"type": "emoji", "emoji": message.text}]
            return self._call(
                "setMessageReaction",
                message,
                message_id=_parse_number(message.reply_to),
                reaction=reaction,
            )
        if message.kind is MessageKind.EDIT:
            return self._call(
                "editMessageText",
                message,
                message_id=_parse_number(message.reply_to),
                text=message.text,
            )
        params: dict[str, Any] = {"text": message.text}
        if message.file is not None:
            return self._send_document(message, message.file)
        if message.thread:
            params["message_thread_id"] = _parse_number(message.thread)
        if message.reply_to:
            # Send the reply even if the original message was deleted.
            params["reply_parameters"] = {
                "message_id": _parse_number(message.reply_to),
                "allow_sending_without_reply": True,
            }
        if message.kind is MessageKind.QUESTION:
            if not message.question:
                return UnsupportedMessage("the card has no question")
            # Callback data is limited to 64 bytes, so it has the number of the option.
            rows = [
                [{"text": option[:60], "callback_data": f"{message.question}:{number}"}]
                for number, option in enumerate(message.options, 1)
            ]
            params["reply_markup"] = {"inline_keyboard": rows}
        return self._call("sendMessage", message, **params)

    def _send_document(self, message: OutgoingMessage, file: StoredFile) -> SendOutcome:
        params = {"chat_id": message.place}
        if message.thread:
            params["message_thread_id"] = message.thread
        try:
            document = {
                "document": (file.name, read_stored_file(file), file.type or DEFAULT_CONTENT_TYPE)
            }
            response = self._api.request_json(
                "POST", "sendDocument", data=params, files=document, seconds=FILE_TIMEOUT
            )
        except PlatformError as error:
            return error.outcome
        return SentMessage([str(response["result"]["message_id"])])

    def _call(self, method: str, message: OutgoingMessage, **params: Any) -> SendOutcome:
        try:
            response = self._api.request_json(
                "POST", method, json={"chat_id": message.place, **params}
            )
        except PlatformError as error:
            if "message is not modified" in str(error):
                return SentMessage([str(params["message_id"])])  # the message already has this text
            return error.outcome
        result = response.get("result")
        id = result.get("message_id") if isinstance(result, dict) else params.get("message_id")
        return SentMessage([str(id)])

    def show_typing(self, place: str, thread: str | None) -> None:
        with suppress(PlatformError):
            self._api.request_json(
                "POST", "sendChatAction", json={"chat_id": place, "action": "typing"}, seconds=5.0
            )


def _name_file(kind: str, file: dict[str, Any]) -> str:
    """Return the name of a file; without one, its kind with the extension of its MIME type."""
    if name := file.get("file_name"):
        return str(name)
    extension = mimetypes.guess_extension(str(file.get("mime_type") or ""))
    return f"{kind}{extension or EXTENSIONS[kind]}"


def _parse_number(id: str | None) -> int:
    return int(id) if id and id.lstrip("-").isdigit() else 0


ADAPTER = TelegramAdapter
